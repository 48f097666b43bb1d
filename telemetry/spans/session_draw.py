"""What has to be known of a session to draw how its turns and its KV follow each other."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.core.events import SessionClosed, SessionOpened
from engine.core.ids import SessionId, TurnId
from telemetry.names import Attr, Relation, SpanName
from telemetry.spans.open_span import OpenSpan
from telemetry.spans.record import SpanContext
from telemetry.spans.tracer import Tracer

LINKED_TURNS_MAX = 32
"""Newest turns that the span at a session's close links to."""
FOLLOWED_TURNS_MAX = 64
"""Newest turns of a session that a later one can be drawn as following."""
_OPEN, _CLOSE = "open", "close"


@dataclass(slots=True, eq=False)
class SessionDraw:
    """Lives from its opening until it is closed and its slot has nothing left."""

    session_id: SessionId
    uid: int
    streaming: bool
    opened: SpanContext
    has_slot: bool
    is_open: bool = True
    ends: "deque[tuple[int, SpanContext]]" = field(default_factory=lambda: deque(maxlen=FOLLOWED_TURNS_MAX))
    """Streaming: how long the history was at the end of each turn, those before a fork included."""
    forgotten_len: int = 0
    """The same of the newest turn that is not in there any more."""
    home: SpanContext = field(init=False)
    """Where moves of its KV between its turns are drawn: in the trace of its own last turn, or of its opening."""
    held: SpanContext | None = None
    """The span in which its slot got what it holds."""
    kv: SpanContext | None = None
    """The span in which its KV came to where it is now: to its slot, or from there to the cache."""
    is_demoted: bool = False
    """Whether `kv` is where it was taken from the slot."""
    kv_len: int = 0
    """Tokens of KV that its slot held last."""
    num_turns: int = 0
    named: dict[TurnId, SpanContext] = field(default_factory=dict)
    """Ordinary: its turns by name."""
    recent: "deque[SpanContext]" = field(default_factory=lambda: deque(maxlen=LINKED_TURNS_MAX))

    def __post_init__(self) -> None:
        self.home = self.opened

    @property
    def last_turn(self) -> SpanContext | None:
        """Of a streaming session: whose tokens are the end of its history."""
        return self.ends[-1][1] if self.ends else None

    def follow(self, turn_id: TurnId, turn: SpanContext, history_len: int) -> None:
        """A turn became part of it."""
        self.home = turn
        if self.streaming:
            if len(self.ends) == FOLLOWED_TURNS_MAX:
                self.forgotten_len = self.ends[0][0]
            self.ends.append((history_len, turn))
            return
        self.named[turn_id] = turn
        if len(self.named) > FOLLOWED_TURNS_MAX:
            del self.named[next(iter(self.named))]

    def note_turn(self, turn: SpanContext) -> None:
        self.num_turns += 1
        self.recent.append(turn)

    def previous(self, parent: TurnId | None) -> SpanContext | None:
        """The turn that one with this parent follows."""
        if self.streaming:
            return self.last_turn
        return None if parent is None else self.named.get(parent)

    def forget(self, turn_ids: Iterable[TurnId]) -> None:
        for turn_id in turn_ids:
            self.named.pop(turn_id, None)

    def inherit(self, source: "SessionDraw", history_len: int) -> None:
        """It was forked from `source` with so many tokens: its KV comes from there."""
        self.ends.extend(source.ends)
        self.forgotten_len = source.forgotten_len
        self.kv, self.kv_len = source.kv, source.kv_len
        self.named = dict(source.named)
        self.cut(history_len)

    def cut(self, history_len: int) -> None:
        """Its history has so many tokens now. A turn that is cut through is the one that the next follows."""
        if not self.streaming:
            return
        was_cut = None
        while self.ends and self.ends[-1][0] > history_len:
            was_cut = self.ends.pop()
        if was_cut is not None and history_len > (self.ends[-1][0] if self.ends else self.forgotten_len):
            self.ends.append((history_len, was_cut[1]))
        if not history_len:
            self.kv = self.held = None


def draw_opening(tracer: Tracer, event: SessionOpened, caller: SpanContext | None, now_ns: int) -> OpenSpan:
    return _begin(tracer, _OPEN, event, event.streaming, caller, now_ns)


def draw_closing(
    tracer: Tracer, session: SessionDraw, event: SessionClosed, caller: SpanContext | None, now_ns: int
) -> OpenSpan:
    span = _begin(tracer, _CLOSE, event, session.streaming, caller, now_ns)
    span.attributes |= {
        Attr.SESSION_REASON: event.reason,
        Attr.SESSION_TURNS: session.num_turns,
        Attr.HISTORY_TOKENS: event.history_len,
    }
    span.link(session.opened, Relation.OPENED)
    for turn in session.recent:
        span.link(turn, Relation.TURN)
    return span


def _begin(
    tracer: Tracer,
    phase: str,
    event: SessionOpened | SessionClosed,
    streaming: bool,
    caller: SpanContext | None,
    now_ns: int,
) -> OpenSpan:
    span = OpenSpan.child(tracer, SpanName.SESSION, caller, now_ns)
    span.attributes |= {
        Attr.PHASE: phase,
        Attr.SESSION_ID: event.session_id,
        Attr.CONVERSATION_ID: event.session_id,
        Attr.SESSION_NUMBER: event.uid,
        Attr.STREAMING: streaming,
    }
    return span
