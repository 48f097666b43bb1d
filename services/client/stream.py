"""The messages of one turn, over as many connections as it takes."""

import asyncio
import hashlib
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

import grpc
from grpc import aio

from protos.v1 import generate_pb2, generate_pb2_grpc, types_pb2
from services.client.errors import TenureError, to_error
from services.client.options import OptionError
from services.client.trace_headers import trace_headers
from services.limits import LIMITS, MIB

TIMEOUT_MAX_S = 1e8
"""Of a turn: three years, about as long as can be said on the wire."""
RESUME_TIMEOUT_S = 10.0
"""How long a lost stream is sought again, unless the client is told otherwise; servers keep a turn for 15 s."""
NOTICE_S = 1.0
"""After how long it is told that a lost stream is being sought."""
_PAUSE_S = 0.05
_PAUSE_MAX_S = 1.0

_LOST_CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
"""Statuses that the transport makes up when a connection breaks."""
_SLOW_READER = "SLOW_READER"
_SERVER_LOADING = "SERVER_LOADING"

_Call = aio.UnaryStreamCall[generate_pb2.GenerateRequest, generate_pb2.GenerateResponse]
_ResumedCall = aio.UnaryStreamCall[generate_pb2.ResumeRequest, generate_pb2.GenerateResponse]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a turn may take, how long its lost stream is sought, and who is told after `NOTICE_S` that it is."""

    timeout_s: float | None = None
    resume_timeout_s: float = RESUME_TIMEOUT_S
    on_reconnecting: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        """Raises OptionError for what gRPC would take to be over already, and for what would never end."""
        if self.timeout_s is not None and not 0 < self.timeout_s <= TIMEOUT_MAX_S:
            problem = f"must be above 0 and at most {TIMEOUT_MAX_S:.0f}, not {self.timeout_s}; None is for no end"
            raise OptionError("timeout_s", problem)
        if math.isnan(self.resume_timeout_s):
            raise OptionError("resume_timeout_s", "must be a number of seconds")


class TurnMessages:
    """Reads a turn's messages. A stream that is lost once the turn has started is resumed from the ids that were read.

    Every id is read once, in order, whatever happened to connections in between.
    """

    def __init__(
        self,
        # In quotes: the class exists in the published types only.
        stub: "generate_pb2_grpc.GenerateAsyncStub",
        request: generate_pb2.GenerateRequest,
        patience: Patience,
    ) -> None:
        """Sends the request. Raises TenureError, MESSAGE_TOO_LARGE."""
        _require_size(request)
        timeout_s = patience.timeout_s
        self._patience = patience
        self._stub = stub
        self._request = request
        self._deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._headers = trace_headers()
        """Of who runs the turn: a stream that is resumed later is still read for it."""
        self._call: _Call | _ResumedCall = stub.Generate(request, timeout=timeout_s, metadata=self._headers)
        self._reading: asyncio.Future[object] | None = None
        self._num_held = 0
        self._held_digest = hashlib.sha256()
        self._has_started = False
        self._has_rest = False
        self._has_finished = False
        self._is_complete = False
        self.is_over = False
        """Whether nothing more will come."""
        self.resumptions = 0
        """How often the stream was lost and found again."""

    async def read(self) -> generate_pb2.GenerateResponse | None:
        """The next message, None at the end. Raises TenureError.

        A cancelled reader leaves the call alive, so that its end can be told.
        """
        while True:
            try:
                message = await self._read_call()
            except TenureError as error:
                if self._is_complete and _is_broken(error):
                    self.is_over = True
                    return None  # only the status is lost, and the turn's own end has told all of it
                if not self._is_lost(error):
                    self.is_over = True
                    raise
                message = await self._find_again(error)
            if message is None:
                self.is_over = True
                return None
            if self._keep(message):
                return message

    async def rest(self) -> AsyncIterator[generate_pb2.GenerateResponse]:
        """What is left on this connection. Raises TenureError."""
        while (message := await self._read_call()) is not None:
            if self._keep(message):
                yield message

    def close(self) -> None:
        """Lets the connection's stream go."""
        self.is_over = True
        self._call.cancel()

    async def _read_call(self) -> generate_pb2.GenerateResponse | None:
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._call.read())
        reading = self._reading
        try:
            message = await asyncio.shield(reading)
        except aio.AioRpcError as error:
            raise to_error(error) from None
        except asyncio.CancelledError:
            if reading.cancelled() and self.is_over:
                raise TenureError(
                    "TURN_LEFT", "the turn was left while it was read", code=grpc.StatusCode.CANCELLED
                ) from None
            raise
        finally:
            # Whoever leaves the turn may wait for the same message as whoever reads it.
            if reading.done() and self._reading is reading:
                self._reading = None
        return message if isinstance(message, generate_pb2.GenerateResponse) else None

    def _keep(self, message: generate_pb2.GenerateResponse) -> bool:
        """Notes what the message brings. False for one that was read before the stream was lost."""
        match message.WhichOneof("event"):
            case "started":
                is_new, self._has_started = not self._has_started, True
                return is_new
            case "delta":
                return self._keep_delta(message.delta)
            case "finished":
                self._has_finished = True
                self._is_complete = message.finished.finish_reason != types_pb2.FINISH_REASON_ABORT
        return True

    def _keep_delta(self, delta: generate_pb2.TokenDelta) -> bool:
        if not delta.token_ids:
            is_new, self._has_rest = not self._has_rest, True
            return is_new
        if delta.start + len(delta.token_ids) <= self._num_held:
            return False
        self._num_held += len(delta.token_ids)
        self._held_digest.update(_little_endian(delta.token_ids))
        return True

    def _is_lost(self, error: TenureError) -> bool:
        """Whether the stream broke, and not the turn."""
        return not self._has_finished and (_is_broken(error) or error.reason == _SLOW_READER)

    async def _find_again(self, lost: TenureError) -> generate_pb2.GenerateResponse | None:
        """The first message of a new stream. Raises what was lost when that takes too long.

        Before the first message it may have been the request that was lost: it is sent once more, and no more.
        """
        lost_s = time.monotonic()
        give_up_s = lost_s + (self._patience.resume_timeout_s if self._has_started else 0)
        notify = self._patience.on_reconnecting
        pause_s = _PAUSE_S
        while not self.is_over:
            self._call = self._open_again()
            try:
                message = await self._read_call()
            except TenureError as error:
                # A server that has just been started anew does not know yet whether it has the turn.
                if not (self._is_lost(error) or error.reason == _SERVER_LOADING):
                    self.is_over = True
                    raise
            else:
                self.resumptions += 1
                return message
            now_s = time.monotonic()
            if now_s + pause_s > min(give_up_s, self._deadline_s or give_up_s):
                break
            if notify is not None and now_s - lost_s >= NOTICE_S:
                notify()
                notify = None
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        self.is_over = True
        raise lost

    def _open_again(self) -> _Call | _ResumedCall:
        timeout_s = None if self._deadline_s is None else max(0.0, self._deadline_s - time.monotonic())
        if not self._has_started:
            return self._stub.Generate(self._request, timeout=timeout_s, metadata=self._headers)
        return self._stub.Resume(self._resume_request(), timeout=timeout_s, metadata=self._headers)

    def _resume_request(self) -> generate_pb2.ResumeRequest:
        return generate_pb2.ResumeRequest(
            session_id=self._request.session_id if self._request.HasField("session_id") else None,
            turn_id=self._request.turn_id,
            from_token=self._num_held,
            held_ids_sha256=self._held_digest.digest(),
        )


def _require_size(request: generate_pb2.GenerateRequest) -> None:
    size, size_max = request.ByteSize(), LIMITS.message_bytes_max
    if size > size_max:
        raise TenureError(
            "MESSAGE_TOO_LARGE",
            f"the request has {size} bytes; at most {size_max} ({size_max // MIB} MiB) can be sent",
            code=grpc.StatusCode.RESOURCE_EXHAUSTED,
            metadata={"value": str(size), "limit": str(size_max)},
        )


def _is_broken(error: TenureError) -> bool:
    """Whether it was the transport that ended the call: the server gives its reasons."""
    return error.code in _LOST_CODES and error.reason == error.code.name


def _little_endian(token_ids: Iterable[int]) -> bytes:
    return b"".join(token_id.to_bytes(4, "little", signed=True) for token_id in token_ids)
