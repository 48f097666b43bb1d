"""What the services know of an engine: local now, remote later, the same Protocol."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, Self

from engine.core.commands import AbortReason, FinishReason, Flushed, Fork, Lengths, OnAbort, TurnMode
from engine.core.errors import Refusal
from engine.core.events import Usage
from engine.core.faults import Fault
from engine.core.findings import Report
from engine.core.ids import TOKEN_BYTES, SessionId, TurnId, count_ids, unpack_ids
from engine.core.image import BooksImage
from engine.core.ownership import PoolKind
from engine.core.provenance import UnitHistory
from engine.core.sampling import GREEDY, Sampling
from engine.core.snapshot import Snapshot
from engine.executor.protocol import Capabilities
from engine.runtime.incidents import Incident


@dataclass(frozen=True, slots=True)
class TurnOptions:
    """How a turn relates to its session and to other turns: the fields of `Submit` of these names, with its defaults.

    Whoever stands between a client and the core hands them on as they are.
    """

    mode: TurnMode = TurnMode.APPEND
    offset: int | None = None
    drop_previous_output: bool = False
    on_abort: OnAbort = OnAbort.ROLL_BACK
    priority: int | None = None
    draft_tokens: int = 0


DEFAULT_OPTIONS = TurnOptions()


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf something is done: where it stands in the caller's trace."""

    trace_id: str = ""
    """32 hexadecimal digits."""
    span: str = ""
    """The caller's span, for whoever draws traces; opaque to the engine."""


NOBODY = Caller()


@dataclass(frozen=True, slots=True)
class Base:
    """What the input of a turn was made to follow: how many ids, and the last of them."""

    num_ids: int
    last_id: int | None

    @classmethod
    def of(cls, ids: bytes) -> Self:
        """`ids`: int32 bytes."""
        return cls(count_ids(ids), unpack_ids(ids[-TOKEN_BYTES:])[0] if ids else None)


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One validated turn. `input_ids` are int32 bytes: the new ids only."""

    turn_id: TurnId
    input_ids: bytes
    session_id: SessionId | None = None
    parent: TurnId | None = None
    max_tokens: int | None = None
    ignore_eos: bool = False
    sampling: Sampling = GREEDY
    stop_strings: tuple[str, ...] = ()
    """Texts that end the answer; none of them is empty."""
    content: bytes = b""
    """What the client asked for under a turn id of its own, as a digest: equal digests are the same turn.

    Empty when the server chose the id. Only turns with a content outlive a lost stream, and are replayed.
    """
    base: Base | None = None
    """What `input_ids` were made to follow; refused when the session has moved on. None: not checked."""
    deadline_s: float | None = None
    """Seconds from now after which the turn is aborted."""
    caller: Caller = NOBODY
    options: TurnOptions = DEFAULT_OPTIONS


@dataclass(frozen=True, slots=True)
class Started:
    """First event of a turn: what was accepted."""

    context_len: int
    new_len: int
    max_tokens: int
    seed: int = 0
    attempt: int = 1
    """How often a turn of this id was accepted, this time included."""


@dataclass(frozen=True, slots=True)
class Delta:
    """New ids and the text that became certain with them.

    Text lags behind by an unfinished character, or by what may be the beginning of a stop string. What lags until the
    end comes in one last Delta without ids.
    """

    start: int
    """Index of the first id in the turn's output."""
    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Last event of a turn."""

    outcome: FinishReason | AbortReason
    usage: Usage
    history_len: int | None
    is_committed: bool
    """As in `TurnEnded`."""
    detail: str = ""
    stop_string: str | None = None
    """The stop string that ended the answer, if one did."""
    drafted: int = 0
    """Ids that were guessed and verified."""
    accepted: int = 0
    """How many of these were right."""
    incident_id: str = ""
    """Of the incident that ended the turn, if one did."""


TurnEvent = Started | Delta | Finished


class EngineClosed(Exception):
    """The engine is shutting down or has failed; nothing new is taken."""


class EngineFailed(EngineClosed):
    """The engine has halted: books or executor can not be trusted. Streams that were open raise it as their end."""

    def __init__(self, message: str, incident_id: str = "") -> None:
        """`incident_id`: under which it is in the log."""
        super().__init__(message, incident_id)
        self.incident_id = incident_id

    def __str__(self) -> str:
        return str(self.args[0])


class StreamReason(StrEnum):
    """Why a turn's stream can not be had, or not any longer."""

    TURN_UNKNOWN = "TURN_UNKNOWN"
    """It never ran, or was rolled back, or was kept long enough."""
    TURN_FORGOTTEN = "TURN_FORGOTTEN"
    """It is finished and part of its session, but its stream is no longer kept."""
    ATTEMPT_CHANGED = "ATTEMPT_CHANGED"
    """The ids that the reader holds are not those of this attempt."""
    FROM_TOKEN_INVALID = "FROM_TOKEN_INVALID"
    """The turn has not so many ids."""
    HISTORY_MOVED = "HISTORY_MOVED"
    """The input was made for another history than the session has by now."""
    SLOW_READER = "SLOW_READER"
    """Too many ids waited for this reader. The turn itself goes on, and can be resumed."""


class StreamRefusal(Exception):
    """A stream was refused, or ended before its turn. Fields as those of `Refusal`."""

    def __init__(
        self,
        reason: StreamReason,
        message: str,
        *,
        field: str | None = None,
        value: int | str | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.field = field
        self.value = value
        self.limit = limit


Failure = EngineClosed | StreamRefusal | Refusal
"""How a stream ends that has no Finished."""


def again(failure: Failure) -> Failure:
    """The same failure for one more to raise: what several raise collects the traceback of each."""
    match failure:
        case EngineClosed():
            return type(failure)(*failure.args)
        case StreamRefusal():
            facts = (failure.field, failure.value, failure.limit)
            return StreamRefusal(failure.reason, failure.message, field=facts[0], value=facts[1], limit=facts[2])
        case Refusal():
            facts = (failure.field, failure.value, failure.limit)
            return Refusal(failure.reason, failure.message, field=facts[0], value=facts[1], limit=facts[2])


class TurnStream(Protocol):
    """The events of one turn, for one reader: Started, Deltas, Finished, then StopAsyncIteration.

    Raises EngineFailed when the engine halts before the turn has ended, StreamRefusal when the reader falls too far
    behind a turn that can be resumed, and Refusal when it attached to a turn that was then not accepted.
    """

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> TurnEvent: ...

    async def aclose(self) -> None:
        """Leaves. Before Finished the last reader's leaving detaches the turn. Idempotent, does not wait."""
        ...


class EngineHandle(Protocol):
    """May be called from any task of the loop that runs the engine. Refusals arrive as `engine.core.errors.Refusal`."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def context_len(self) -> int:
        """Tokens that a sequence may have: what the executor can, cut by the configuration."""
        ...

    async def open_session(
        self,
        session_id: SessionId,
        *,
        streaming: bool,
        idle_timeout_s: float | None = None,
        priority: int = 0,
        caller: Caller = NOBODY,
    ) -> None:
        """Opens a session. A caller that is cancelled meanwhile leaves none behind."""
        ...

    async def fork_session(self, request: Fork) -> Lengths:
        """Opens a session with the history of another. A caller that is cancelled meanwhile leaves none behind."""
        ...

    async def truncate_session(self, session_id: SessionId, length: int) -> Lengths:
        """Rewinds a session to its first `length` tokens."""
        ...

    async def close_session(self, session_id: SessionId, *, drain: bool = False, caller: Caller = NOBODY) -> None:
        """Idempotent. Returns once the session's turns have ended: by themselves with `drain`, else as aborted."""
        ...

    async def submit(self, turn: TurnRequest) -> TurnStream:
        """Returns once the turn is accepted. Deltas are coalesced when the reader is slow.

        A turn with a content that runs or is recorded already is attached to, as by `attach`. Raises StreamRefusal,
        HISTORY_MOVED, when it would follow something else than `base` says.

        Closing the last stream of a turn (or cancelling its reader) before Finished detaches it: with a content it runs
        on for the grace time and is then aborted as DISCONNECT, without one it is aborted at once.
        """
        ...

    async def attach(self, session_id: SessionId | None, turn_id: TurnId, content: bytes) -> TurnStream | None:
        """The stream, from its beginning, of the running or recorded turn of that name; None when there is none.

        Waits for the end of one that is being aborted. Raises Refusal, TURN_EXISTS, when its content is another one,
        and StreamRefusal, TURN_FORGOTTEN.
        """
        ...

    async def resume(
        self, session_id: SessionId | None, turn_id: TurnId, from_token: int, held_digest: bytes | None = None
    ) -> TurnStream:
        """The stream of a running or recorded turn, from id `from_token` on, with Started before it.

        `held_digest`: SHA-256 of the ids before that, as 32-bit little-endian integers; None is not checked.
        Raises StreamRefusal: TURN_UNKNOWN, TURN_FORGOTTEN, ATTEMPT_CHANGED, FROM_TOKEN_INVALID.
        """
        ...

    async def abort(self, session_id: SessionId | None, turn_id: TurnId) -> None:
        """Ends the live turn of that name as its `on_abort` says and returns once it has ended. Idempotent."""
        ...

    async def find_base(
        self, session_id: SessionId, parent: TurnId | None, options: TurnOptions = DEFAULT_OPTIONS
    ) -> bytes:
        """The ids (int32 bytes) that such a turn would follow: `Core.find_base`."""
        ...

    async def snapshot(self) -> Snapshot: ...

    async def check(self) -> Report:
        """Proves the books page by page, now. The engine acts on a finding at its own next check."""
        ...

    async def explain(self, pool: PoolKind, unit: int) -> UnitHistory:
        """Who owns a unit, and who did before. Raises IndexError for one that the pool does not have."""
        ...

    @property
    def last_seq(self) -> int:
        """Number of the last event about the books, told already or not: `seq` of an image taken now."""
        ...

    @property
    def is_over(self) -> bool:
        """It has stopped or failed: nothing more happens."""
        ...

    async def image(self) -> BooksImage:
        """Who owns each unit, as all events up to its `seq` have made it. O(units)."""
        ...

    async def flush(self) -> Flushed:
        """Frees all that the prefix cache holds and nobody uses."""
        ...

    async def incidents(self) -> tuple[Incident, ...]:
        """What went wrong lately, oldest first."""
        ...

    async def dump(self, incident_id: str | None = None) -> str | None:
        """All that is known of this moment, as lines of text, or of an incident: None when its dump is not kept."""
        ...

    async def plant(self, fault: Fault) -> UnitHistory:
        """Breaks the books on purpose, and tells of which unit. Raises Refusal, FAULT_IMPOSSIBLE."""
        ...
