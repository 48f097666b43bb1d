"""A future of an event loop that another thread resolves."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Promise(Generic[_T]):
    """Made on the loop, kept or broken by any thread."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[_T]

    @classmethod
    def make(cls) -> "Promise[_T]":
        loop = asyncio.get_running_loop()
        return cls(loop, loop.create_future())

    def keep(self, outcome: _T) -> None:
        """An answer that nobody can receive any more is dropped."""
        self._call(lambda: None if self.future.done() else self.future.set_result(outcome))

    def fail(self, error: Exception) -> None:
        self._call(lambda: self.fail_now(error))

    def fail_now(self, error: Exception) -> None:
        """On the loop. Nobody has to read it: the log says what happened, and many may be left of a lost executor."""
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()

    def _call(self, resolve: Callable[[], None]) -> None:
        try:
            self.loop.call_soon_threadsafe(resolve)
        except RuntimeError:
            # The loop was closed while the thread worked, and the future went with it.
            assert self.loop.is_closed(), "a running loop refused an answer"
