"""Calls with one answer, and how long each of them is waited for. Turns, and what changes a session, have their own."""

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

import grpc
from grpc import aio

from services.client.errors import TenureError, answer, to_error
from services.client.options import OptionError

NO_ANSWER = "NO_ANSWER"
"""Reason of an error: the server took the call, and did not answer in time."""
NO_CONNECTION = "NO_CONNECTION"
"""The same, where nobody took the call: whatever is there does not speak."""

TIMEOUT_KEY = "timeout_s"
"""In the metadata of both: for how long an answer was waited for."""

QUICK_S = 5.0
"""Of what is read off as it stands. It takes milliseconds, so a server that needs seconds for it is busy or stuck."""
LONG_S = 30.0
"""Of what grows with the pool, or with what is remembered, and is put together while turns run."""

ANSWER_TIMEOUTS_S: dict[str, float] = {
    "is_serving": QUICK_S,
    "model": QUICK_S,
    "config": QUICK_S,
    "pools": QUICK_S,
    "snapshot": QUICK_S,
    "explain": QUICK_S,
    "incidents": QUICK_S,
    "trace": QUICK_S,
    "find_session": QUICK_S,
    "sessions": QUICK_S,  # of one page of them
    "kv_event_sources": QUICK_S,
    "plant": QUICK_S,  # it is answered before anything breaks
    "check": LONG_S,  # every page and every list is walked
    "history": LONG_S,  # up to an hour of samples, and the facts
    "flush_cache": LONG_S,  # everything that is cached goes free
    "kv_events": LONG_S,  # until the books of all units have come; events take as long as they take
    "dump": LONG_S,  # of a moment: all turns, sessions, owners and stacks
}
"""By the client's method; `plant` is none of the public client."""

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class Asking:
    """Asks on one connection."""

    def __init__(self, channel: aio.Channel, answer_timeout_s: float | None = None) -> None:
        """`answer_timeout_s` is for all calls, in place of the table's. Raises OptionError."""
        if answer_timeout_s is not None and not answer_timeout_s > 0:
            raise OptionError("answer_timeout_s", f"must be above 0, not {answer_timeout_s}")
        self._channel = channel
        self._answer_timeout_s = answer_timeout_s

    async def ask(
        self,
        method: str,
        # In quotes: it takes types in the published types only.
        call: "aio.UnaryUnaryMultiCallable[_Request, _Response]",
        request: _Request,
    ) -> _Response:
        """Raises TenureError: NO_ANSWER or NO_CONNECTION, DEADLINE_EXCEEDED, when the method's time is over."""
        timeout_s = self._answer_timeout_s or ANSWER_TIMEOUTS_S[method]
        try:
            return await answer(call(request, timeout=timeout_s))
        except TenureError as error:
            if error.code is grpc.StatusCode.DEADLINE_EXCEEDED and error.reason == error.code.name:
                raise self._explain_silence(timeout_s) from None
            raise

    async def first(self, method: str, messages: AsyncIterator[_Response]) -> _Response | None:
        """The first message of a stream, None when it has none. Raises as `ask` does."""
        timeout_s = self._answer_timeout_s or ANSWER_TIMEOUTS_S[method]
        try:
            async with asyncio.timeout(timeout_s):
                return await anext(messages, None)
        except TimeoutError:
            raise self._explain_silence(timeout_s) from None
        except aio.AioRpcError as error:
            raise to_error(error) from None

    def _explain_silence(self, timeout_s: float) -> TenureError:
        if self._channel.get_state() is grpc.ChannelConnectivity.READY:
            reason, message = NO_ANSWER, f"the server took the call and has not answered for {timeout_s:g} s"
        else:
            reason, message = NO_CONNECTION, f"nobody has taken the call for {timeout_s:g} s"
        metadata = {TIMEOUT_KEY: f"{timeout_s:g}"}
        return TenureError(reason, message, code=grpc.StatusCode.DEADLINE_EXCEEDED, metadata=metadata)
