"""One turn, as its client sees it: an async iterable of pieces that knows its own end."""

import asyncio
import weakref
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Self

from grpc import aio

from protos.v1 import generate_pb2, generate_pb2_grpc, types_pb2
from services.client.errors import TenureError
from services.client.live import LiveTurns
from services.client.stream import Patience, TurnMessages
from services.client.trace_headers import trace_headers

ABORT_TIMEOUT_S = 2.0
"""How long leaving a turn early may take; after it the connection is simply let go."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some more of the answer. The text may lag behind the ids by an unfinished character."""

    text: str
    token_ids: tuple[int, ...]


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a turn cost, in tokens: context_tokens = tokens_from_slot + tokens_from_tree + tokens_computed."""

    context_tokens: int
    tokens_from_slot: int
    tokens_from_tree: int
    tokens_computed: int
    completion_tokens: int
    retractions: int
    drafted_tokens: int = 0
    """Guessed and verified, with `draft_tokens`."""
    accepted_tokens: int = 0
    """How many of these were right."""


_FINISH_REASONS: dict[int, FinishReason] = {
    types_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    types_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    types_pb2.FINISH_REASON_ABORT: FinishReason.ABORT,
}


class Turn:
    """Iterate it once: `async for piece in turn`. Raises TenureError when it is refused or aborted.

    Whoever leaves early has the turn aborted on the server, which rolls the session back to what it was before, or with
    `keep_on_abort` keeps what the turn was given. A reader that is cancelled while it waits for a piece goes on only
    when that is done. After a `break`, or an exception in the loop, the abort is on its way at once, and it is done at
    the latest when the next turn of a streaming session begins, and when the session or the client is closed.
    `async with turn` and `leave()` have it done there and then.

    A stream that is lost is resumed, with every token once. After the end `usage`, `finish_reason` and `session_len`
    are set.
    """

    def __init__(
        self,
        # In quotes: the class exists in the published types only.
        stub: "generate_pb2_grpc.GenerateAsyncStub",
        request: generate_pb2.GenerateRequest,
        *,
        patience: Patience,
        live: LiveTurns,
        one_at_a_time: bool = False,
    ) -> None:
        """`live` has it while it runs. With `one_at_a_time`, those in there that were broken off are ended first."""
        self.turn_id: str = request.turn_id
        self.new_tokens: int | None = None
        """Tokens that came new with this turn; set once it is accepted."""
        self.max_tokens: int | None = None
        """Most tokens that will be generated; set once it is accepted."""
        self.seed: int | None = None
        """What the tokens are drawn with; set once it is accepted."""
        self.attempt: int | None = None
        """How often a turn of this id was accepted, this time included; set once it is."""
        self.trace_id: str | None = None
        """W3C trace id under which the server draws it; set once it is accepted."""
        self.usage: Usage | None = None
        self.finish_reason: FinishReason | None = None
        self.is_committed: bool | None = None
        """Whether the turn is part of its session now: also one that was aborted and kept.

        None while nobody knows: until its end was told. It never is when the turn was refused, or when its stream, or
        the time that the caller gave, ended first. The same call under this `turn_id` then attaches to it, replays
        it, or runs it anew."""
        self.stop_string: str | None = None
        """The stop string that ended the answer, if one did."""
        self.session_len: int | None = None
        """Tokens that the session consists of after the turn; None without a session."""
        self._stub = stub
        self._request = request
        self._patience = patience
        self._live = live
        self._one_at_a_time = one_at_a_time
        self._reader: weakref.ref[TurnReader] | None = None
        self._messages: TurnMessages | None = None
        self._leaving: asyncio.Task[None] | None = None

    @property
    def resumptions(self) -> int:
        """How often its stream was lost and found again."""
        return 0 if self._messages is None else self._messages.resumptions

    @property
    def is_read(self) -> bool:
        """Whether somebody still holds its iterator, and may go on."""
        return self._reader is not None and self._reader() is not None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.leave()

    def __aiter__(self) -> "TurnReader":
        """Raises RuntimeError the second time."""
        if self._reader is not None:
            raise RuntimeError("a turn runs once; start another one")
        reader = TurnReader(self)
        loop = asyncio.get_running_loop()
        # An iterator that was dropped before its end was broken off: nobody can go on with it.
        self._reader = weakref.ref(reader, lambda _reader: _call_soon(loop, self))
        return reader

    async def text(self) -> str:
        """The whole answer."""
        return "".join([piece.text async for piece in self])

    async def leave(self) -> None:
        """Ends the turn as aborted, unless it has ended. Returns when the server has done so. Idempotent."""
        leaving = self.start_leaving()
        if leaving is not None:
            # Shielded: a second Ctrl-C gives up waiting, but the server still gets its Abort.
            await asyncio.shield(leaving)

    def start_leaving(self) -> asyncio.Task[None] | None:
        """What ends the turn; None when there is nothing to end."""
        if self._messages is None or self._messages.is_over:
            self._live.remove(self)
            return None
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._abort(self._messages), name=f"abort {self.turn_id}")
        return self._leaving

    async def read_piece(self) -> Piece | None:
        """The next piece, None at the end. Raises TenureError. For the turn's iterator."""
        try:
            messages = await self._start()
            while (message := await messages.read()) is not None:
                piece = self._take(message)
                if piece is not None:
                    return piece
        except asyncio.CancelledError:
            await self.leave()
            raise
        finally:
            if self._messages is not None and self._messages.is_over:
                self._live.remove(self)
        return None

    async def _start(self) -> TurnMessages:
        if self._messages is None:
            if self._one_at_a_time:
                await self._live.leave_broken_off()
            self._messages = TurnMessages(self._stub, self._request, self._patience)
            self._live.add(self)
        return self._messages

    def _take(self, message: generate_pb2.GenerateResponse) -> Piece | None:
        match message.WhichOneof("event"):
            case "started":
                self.new_tokens = message.started.new_tokens
                self.max_tokens = message.started.max_tokens
                self.seed = message.started.seed
                self.attempt = message.started.attempt
                self.trace_id = message.started.trace_id or None
                return None
            case "delta":
                return Piece(message.delta.text, tuple(message.delta.token_ids))
            case "finished":
                self._finish(message.finished)
                return None
            case _:
                return None  # an event of a newer server

    def _finish(self, finished: generate_pb2.TurnFinished) -> None:
        usage = finished.usage
        self.finish_reason = _FINISH_REASONS.get(finished.finish_reason)
        self.is_committed = finished.committed
        self.stop_string = finished.stop_string if finished.HasField("stop_string") else None
        self.session_len = finished.session_len if finished.HasField("session_len") else None
        self.usage = Usage(
            context_tokens=usage.context_tokens,
            tokens_from_slot=usage.tokens_from_slot,
            tokens_from_tree=usage.tokens_from_tree,
            tokens_computed=usage.tokens_computed,
            completion_tokens=usage.completion_tokens,
            retractions=usage.retractions,
            drafted_tokens=usage.drafted_tokens,
            accepted_tokens=usage.accepted_tokens,
        )

    async def _abort(self, messages: TurnMessages) -> None:
        """Has the server end the turn and reads how it ended; lets the connection go when that takes too long."""
        request = generate_pb2.AbortRequest(turn_id=self.turn_id)
        if self._request.HasField("session_id"):
            request.session_id = self._request.session_id
        try:
            async with asyncio.timeout(ABORT_TIMEOUT_S):
                await self._stub.Abort(request, metadata=trace_headers())
                async for message in messages.rest():
                    self._take(message)
        except (TenureError, TimeoutError, aio.AioRpcError, aio.UsageError):
            # TURN_ABORTED is what was asked for; a server that is gone has no turn left to end, and through a channel
            # that others have closed it can not be told.
            pass
        finally:
            messages.close()
            self._live.remove(self)


class TurnReader:
    """The pieces of one turn. Once nobody holds it any more, its turn was broken off."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        piece = await self._turn.read_piece()
        if piece is None:
            raise StopAsyncIteration
        return piece


def _call_soon(loop: asyncio.AbstractEventLoop, turn: Turn) -> None:
    """Has a turn left by its own loop; whoever dropped its iterator may be anywhere, also behind the loop's end."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(turn.start_leaving)
