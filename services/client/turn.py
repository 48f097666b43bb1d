"""One turn, as its client sees it: an async iterable of pieces that knows its own end."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum

from grpc import aio

from protos.v1 import generate_pb2, generate_pb2_grpc, types_pb2
from services.client.errors import TenureError
from services.client.stream import RESUME_TIMEOUT_S, TurnMessages

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
    the session back to what it was before. A stream that is lost is resumed, with every token once. After the end
    `usage`, `finish_reason` and `session_len` are set.
    """

    def __init__(
        self,
        # In quotes: the class exists in the published types only.
        stub: "generate_pb2_grpc.GenerateAsyncStub",
        request: generate_pb2.GenerateRequest,
        *,
        predecessor: "Turn | None" = None,
        timeout_s: float | None = None,
        resume_timeout_s: float = RESUME_TIMEOUT_S,
    ) -> None:
        self.turn_id: str = request.turn_id
        self.new_tokens: int | None = None
        """Tokens that came new with this turn; set once it is accepted."""
        self.max_tokens: int | None = None
        """Most tokens that will be generated; set once it is accepted."""
        self.seed: int | None = None
        """What the tokens are drawn with; set once it is accepted."""
        self.attempt: int | None = None
        """How often a turn of this id was accepted, this time included; set once it is."""
        self.usage: Usage | None = None
        self.finish_reason: FinishReason | None = None
        self.stop_string: str | None = None
        """The stop string that ended the answer, if one did."""
        self.session_len: int | None = None
        """Tokens that the session consists of after the turn; None without a session."""
        self._stub = stub
        self._request = request
        self._predecessor = predecessor
        self._timeouts_s = (timeout_s, resume_timeout_s)
        self._messages: TurnMessages | None = None
        self._leaving: asyncio.Task[None] | None = None

    @property
    def is_committed(self) -> bool:
        """Whether the turn is part of its session now."""
        return self.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)

    @property
    def resumptions(self) -> int:
        """How often its stream was lost and found again."""
        return 0 if self._messages is None else self._messages.resumptions

    def __aiter__(self) -> AsyncGenerator[Piece, None]:
        return self._run()

    async def text(self) -> str:
        """The whole answer."""
        return "".join([piece.text async for piece in self])

    async def leave(self) -> None:
        """Ends the turn by roll-back, unless it has ended. Returns when the server has done so. Idempotent."""
        if self._messages is None or self._messages.is_over:
            return
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._abort(self._messages), name=f"abort {self.turn_id}")
        # Shielded: a second Ctrl-C gives up waiting, but the server still gets its Abort.
        await asyncio.shield(self._leaving)

    async def _run(self) -> AsyncGenerator[Piece, None]:
        if self._messages is not None:
            raise RuntimeError("a turn runs once; start another one")
        if self._predecessor is not None:
            await self._predecessor.leave()
            self._predecessor = None
        self._messages = TurnMessages(self._stub, self._request, *self._timeouts_s)
        try:
            while (message := await self._messages.read()) is not None:
                piece = self._take(message)
                if piece is not None:
                    yield piece
        finally:
            await self.leave()

    def _take(self, message: generate_pb2.GenerateResponse) -> Piece | None:
        match message.WhichOneof("event"):
            case "started":
                self.new_tokens = message.started.new_tokens
                self.max_tokens = message.started.max_tokens
                self.seed = message.started.seed
                self.attempt = message.started.attempt
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
        self.stop_string = finished.stop_string if finished.HasField("stop_string") else None
        self.session_len = finished.session_len if finished.HasField("session_len") else None
        self.usage = Usage(
            context_tokens=usage.context_tokens,
            tokens_from_slot=usage.tokens_from_slot,
            tokens_from_tree=usage.tokens_from_tree,
            tokens_computed=usage.tokens_computed,
            completion_tokens=usage.completion_tokens,
            retractions=usage.retractions,
        )

    async def _abort(self, messages: TurnMessages) -> None:
        """Has the server end the turn and reads how it ended; lets the connection go when that takes too long."""
        request = generate_pb2.AbortRequest(turn_id=self.turn_id)
        if self._request.HasField("session_id"):
            request.session_id = self._request.session_id
        try:
            async with asyncio.timeout(ABORT_TIMEOUT_S):
                await self._stub.Abort(request)
                async for message in messages.rest():
                    self._take(message)
        except (TenureError, TimeoutError, aio.AioRpcError):
            # TURN_ABORTED is what was asked for; a server that is gone has no turn left to end.
            pass
        finally:
            messages.close()
