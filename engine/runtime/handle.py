"""What the services know of an engine: local now, remote later, the same Protocol."""

from dataclasses import dataclass
from typing import Protocol, Self

from engine.core.commands import AbortReason, FinishReason
from engine.core.events import Usage
from engine.core.ids import SessionId, TurnId
from engine.core.sampling import GREEDY, Sampling
from engine.core.snapshot import Snapshot
from engine.executor.protocol import Capabilities


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
    deadline_s: float | None = None
    """Seconds from now after which the turn is aborted."""
    trace_id: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    """First event of a turn: what was accepted."""

    context_len: int
    new_len: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """New ids and their text. Text may lag behind the ids by an unfinished character, and catches up at the end."""

    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Last event of a turn."""

    outcome: FinishReason | AbortReason
    usage: Usage
    history_len: int | None
    detail: str = ""


TurnEvent = Started | Delta | Finished


class EngineClosed(Exception):
    """The engine is shutting down or has failed; nothing new is taken."""


class EngineFailed(EngineClosed):
    """The engine has halted: books or executor can not be trusted. Streams that were open raise it as their end."""


class TurnStream(Protocol):
    """The events of one turn, for one reader: Started, Deltas, Finished, then StopAsyncIteration.

    Raises EngineFailed when the engine halts before the turn has ended.
    """

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> TurnEvent: ...

    async def aclose(self) -> None:
        """Before Finished: aborts the turn as DISCONNECT. Idempotent, does not wait for the turn's end."""
        ...


class EngineHandle(Protocol):
    """May be called from any task of the loop that runs the engine. Refusals arrive as `engine.core.errors.Refusal`."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def open_session(
        self, session_id: SessionId, *, streaming: bool, idle_timeout_s: float | None = None
    ) -> None: ...

    async def close_session(self, session_id: SessionId) -> None:
        """Idempotent. Returns once the session's turns have ended."""
        ...

    async def submit(self, turn: TurnRequest) -> TurnStream:
        """Returns once the turn is accepted. Deltas are coalesced when the reader is slow.

        Closing the stream (or cancelling its reader) before Finished aborts the turn as DISCONNECT.
        """
        ...

    async def abort(self, session_id: SessionId | None, turn_id: TurnId) -> None:
        """Ends the live turn of that name by roll-back and returns once it has ended. Idempotent."""
        ...

    async def history(self, session_id: SessionId, parent: TurnId | None) -> bytes:
        """`Core.find_history`."""
        ...

    async def snapshot(self) -> Snapshot: ...
