"""One turn, as its client sees it: an async iterable of pieces that knows its own end."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum

from grpc import aio

from protos.v1 import generate_pb2, generate_pb2_grpc, types_pb2
from services.client.errors import TenureError, to_error

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


_FINISH_REASONS: dict[int, FinishReason] = {
    types_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    types_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    types_pb2.FINISH_REASON_ABORT: FinishReason.ABORT,
}


class Turn:
    """Iterate it once: `async for piece in turn`. Raises TenureError when it is refused or aborted.

    Whoever leaves early (by `break`, by cancellation, by an exception) has the turn aborted on the server, which rolls
    the session back to what it was before. After the end `usage`, `finish_reason` and `session_len` are set.
    """

    def __init__(
        self,
        # In quotes: the class exists in the published types only.
        stub: "generate_pb2_grpc.GenerateAsyncStub",
        request: generate_pb2.GenerateRequest,
        *,
        predecessor: "Turn | None" = None,
        timeout_s: float | None = None,
    ) -> None:
        self.turn_id: str = request.turn_id
        self.new_tokens: int | None = None
        """Tokens that came new with this turn; set once it is accepted."""
        self.max_tokens: int | None = None
        """Most tokens that will be generated; set once it is accepted."""
        self.usage: Usage | None = None
        self.finish_reason: FinishReason | None = None
        self.session_len: int | None = None
        """Tokens that the session consists of after the turn; None without a session."""
        self._stub = stub
        self._request = request
        self._predecessor = predecessor
        self._timeout_s = timeout_s
        self._call: aio.UnaryStreamCall[generate_pb2.GenerateRequest, generate_pb2.GenerateResponse] | None = None
        self._reading: asyncio.Future[object] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._is_over = False

    @property
    def is_committed(self) -> bool:
        """Whether the turn is part of its session now."""
        return self.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)

    def __aiter__(self) -> AsyncGenerator[Piece, None]:
        return self._run()

    async def text(self) -> str:
        """The whole answer."""
        return "".join([piece.text async for piece in self])

    async def leave(self) -> None:
        """Ends the turn by roll-back, unless it has ended. Returns when the server has done so. Idempotent."""
        if self._call is None or self._is_over:
            return
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._abort(), name=f"abort {self.turn_id}")
        # Shielded: a second Ctrl-C gives up waiting, but the server still gets its Abort.
        await asyncio.shield(self._leaving)

    async def _run(self) -> AsyncGenerator[Piece, None]:
        if self._call is not None:
            raise RuntimeError("a turn runs once; start another one")
        if self._predecessor is not None:
            await self._predecessor.leave()
            self._predecessor = None
        self._call = self._stub.Generate(self._request, timeout=self._timeout_s)
        try:
            while (message := await self._read()) is not None:
                piece = self._take(message)
                if piece is not None:
                    yield piece
        finally:
            await self.leave()

    async def _read(self) -> generate_pb2.GenerateResponse | None:
        """The next message, None at the end. A cancelled reader leaves the call alive, so that its end can be told."""
        assert self._call is not None, "the turn has begun"
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._call.read())
        try:
            message = await asyncio.shield(self._reading)
        except aio.AioRpcError as error:
            self._is_over = True
            raise to_error(error) from None
        self._reading = None
        if isinstance(message, generate_pb2.GenerateResponse):
            return message
        self._is_over = True
        return None

    def _take(self, message: generate_pb2.GenerateResponse) -> Piece | None:
        match message.WhichOneof("event"):
            case "started":
                self.new_tokens = message.started.new_tokens
                self.max_tokens = message.started.max_tokens
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
        self.session_len = finished.session_len if finished.HasField("session_len") else None
        self.usage = Usage(
            context_tokens=usage.context_tokens,
            tokens_from_slot=usage.tokens_from_slot,
            tokens_from_tree=usage.tokens_from_tree,
            tokens_computed=usage.tokens_computed,
            completion_tokens=usage.completion_tokens,
            retractions=usage.retractions,
        )

    async def _abort(self) -> None:
        """Has the server end the turn and reads how it ended; lets the connection go when that takes too long."""
        assert self._call is not None, "the turn has begun"
        request = generate_pb2.AbortRequest(turn_id=self.turn_id)
        if self._request.HasField("session_id"):
            request.session_id = self._request.session_id
        try:
            async with asyncio.timeout(ABORT_TIMEOUT_S):
                await self._stub.Abort(request)
                while (message := await self._read()) is not None:
                    self._take(message)
        except (TenureError, TimeoutError, aio.AioRpcError):
            # TURN_ABORTED is what was asked for; a server that is gone has no turn left to end.
            pass
        finally:
            self._is_over = True
            self._call.cancel()
