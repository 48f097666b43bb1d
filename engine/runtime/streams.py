"""One turn's events on their way to any number of readers, without the engine ever waiting for one of them."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Self

from engine.runtime.handle import Failure, Finished, Started, StreamReason, StreamRefusal, TurnEvent, again
from engine.runtime.output import TurnOutput


class TurnFeed:
    """What a turn tells. The engine writes; readers keep nothing but their place in it."""

    def __init__(self, output: TurnOutput, unread_ids_max: int, on_abandoned: Callable[[], None]) -> None:
        """`on_abandoned` is called whenever the last reader goes before the turn has ended."""
        self.output = output
        self.started: Started | None = None
        self.finished: Finished | None = None
        self.failure: Failure | None = None
        self._unread_ids_max = unread_ids_max
        self._on_abandoned = on_abandoned
        self._readers: list[LiveStream] = []

    @property
    def is_over(self) -> bool:
        return self.finished is not None or self.failure is not None

    def open(self, start: int = 0) -> "LiveStream":
        """A reader of everything from id `start` on."""
        reader = LiveStream(self, start)
        self._readers.append(reader)
        return reader

    def start(self, started: Started) -> None:
        self.started = started
        self._wake()

    def push(self, token_ids: Iterable[int]) -> bool:
        """Adds generated ids. True when one of them completed a stop string; those behind it are dropped."""
        is_stopped = self.output.push(token_ids)
        self._wake()
        return is_stopped

    def finish(self, finished: Finished) -> None:
        self.output.complete()
        self.finished = finished
        self._wake()

    def fail(self, failure: Failure) -> None:
        """The end, for whatever reason is not the turn's own: readers get it instead of what is unread."""
        self.failure = failure
        self._wake()

    def slow_readers(self) -> "tuple[LiveStream, ...]":
        """Readers for which more ids wait than may."""
        return tuple(reader for reader in self._readers if reader.unread_len > self._unread_ids_max)

    def leave(self, reader: "LiveStream") -> None:
        """For the reader. It goes at most once."""
        self._readers.remove(reader)
        if not self._readers and not self.is_over:
            self._on_abandoned()

    def _wake(self) -> None:
        for reader in self._readers:
            reader.wake()


class LiveStream:
    """A `TurnStream`. What waits for its reader is one Started, one Delta that grows, one Finished."""

    def __init__(self, feed: TurnFeed, start: int) -> None:
        self._feed = feed
        self._next = start
        self._waiting_since = len(feed.output)
        self._failure: StreamRefusal | None = None
        self._has_started = False
        self._has_rest = False
        self._has_finished = False
        self._has_left = False
        self._news = asyncio.Event()

    @property
    def unread_len(self) -> int:
        """Ids that came since the reader last took some: not those that it still has to catch up with."""
        return len(self._feed.output) - max(self._next, self._waiting_since)

    def wake(self) -> None:
        self._news.set()

    def cut(self) -> None:
        """Ends this stream, and not its turn."""
        message = f"{self.unread_len} tokens were waiting to be read; resume the turn to get them"
        self._failure = StreamRefusal(StreamReason.SLOW_READER, message, value=self.unread_len)
        self._leave()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TurnEvent:
        while True:
            failure = self._failure or self._feed.failure
            if failure is not None:
                raise again(failure)
            if self._has_left or self._has_finished:
                raise StopAsyncIteration
            event = self._take()
            if event is not None:
                return event
            self._news.clear()
            try:
                await self._news.wait()
            except asyncio.CancelledError:
                self._leave()
                raise

    async def aclose(self) -> None:
        self._leave()

    def _take(self) -> TurnEvent | None:
        feed = self._feed
        if not self._has_started and feed.started is not None:
            self._has_started = True
            return feed.started
        self._waiting_since = len(feed.output)
        if self._next < len(feed.output):
            delta = feed.output.read(self._next)
            self._next += len(delta.token_ids)
            return delta
        return self._take_end()

    def _take_end(self) -> TurnEvent | None:
        feed = self._feed
        if feed.output.is_complete and not self._has_rest:
            self._has_rest = True
            rest = feed.output.read_rest()
            if rest is not None:
                return rest
        if feed.finished is not None:
            self._has_finished = True
        return feed.finished

    def _leave(self) -> None:
        if not self._has_left:
            self._has_left = True
            self._feed.leave(self)
            self._news.set()
