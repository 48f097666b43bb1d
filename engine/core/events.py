"""Every fact that the core tells the world: one frozen class each, and the log that numbers them."""

from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count
from typing import NamedTuple, Protocol

from engine.core.commands import AbortReason, FinishReason
from engine.core.ids import Rid, SessionId, StepNo, TurnId
from engine.core.ownership import Move, Owner, PoolKind


class SlotState(StrEnum):
    """States of a `SessionSlot`; `engine.core.session_cache.SLOT_MOVES` is the table of what may follow what."""

    EMPTY = "empty"
    HELD = "held"
    LENT = "lent"
    COMMITTING = "committing"
    RETURNING = "returning"
    DEMOTED = "demoted"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class KvMoved:
    """Units of one pool changed owner. Replaying these, with Protected, Unprotected and Draining, rebuilds the books.

    `step` is the newest plan at that time, `trace_id` that of the request or session to or from which they went.
    """

    pool: PoolKind
    move: Move
    source: Owner
    target: Owner
    pages: tuple[int, ...]
    step: StepNo
    trace_id: str


@dataclass(frozen=True, slots=True)
class Protected:
    """The lock count of these cache pages went from 0 to 1. Each pool has lock counts of its own."""

    pages: tuple[int, ...]
    pool: PoolKind = PoolKind.FULL


@dataclass(frozen=True, slots=True)
class Unprotected:
    """The lock count of these cache pages went from 1 to 0."""

    pages: tuple[int, ...]
    pool: PoolKind = PoolKind.FULL


@dataclass(frozen=True, slots=True)
class Draining:
    """These pages were given up, but stay with `owner` until plan `until` is answered. Their next move ends it."""

    owner: Owner
    pages: tuple[int, ...]
    until: StepNo
    pool: PoolKind = PoolKind.FULL


@dataclass(frozen=True, slots=True)
class PrefixStored:
    """What units of the cache stand for: follows the move that brought them there. They keep it until they leave CACHE.

    path from the root:  | parent page | pages[0] | pages[1] | ...      ids: page_size tokens for each page
    """

    pool: PoolKind
    pages: tuple[int, ...]
    ids: bytes = b""
    """Of the full pool: the tokens of `pages`, as int32 bytes."""
    parent: int | None = None
    """Of the full pool: the page before the first; None where the path begins."""
    namespace: str = ""
    """Of the full pool, where the path begins. What follows a parent is in the parent's."""
    beside: tuple[int, ...] = ()
    """Of the other pools: the full pages of the same tokens, one for each SWA page. A state stands for all tokens up to
    the end of its page."""


@dataclass(frozen=True, slots=True)
class CacheFlushed:
    """Follows the last evictions of a Flush, or of several that went bit by bit: nothing unused is left. So many units
    of all pools went free by the last one."""

    num_units: int


@dataclass(frozen=True, slots=True)
class SlotChanged:
    """A session's slot went from one state to another. `kv_committed_len`: tokens of KV it keeps now."""

    session_id: SessionId
    source: SlotState
    target: SlotState
    kv_committed_len: int
    uid: int


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """`uid` names the session in `Owner`s: a name may be opened again while its predecessor's KV still drains."""

    session_id: SessionId
    streaming: bool
    trace_id: str
    uid: int
    caller_span: str = ""


@dataclass(frozen=True, slots=True)
class SessionClosed:
    session_id: SessionId
    reason: AbortReason
    """SESSION_CLOSED or SESSION_EXPIRED."""
    history_len: int
    """Tokens of a streaming session; 0 for an ordinary one, which has as many histories as branches."""
    uid: int
    trace_id: str = ""
    """Of the Close; empty when it expired."""
    caller_span: str = ""


@dataclass(frozen=True, slots=True)
class SessionForked:
    """Follows the SessionOpened of the new session."""

    session_id: SessionId
    uid: int
    source_id: SessionId
    source_uid: int
    history_len: int
    """As in `Lengths`."""
    kv_len: int


@dataclass(frozen=True, slots=True)
class SessionTruncated:
    session_id: SessionId
    uid: int
    history_len: int
    """As in `Lengths`."""
    kv_len: int


@dataclass(frozen=True, slots=True)
class TurnsForgotten:
    """Finished turns that are no longer what they were: gone from their session, or cut. Their records are void.

    The name of one that is gone is free. In an ordinary session one that was cut stays, shorter, under its name.
    """

    session_id: SessionId
    turn_ids: tuple[TurnId, ...]


@dataclass(frozen=True, slots=True)
class TurnAccepted:
    """The turn waits for room. `context_len` counts the session's history and the new ids."""

    rid: Rid
    turn_id: TurnId
    session_id: SessionId | None
    context_len: int
    new_len: int
    max_tokens: int
    """What was accepted: the least of what was asked, what the context and what the empty pool leave."""
    trace_id: str
    caller_span: str = ""
    parent: TurnId | None = None
    """The turn of an ordinary session that it follows."""


@dataclass(frozen=True, slots=True)
class TurnAdmitted:
    """The turn has its lease and its row. `attempt` is 1 at first and grows with each retraction."""

    rid: Rid
    attempt: int
    tokens_from_slot: int
    tokens_from_tree: int
    tokens_to_compute: int


class TokensSampled(NamedTuple):
    """Ids generated by one answered step; the first has index `output_start` in the turn's output.

    Of `drafted` guessed ids the step verified, len(token_ids) - 1 were right.
    """

    rid: Rid
    output_start: int
    token_ids: tuple[int, ...]
    drafted: int = 0


@dataclass(frozen=True, slots=True)
class TurnRetracted:
    """The turn gave its KV back to make room, keeps its ids, and waits again."""

    rid: Rid
    output_len: int


@dataclass(frozen=True, slots=True)
class CommitRequested:
    """The turn is finished: the shell stores what must be stored, then answers CommitAck or CommitFailed.

    `reason` is an AbortReason for a turn that was broken off and keeps what it was given. Until the answer comes the
    turn keeps its pages, whoever needs them: the shell has to bound the time that it takes.
    """

    rid: Rid
    reason: FinishReason | AbortReason
    output_len: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Where the KV of a turn's context came from at its first admission: context_len = slot + tree + computed.

    A turn that ended before it was admitted has all three at 0.
    """

    context_len: int
    tokens_from_slot: int
    tokens_from_tree: int
    tokens_computed: int
    output_len: int = 0
    retractions: int = 0

    def with_output(self, output_len: int, retractions: int) -> "Usage":
        return replace(self, output_len=output_len, retractions=retractions)


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The one terminal event of an accepted turn. A FinishReason is a commit, an AbortReason mostly a roll-back."""

    rid: Rid
    turn_id: TurnId
    session_id: SessionId | None
    outcome: FinishReason | AbortReason
    usage: Usage
    history_len: int | None
    """Tokens the session consists of now; in an ordinary session those of this turn's path. None: no session."""
    is_committed: bool
    """Whether the turn is part of its session: always with a FinishReason, with an AbortReason for a kept abort."""
    detail: str = ""


Share = tuple[Rid, int, int]
"""A turn's part of a step: it computes `[1]`, the first position, and `[2]` positions from there."""


@dataclass(frozen=True, slots=True)
class StepPlanned:
    step: StepNo
    num_rows: int
    num_tokens: int
    shares: tuple[Share, ...] = ()


@dataclass(frozen=True, slots=True)
class StepAnswered:
    step: StepNo
    failure: str | None


CoreEvent = (
    KvMoved
    | Protected
    | Unprotected
    | Draining
    | PrefixStored
    | CacheFlushed
    | SlotChanged
    | SessionOpened
    | SessionClosed
    | SessionForked
    | SessionTruncated
    | TurnsForgotten
    | TurnAccepted
    | TurnAdmitted
    | TokensSampled
    | TurnRetracted
    | CommitRequested
    | TurnEnded
    | StepPlanned
    | StepAnswered
)


class Numbered(NamedTuple):
    """An event with its place in the one ordered stream, from 1 without gaps."""

    seq: int
    event: CoreEvent


class EventSink(Protocol):
    """Takes what the core tells. Must not block and must not raise; what it can't take it counts as dropped."""

    def publish(self, events: tuple[Numbered, ...], now: float) -> None:
        """`now` is the monotonic time in seconds at which the core was told what led to these events."""
        ...


class EventLog:
    """Collects facts until the shell takes them. Filled by the core only."""

    def __init__(self) -> None:
        self._next_seq = 1
        self._pending: list[CoreEvent] = []
        self.emit = self._pending.append

    @property
    def last_seq(self) -> int:
        """Number of the last event, taken or not; 0 before the first."""
        return self._next_seq - 1 + len(self._pending)

    def take(self) -> tuple[Numbered, ...]:
        """What was told since the last call, in order."""
        taken = tuple(map(Numbered, count(self._next_seq), self._pending))
        self._next_seq += len(taken)
        self._pending.clear()
        return taken
