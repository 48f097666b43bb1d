"""What the names of spans, attributes, events and links mean, and which span holds which: tables for docs and tests."""

from dataclasses import dataclass

from telemetry.names import Attr, EventName, Relation, SpanName

CALL = "{operation} {model}"
KV = "kv.{move}"
"""Names that are put together: see `call_span_name` and `kv_span_name`."""

_SESSION = (Attr.SESSION_ID, Attr.CONVERSATION_ID)
_FROM_WHERE = (Attr.SLOT_TOKENS, Attr.TREE_TOKENS, Attr.COMPUTED_TOKENS)


@dataclass(frozen=True, slots=True)
class SpanMeaning:
    name: str
    when: str
    attributes: tuple[Attr, ...]
    """What it may hold."""
    events: tuple[EventName, ...] = ()
    links: tuple[Relation, ...] = ()


SPANS: tuple[SpanMeaning, ...] = (
    SpanMeaning(
        CALL,
        "A call, from its arrival to its status; kind SERVER. `{operation} {model}` for turns, else the method's name. "
        "Below the caller's span, if it names one.",
        (
            *(Attr.RPC_SYSTEM, Attr.RPC_SERVICE, Attr.RPC_METHOD, Attr.RPC_STATUS, Attr.ERROR_TYPE),
            *(Attr.OPERATION, Attr.REQUEST_MODEL, Attr.TURN_ID, *_SESSION),
        ),
        links=(Relation.RESUMED,),
    ),
    SpanMeaning(
        SpanName.TURN,
        "A turn, from its acceptance to its end; below the call that it came with.",
        (
            *(Attr.TURN_ID, Attr.TURN_NUMBER, Attr.PARENT_TURN_ID, *_SESSION),
            *(Attr.MAX_TOKENS, Attr.INPUT_TOKENS, Attr.NEW_TOKENS, Attr.OUTPUT_TOKENS, Attr.CACHED_TOKENS),
            *(*_FROM_WHERE, Attr.QUEUE_S, Attr.RETRACTIONS, Attr.OUTCOME, Attr.FINISH_REASONS, Attr.ERROR_TYPE),
            *(Attr.COMMITTED, Attr.HISTORY_TOKENS, Attr.DETAIL, Attr.GRANTED, Attr.DONATED, Attr.RELEASED),
        ),
        (EventName.FIRST_TOKEN, EventName.COMMIT),
        (Relation.PREVIOUS_TURN, Relation.PREVIOUS_HOLDER),
    ),
    SpanMeaning(SpanName.QUEUE, "The turn waits for room; again after each retraction.", (Attr.ATTEMPT,)),
    SpanMeaning(
        SpanName.PREFILL,
        "From its admission to its first token.",
        (Attr.ATTEMPT, *_FROM_WHERE),
        (EventName.CHUNK, EventName.RETRACTED),
    ),
    SpanMeaning(SpanName.DECODE, "From its first token on.", (Attr.ATTEMPT,), (EventName.RETRACTED,)),
    SpanMeaning(
        SpanName.SESSION,
        "Short: at the opening of a session, and at its close; below the call, if there was one.",
        (
            *(Attr.PHASE, *_SESSION, Attr.SESSION_NUMBER, Attr.STREAMING, Attr.SESSION_REASON, Attr.SESSION_TURNS),
            *(Attr.HISTORY_TOKENS, Attr.KV_TOKENS),
        ),
        links=(Relation.OPENED, Relation.TURN, Relation.FORKED_FROM),
    ),
    SpanMeaning(
        KV,
        "KV changed its owner: `kv.park`, `kv.lend`, `kv.return`, `kv.publish`, `kv.demote`, `kv.release`, "
        "`kv.quarantine`. Below the turn, or the last turn of the session.",
        (
            *(Attr.MOVE, Attr.FROM, Attr.TO, Attr.FULL_PAGES, Attr.SWA_PAGES, Attr.STATES, Attr.ROWS),
            *(Attr.KV_TOKENS, Attr.STEP, Attr.SESSION_ID, Attr.TURN_ID),
        ),
        (EventName.SLOT,),
        (Relation.PREVIOUS_HOLDER,),
    ),
    SpanMeaning(
        SpanName.STEP,
        "A forward, from its plan to its answer; one of every `--trace-steps`. A trace of its own.",
        (
            *(Attr.STEP, Attr.STEP_ROWS, Attr.STEP_TOKENS, Attr.STEP_HOST_S, Attr.STEP_DEVICE_S),
            *(Attr.GRANTED, Attr.DONATED, Attr.EVICTED, Attr.ERROR_TYPE),
        ),
        links=(Relation.TURN,),
    ),
)

ON_EVENTS: dict[EventName, tuple[Attr, ...]] = {
    EventName.CHUNK: (Attr.START, Attr.TOKENS, Attr.STEP),
    EventName.RETRACTED: (Attr.OUTPUT_TOKENS,),
    EventName.FIRST_TOKEN: (),
    EventName.COMMIT: (Attr.OUTPUT_TOKENS,),
    EventName.SLOT: (Attr.SLOT_FROM, Attr.SLOT_TO),
}
ON_LINKS = (Attr.LINK,)
ON_ANY_SPAN = (Attr.EVENTS_LOST,)

EVENTS: dict[EventName, str] = {
    EventName.CHUNK: "A part of the prompt went into a step.",
    EventName.RETRACTED: "The turn gave its KV back and waits again.",
    EventName.FIRST_TOKEN: "The first token was sampled.",
    EventName.COMMIT: "The turn is finished and is being stored.",
    EventName.SLOT: "The session's slot went from one state to another.",
}

RELATIONS: dict[Relation, str] = {
    Relation.PREVIOUS_TURN: "The turn that this one follows.",
    Relation.PREVIOUS_HOLDER: "The span in which the KV came to whom it was taken from.",
    Relation.TURN: "A turn of the session, or of the step.",
    Relation.OPENED: "The span at which the session was opened.",
    Relation.FORKED_FROM: "The turn in whose history the session was forked, or else the opening of its source.",
    Relation.RESUMED: "The turn whose stream a call resumes or attaches to.",
}

ATTRIBUTES: dict[Attr, str] = {
    Attr.SESSION_ID: "The client's name of the session.",
    Attr.CONVERSATION_ID: "The same, under the name that GenAI tools know.",
    Attr.OPERATION: "What is done: `chat` or `text_completion`; in metrics `generate` for both.",
    Attr.PROVIDER: "Always `tenure`.",
    Attr.REQUEST_MODEL: "The model that is served.",
    Attr.INPUT_TOKENS: "Tokens of the prompt, the session's history included.",
    Attr.OUTPUT_TOKENS: "Tokens that were generated.",
    Attr.CACHED_TOKENS: "Tokens of the prompt whose KV was there: from the slot and the tree together.",
    Attr.FINISH_REASONS: "One: `stop`, `length`, or `abort`.",
    Attr.MAX_TOKENS: "How many tokens may be generated.",
    Attr.RPC_SYSTEM: "Always `grpc`.",
    Attr.RPC_SERVICE: "The service that was called.",
    Attr.RPC_METHOD: "Its method.",
    Attr.RPC_STATUS: "The number of the call's status.",
    Attr.ERROR_TYPE: "Why it failed or was broken off: a status of gRPC, or the reason of an abort.",
    Attr.LINK: "What the linked span is to this one: see [links](#links).",
    Attr.TURN_ID: "The client's name of the turn.",
    Attr.TURN_NUMBER: "The server's number of it, as `request` in owners.",
    Attr.PARENT_TURN_ID: "The turn of an ordinary session that it follows.",
    Attr.OUTCOME: "How the turn ended: a finish reason or the reason of an abort.",
    Attr.COMMITTED: "Whether the turn became part of its session.",
    Attr.DETAIL: "What the end says beside its reason, for people.",
    Attr.ATTEMPT: "1 at first, and one more with each retraction.",
    Attr.RETRACTIONS: "How often it gave its KV back to make room.",
    Attr.QUEUE_S: "Seconds until its first admission.",
    Attr.NEW_TOKENS: "Tokens of the prompt that came with this turn.",
    Attr.SLOT_TOKENS: "Tokens of the prompt whose KV the session's slot had.",
    Attr.TREE_TOKENS: "Tokens of the prompt whose KV the prefix cache had.",
    Attr.COMPUTED_TOKENS: "Tokens of the prompt whose KV had to be computed.",
    Attr.HISTORY_TOKENS: "Tokens that the session has then.",
    Attr.SESSION_NUMBER: "The server's number of the session, as `session` in owners.",
    Attr.STREAMING: "Whether it is a streaming session, with a slot.",
    Attr.SESSION_REASON: "Why the session was closed: `session_closed` or `session_expired`.",
    Attr.SESSION_TURNS: "Turns that it was given.",
    Attr.PHASE: "`open` or `close`.",
    Attr.MOVE: "The kind of the change of owner.",
    Attr.FROM: "Whose the KV was, as `session 3`.",
    Attr.TO: "Whose it is now.",
    Attr.POOL: "`full`, `swa`, `mamba` or `rows`.",
    Attr.OWNER: "The term of the pool's equation: `available`, `evictable`, `protected`, `session_held`, `uncached`.",
    Attr.FULL_PAGES: "Pages of full attention that went.",
    Attr.SWA_PAGES: "Pages of sliding windows that went.",
    Attr.STATES: "State slots that went.",
    Attr.ROWS: "Request rows that went.",
    Attr.KV_TOKENS: "Tokens of KV that the slot has, or had.",
    Attr.GRANTED: "Pages that it was given.",
    Attr.DONATED: "Pages that it gave to the prefix cache.",
    Attr.RELEASED: "Pages that it gave back.",
    Attr.EVICTED: "Pages that the prefix cache gave up for it.",
    Attr.STEP: "Number of the newest plan then.",
    Attr.STEP_ROWS: "Turns in the batch.",
    Attr.STEP_TOKENS: "Tokens that it computes.",
    Attr.STEP_HOST_S: "Seconds of the event loop that it took.",
    Attr.STEP_DEVICE_S: "Seconds of the device that it took.",
    Attr.START: "Position of the first token.",
    Attr.TOKENS: "How many, from there.",
    Attr.EVENTS_LOST: "Events of the span that found no place in it.",
    Attr.SLOT_FROM: "State of the slot before.",
    Attr.SLOT_TO: "State of the slot after.",
    Attr.SOURCE: "Where KV came from: `slot`, `tree` (the prefix cache), or `computed`.",
    Attr.SIGNAL: "Which telemetry: `spans`, `metrics`, `kv_events` (of `Admin.KvEvents`) or `kv_feed` (for routers).",
}
