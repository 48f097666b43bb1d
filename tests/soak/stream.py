"""One turn's stream, read message by message, held against what the interface promises, and booked."""

import asyncio
from collections.abc import Awaitable
from typing import Protocol

import grpc
from grpc import aio

from protos.v1 import generate_pb2, types_pb2
from services.client import TenureError
from services.client.errors import to_error
from tests.soak.ledger import ENDINGS, Ledger, TurnKey

_COMPLETE = {types_pb2.FINISH_REASON_STOP: "stop", types_pb2.FINISH_REASON_LENGTH: "length"}


class MessageCall(Protocol):
    """A call whose answers are read one by one, as gRPC's are."""

    def read(self) -> Awaitable[object]:
        """The next message; at the end something that is none. Raises AioRpcError."""

    def cancel(self) -> bool: ...


class TurnStream:
    """Reads one call. What it learns goes into the ledger at once."""

    def __init__(self, call: MessageCall, ledger: Ledger, held_ids: tuple[int, ...] = ()) -> None:
        """`held_ids`: of a resumed stream, what was read before it was lost."""
        self._call = call
        self._ledger = ledger
        self.ids = list(held_ids)
        self.key: TurnKey | None = None
        """Known once the turn was accepted."""
        self.ending: str | None = None
        """Known once it was told."""
        self.error: TenureError | None = None
        """What the call ended with, unless it ended well."""
        self.is_over = False
        self._finished: generate_pb2.TurnFinished | None = None

    @property
    def is_committed(self) -> bool:
        """Whether the turn is known to be part of its session."""
        return self._finished is not None and self._finished.committed

    async def read_started(self) -> bool:
        """Whether the turn was accepted."""
        while self.key is None and await self.advance():
            pass
        return self.key is not None

    async def read_ids(self, count: int) -> None:
        """Until so many ids are there, or the stream is over."""
        while len(self.ids) < count and await self.advance():
            pass

    async def read_all(self) -> None:
        while await self.advance():
            pass

    def lose(self) -> None:
        """Lets the call go, as a client does whose connection breaks. Its end will not be heard here."""
        self.is_over = True
        self._call.cancel()

    async def advance(self) -> bool:
        """Reads one message. False at the end of the stream, however it comes."""
        if self.is_over:
            return False
        try:
            message = await self._call.read()
        except aio.AioRpcError as error:
            self._end(to_error(error))
            return False
        except asyncio.CancelledError:
            self.lose()
            raise
        if not isinstance(message, generate_pb2.GenerateResponse):
            self._end(None)
            return False
        self._take(message)
        return True

    def _take(self, message: generate_pb2.GenerateResponse) -> None:
        kind = message.WhichOneof("event")
        if self._finished is not None:
            self._violate(f"{kind} after the end")
        elif (self.key is None) != (kind == "started"):
            self._violate(f"{kind} {'before' if self.key is None else 'after'} the start")
        elif kind == "started":
            started = message.started
            self.key = TurnKey(started.session_id, started.turn_id, started.attempt)
            self._ledger.accept(self.key)
        elif kind == "delta":
            self._take_delta(message.delta)
        elif kind == "finished":
            self._finish(message.finished)

    def _take_delta(self, delta: generate_pb2.TokenDelta) -> None:
        if not delta.token_ids:
            return
        if delta.start != len(self.ids):
            self._violate(f"ids from {delta.start} on behind {len(self.ids)}")
        self.ids += delta.token_ids

    def _finish(self, finished: generate_pb2.TurnFinished) -> None:
        self._finished = finished
        if finished.finish_reason in _COMPLETE:
            self._book(_COMPLETE[finished.finish_reason])
            if finished.usage.completion_tokens != len(self.ids):
                self._violate(f"{finished.usage.completion_tokens} tokens told, {len(self.ids)} were read")

    def _end(self, error: TenureError | None) -> None:
        self.is_over, self.error = True, error
        if error is None:
            if self.ending is None:
                self._violate("ended well without an end")
            return
        self._ledger.note_error(error)
        if self.key is None:
            if is_of_transport(error):
                self._ledger.unsure += 1
        elif self._finished is not None and self.ending is None and error.reason in ENDINGS:
            self._book(ENDINGS[error.reason])
        elif not is_of_transport(error):
            self._violate(f"{error.reason} without an end of its own")

    def _book(self, ending: str) -> None:
        assert self.key is not None, "an end comes behind a start"
        self.ending = ending
        self._ledger.end(self.key, ending)

    def _violate(self, what: str) -> None:
        self._ledger.violations.append(f"{self.key}: {what}")


def is_of_transport(error: TenureError) -> bool:
    """Whether gRPC made the status up: the server gives its reasons."""
    return error.reason == error.code.name and error.code in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    )
