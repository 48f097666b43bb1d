"""One turn's events on their way to one reader, bounded, and without the engine ever waiting for it."""

import asyncio
from collections.abc import Callable
from typing import Self

from engine.runtime.detokenizer import Detokenizer
from engine.runtime.handle import Delta, EngineFailed, Finished, Started, TurnEvent


class LiveStream:
    """A `TurnStream`. The engine writes, one task reads.

    Whatever the reader has not taken yet is one Started, one Delta that grows, one Finished: nothing else waits here.
    """

    def __init__(self, detokenizer: Detokenizer, unread_ids_max: int, on_leave: Callable[[], None]) -> None:
        """`on_leave` is called, at most once, when the reader goes before the turn has ended."""
        self._detokenizer = detokenizer
        self._unread_ids_max = unread_ids_max
        self._on_leave = on_leave
        self._started: Started | None = None
        self._ids: list[int] = []
        self._text: list[str] = []
        self._finished: Finished | None = None
        self._failure: EngineFailed | None = None
        self._is_drained = False
        self._has_left = False
        self._news = asyncio.Event()

    def start(self, started: Started) -> None:
        self._started = started
        self._news.set()

    def push(self, token_ids: tuple[int, ...]) -> bool:
        """Adds generated ids. False when more of them are unread than may be: the turn should be aborted."""
        if self._has_left:
            return True
        self._ids.extend(token_ids)
        self._text.append(self._detokenizer.push(token_ids))
        self._news.set()
        return len(self._ids) <= self._unread_ids_max

    def finish(self, finished: Finished) -> None:
        """The turn's end. Text that was held back is told before it."""
        self._text.append(self._detokenizer.flush())
        self._finished = finished
        self._news.set()

    def fail(self, failure: EngineFailed) -> None:
        """The engine's end: the reader gets it instead of whatever is unread."""
        self._failure = failure
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TurnEvent:
        while True:
            if self._failure is not None:
                raise self._failure
            event = self._take()
            if event is not None:
                return event
            if self._is_drained or self._has_left:
                raise StopAsyncIteration
            self._news.clear()
            try:
                await self._news.wait()
            except asyncio.CancelledError:
                self._leave()
                raise

    async def aclose(self) -> None:
        self._leave()

    def _take(self) -> TurnEvent | None:
        if self._started is not None:
            started, self._started = self._started, None
            return started
        text = "".join(self._text)
        if self._ids or text:
            delta = Delta(tuple(self._ids), text)
            self._ids.clear()
            self._text.clear()
            return delta
        if self._finished is not None and not self._is_drained:
            self._is_drained = True
            return self._finished
        return None

    def _leave(self) -> None:
        is_over = self._finished is not None or self._failure is not None
        if not self._has_left and not is_over:
            self._on_leave()
        self._has_left = True
        self._ids.clear()
        self._text.clear()
        self._news.set()
