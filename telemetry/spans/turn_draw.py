"""How one turn is drawn: its span, the span of the phase that it is in, and how KV came to it."""

from dataclasses import dataclass, field

from engine.core.commands import AbortReason, FinishReason
from engine.core.events import TurnAccepted, TurnAdmitted, TurnEnded, TurnRetracted
from engine.core.ids import SessionId, TurnId
from engine.core.ownership import Move, PoolKind
from telemetry.names import Attr, EventName, SpanName
from telemetry.spans.open_span import OpenSpan
from telemetry.spans.record import SpanContext, SpanStatus, Value
from telemetry.spans.tracer import Tracer

_ABORT = "abort"
"""The finish reason of whatever did not finish, as GenAI clients know it."""
_COUNTED = {Move.GRANT: Attr.GRANTED, Move.DONATE: Attr.DONATED, Move.RELEASE: Attr.RELEASED}


@dataclass(slots=True, eq=False)
class TurnDraw:
    """Lives from the turn's acceptance until nothing of it is left: its end, and the last of its units."""

    span: OpenSpan
    phase: OpenSpan
    turn_id: TurnId
    session_id: SessionId | None
    session_uid: int
    accepted_ns: int
    tracer: Tracer
    kv: SpanContext | None = None
    """The span in which a session's KV was lent to it."""
    attempt: int = 1
    is_admitted: bool = False
    is_ended: bool = False
    num_units: int = 0
    """Of all pools."""
    prompt_stop: int = 0
    """Tokens that have to have KV before it generates."""
    pages: dict[Move, int] = field(default_factory=dict)
    """Pages of the full pool that moved, by the moves that are only counted."""

    @classmethod
    def accept(
        cls, tracer: Tracer, event: TurnAccepted, parent: SpanContext | None, session_uid: int, now_ns: int
    ) -> "TurnDraw":
        span = OpenSpan.child(tracer, SpanName.TURN, parent, now_ns)
        span.attributes |= {
            Attr.TURN_ID: event.turn_id,
            Attr.TURN_NUMBER: event.rid,
            Attr.INPUT_TOKENS: event.context_len,
            Attr.NEW_TOKENS: event.new_len,
            Attr.MAX_TOKENS: event.max_tokens,
        }
        if event.session_id is not None:
            span.attributes |= {Attr.SESSION_ID: event.session_id, Attr.CONVERSATION_ID: event.session_id}
        if event.parent is not None:
            span.attributes[Attr.PARENT_TURN_ID] = event.parent
        queue = OpenSpan.child(tracer, SpanName.QUEUE, span.context, now_ns)
        queue.attributes[Attr.ATTEMPT] = 1
        return cls(span, queue, event.turn_id, event.session_id, session_uid, now_ns, tracer)

    @property
    def holder(self) -> SpanContext:
        """The span in which its units came to it."""
        return self.kv or self.span.context

    def enter(self, name: SpanName, now_ns: int) -> None:
        """The phase ends, and another one begins."""
        self._leave_phase(now_ns)
        self.phase = OpenSpan.child(self.tracer, name, self.span.context, now_ns)
        self.phase.attributes[Attr.ATTEMPT] = self.attempt

    def _leave_phase(self, now_ns: int) -> None:
        self.tracer.end(self.phase.end(now_ns))

    def admit(self, event: TurnAdmitted, now_ns: int) -> None:
        if not self.is_admitted:
            self.is_admitted = True
            self.span.attributes[Attr.QUEUE_S] = (now_ns - self.accepted_ns) / 1e9
        self.attempt = event.attempt
        self.prompt_stop = event.tokens_from_slot + event.tokens_from_tree + event.tokens_to_compute
        self.enter(SpanName.PREFILL, now_ns)
        self.phase.attributes |= {
            Attr.SLOT_TOKENS: event.tokens_from_slot,
            Attr.TREE_TOKENS: event.tokens_from_tree,
            Attr.COMPUTED_TOKENS: event.tokens_to_compute,
        }

    def chunk(self, start: int, num_tokens: int, step: int, now_ns: int) -> None:
        if start >= self.prompt_stop:
            return  # planned ahead: the first token's own KV
        facts: dict[str, Value] = {Attr.START: start, Attr.TOKENS: num_tokens, Attr.STEP: step}
        self.phase.add_event(EventName.CHUNK, now_ns, facts)

    def retract(self, event: TurnRetracted, now_ns: int) -> None:
        self.phase.add_event(EventName.RETRACTED, now_ns, {Attr.OUTPUT_TOKENS: event.output_len})
        self.attempt += 1
        self.enter(SpanName.QUEUE, now_ns)

    def count(self, move: Move, pool: PoolKind, num_units: int) -> None:
        if pool is PoolKind.FULL and move in _COUNTED:
            self.pages[move] = self.pages.get(move, 0) + num_units

    def end(self, event: TurnEnded, now_ns: int) -> None:
        usage, attributes = event.usage, self.span.attributes
        attributes |= {
            Attr.OUTCOME: event.outcome,
            Attr.FINISH_REASONS: (event.outcome if isinstance(event.outcome, FinishReason) else _ABORT,),
            Attr.INPUT_TOKENS: usage.context_len,
            Attr.OUTPUT_TOKENS: usage.output_len,
            Attr.CACHED_TOKENS: usage.tokens_from_slot + usage.tokens_from_tree,
            Attr.SLOT_TOKENS: usage.tokens_from_slot,
            Attr.TREE_TOKENS: usage.tokens_from_tree,
            Attr.COMPUTED_TOKENS: usage.tokens_computed,
            Attr.RETRACTIONS: usage.retractions,
            Attr.COMMITTED: event.is_committed,
        }
        if event.history_len is not None:
            attributes[Attr.HISTORY_TOKENS] = event.history_len
        if event.detail:
            attributes[Attr.DETAIL] = event.detail
        reason = event.outcome if isinstance(event.outcome, AbortReason) else None
        self._finish(reason, event.detail, now_ns)

    def lose(self, reason: str, now_ns: int) -> None:
        """The engine has gone, and the turn with it, without an ending."""
        self.span.attributes |= {Attr.OUTCOME: reason, Attr.FINISH_REASONS: (_ABORT,)}
        self._finish(reason, "", now_ns)

    def _finish(self, reason: str | None, detail: str, now_ns: int) -> None:
        self._leave_phase(now_ns)
        self.is_ended = True
        attributes = self.span.attributes
        attributes |= {_COUNTED[move]: num_pages for move, num_pages in self.pages.items()}
        if reason is None:
            self.tracer.end(self.span.end(now_ns, SpanStatus.OK))
            return
        attributes[Attr.ERROR_TYPE] = reason
        message = f"{reason}: {detail}" if detail else reason
        self.tracer.end(self.span.end(now_ns, SpanStatus.ERROR, message))
