"""Every name that telemetry tells the world: spans, attributes, span events, links and metrics.

`gen_ai.*`, `session.id`, `rpc.*`, `error.type` are OpenTelemetry's semantic conventions, written out here because the
Python package's constants for them are deprecated and moving; `tenure.*` is ours. docs/telemetry.md is generated from
this file.
"""

from dataclasses import dataclass
from enum import StrEnum

SCOPE = "tenure"
"""Instrumentation scope of spans and metrics."""


class SpanName(StrEnum):
    """Spans that are not named after what they do to something. See `kv_span_name` and `call_span_name`."""

    SESSION = "session"
    TURN = "turn"
    QUEUE = "turn.queue"
    PREFILL = "turn.prefill"
    DECODE = "turn.decode"
    STEP = "step"


def kv_span_name(move: str) -> str:
    """Of a change of owner: `kv.park`, `kv.lend`, `kv.return`, `kv.demote`, `kv.publish`, `kv.release`, ..."""
    return f"kv.{move}"


def call_span_name(operation: str, model: str) -> str:
    """Of a call: `{operation} {model}` for turns, as the GenAI conventions say; else the method alone."""
    return f"{operation} {model}" if model else operation


class EventName(StrEnum):
    """Facts inside a span."""

    CHUNK = "chunk"
    """A part of the prompt went into a step."""
    RETRACTED = "retracted"
    FIRST_TOKEN = "first_token"
    COMMIT = "commit"
    """The turn is finished and is being stored."""
    SLOT = "slot"
    """The session's slot went from one state to another."""


class Relation(StrEnum):
    """What a linked span is to the one with the link: attribute `tenure.link`."""

    PREVIOUS_TURN = "previous_turn"
    """The turn that this one follows: the KV comes from there."""
    PREVIOUS_HOLDER = "previous_holder"
    """The span in which the units came to whom they were taken from."""
    TURN = "turn"
    """A turn of the session, or of the step."""
    OPENED = "opened"
    """The span at which the session was opened."""
    FORKED_FROM = "forked_from"
    """The last turn of the session that this one was forked from."""
    RESUMED = "resumed"
    """The turn whose stream a call resumes or attaches to."""


class Attr(StrEnum):
    """Attributes of spans, and labels of metrics."""

    SESSION_ID = "session.id"
    CONVERSATION_ID = "gen_ai.conversation.id"
    OPERATION = "gen_ai.operation.name"
    PROVIDER = "gen_ai.provider.name"
    REQUEST_MODEL = "gen_ai.request.model"
    INPUT_TOKENS = "gen_ai.usage.input_tokens"
    OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
    CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
    FINISH_REASONS = "gen_ai.response.finish_reasons"
    MAX_TOKENS = "gen_ai.request.max_tokens"
    RPC_SYSTEM = "rpc.system"
    RPC_SERVICE = "rpc.service"
    RPC_METHOD = "rpc.method"
    RPC_STATUS = "rpc.grpc.status_code"
    ERROR_TYPE = "error.type"
    LINK = "tenure.link"
    TURN_ID = "tenure.turn.id"
    TURN_NUMBER = "tenure.turn.number"
    PARENT_TURN_ID = "tenure.turn.parent_id"
    OUTCOME = "tenure.turn.outcome"
    COMMITTED = "tenure.turn.committed"
    DETAIL = "tenure.turn.detail"
    ATTEMPT = "tenure.turn.attempt"
    RETRACTIONS = "tenure.turn.retractions"
    QUEUE_S = "tenure.turn.queue_time"
    NEW_TOKENS = "tenure.tokens.new"
    SLOT_TOKENS = "tenure.tokens.from_slot"
    TREE_TOKENS = "tenure.tokens.from_tree"
    COMPUTED_TOKENS = "tenure.tokens.computed"
    HISTORY_TOKENS = "tenure.session.history_tokens"
    SESSION_NUMBER = "tenure.session.number"
    STREAMING = "tenure.session.streaming"
    SESSION_REASON = "tenure.session.reason"
    SESSION_TURNS = "tenure.session.turns"
    PHASE = "tenure.session.phase"
    MOVE = "tenure.kv.move"
    FROM = "tenure.kv.from"
    TO = "tenure.kv.to"
    POOL = "tenure.pool"
    OWNER = "tenure.owner"
    FULL_PAGES = "tenure.kv.full_pages"
    SWA_PAGES = "tenure.kv.swa_pages"
    STATES = "tenure.kv.states"
    ROWS = "tenure.kv.rows"
    KV_TOKENS = "tenure.kv.tokens"
    GRANTED = "tenure.kv.granted"
    DONATED = "tenure.kv.donated"
    RELEASED = "tenure.kv.released"
    EVICTED = "tenure.kv.evicted"
    STEP = "tenure.step.number"
    STEP_ROWS = "tenure.step.rows"
    STEP_TOKENS = "tenure.step.tokens"
    STEP_HOST_S = "tenure.step.host_time"
    STEP_DEVICE_S = "tenure.step.device_time"
    START = "tenure.tokens.start"
    TOKENS = "tenure.tokens.count"
    EVENTS_LOST = "tenure.events_lost"
    SLOT_FROM = "tenure.slot.from"
    SLOT_TO = "tenure.slot.to"
    SOURCE = "tenure.source"
    SIGNAL = "tenure.signal"


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """`unit` as in UCUM: `s`, or `{page}` for a count of something."""

    name: str
    kind: Kind
    unit: str
    description: str
    labels: tuple[Attr, ...] = ()
    buckets: tuple[float, ...] = ()


class MetricName(StrEnum):
    """Metrics by their OpenTelemetry names; telemetry/metrics/catalogue.py says what each counts."""

    TIME_TO_FIRST_TOKEN = "gen_ai.server.time_to_first_token"
    TIME_PER_OUTPUT_TOKEN = "gen_ai.server.time_per_output_token"
    REQUEST_DURATION = "gen_ai.server.request.duration"
    POOL_UNITS = "tenure.pool.units"
    POOL_SIZE = "tenure.pool.size"
    POOL_DRAINING = "tenure.pool.draining"
    POOL_QUARANTINED = "tenure.pool.quarantined"
    KV_MOVES = "tenure.kv.moves"
    KV_MOVED = "tenure.kv.moved"
    KV_EVENTS = "tenure.kv.events"
    EVICTIONS = "tenure.evictions"
    DEMOTIONS = "tenure.demotions"
    RETRACTIONS = "tenure.retractions"
    PROMPT_TOKENS = "tenure.prompt.tokens"
    PROMPT_CONTEXT = "tenure.prompt.context"
    GENERATED_TOKENS = "tenure.generated.tokens"
    TURNS_ACCEPTED = "tenure.turns.accepted"
    TURNS_ENDED = "tenure.turns.ended"
    TURNS_WAITING = "tenure.turns.waiting"
    TURNS_RUNNING = "tenure.turns.running"
    SESSIONS_OPENED = "tenure.sessions.opened"
    SESSIONS_CLOSED = "tenure.sessions.closed"
    SESSIONS_OPEN = "tenure.sessions.open"
    STEPS = "tenure.steps"
    STEPS_FAILED = "tenure.steps.failed"
    STEP_HOST_TIME = "tenure.step.host.time"
    STEP_DEVICE_TIME = "tenure.step.device.time"
    LOOP_LAG = "tenure.loop.lag"
    TELEMETRY_SENT = "tenure.telemetry.sent"
    TELEMETRY_DROPPED = "tenure.telemetry.dropped"


class Term(StrEnum):
    """Values of `tenure.owner`: the five terms that a pool's size is the sum of."""

    AVAILABLE = "available"
    EVICTABLE = "evictable"
    PROTECTED = "protected"
    SESSION_HELD = "session_held"
    UNCACHED = "uncached"


class Source(StrEnum):
    """Values of `tenure.source`: where the KV of a prompt came from."""

    SLOT = "slot"
    TREE = "tree"
    COMPUTED = "computed"
