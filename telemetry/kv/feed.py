"""What the prefix cache holds, published in the format that routers and indexers know: the `EventSink`."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from engine.core.events import CacheFlushed, KvMoved, Numbered, PrefixStored
from engine.core.ownership import OwnerKind, PoolKind
from engine.runtime.clock import MonotonicClock, WallClock
from telemetry.kv.announcer import Announcer, groups_of
from telemetry.kv.backlog import CHANGES_MAX, REPLAY_BATCHES, Backlog, Told
from telemetry.kv.prefix_index import Change, Emptied, PrefixIndex
from telemetry.kv.publisher import Publisher
from telemetry.kv.wire_format import HASH, SCHEMA_VERSION
from telemetry.settings import KvFeedSettings


@dataclass(frozen=True, slots=True)
class KvSource:
    """Where and how to listen."""

    endpoint: str
    replay_endpoint: str
    topic: str
    encoding: str
    schema_version: str
    page_size: int
    hash: str
    replay_batches: int


class KvFeed:
    """Follows the cache on the engine's loop and has a thread hash, pack and send. It has to hear the first event.

    Nothing waits for a reader. When the thread falls behind, listeners are told to forget all and get the whole again.
    """

    def __init__(
        self,
        settings: KvFeedSettings,
        page_size: int,
        sizes: Mapping[PoolKind, int],
        window: int | None = None,
        changes_max: int = CHANGES_MAX,
    ) -> None:
        """`sizes`: units of each pool. `window`: tokens, of the SWA pool. `changes_max`: that may wait to be sent."""
        self.dropped = 0
        """Changes of the cache that could not be told one by one, because too many waited."""
        self.clears = 0
        """How often listeners were told to forget all and then told the whole: after drops, or for a late listener."""
        self._settings = settings
        self._page_size = page_size
        self._groups = groups_of(sizes, window)
        others = [pool for pool in self._groups if pool is not PoolKind.FULL]
        self._index = PrefixIndex(page_size, others, has_salted=settings.publishes_salted)
        self._backlog = Backlog(changes_max)
        self._clock, self._wall = MonotonicClock(), WallClock()
        self._publisher: Publisher | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_behind = False
        self._is_closed = False
        self._handlers: dict[type, Callable[[Any], Change | None]] = {
            PrefixStored: self._index.store,
            KvMoved: self._moved,
            CacheFlushed: self._flushed,
        }

    @property
    def events_sent(self) -> int:
        return 0 if self._publisher is None else self._publisher.events_sent

    @property
    def batches_sent(self) -> int:
        return 0 if self._publisher is None else self._publisher.batches_sent

    def start(self) -> None:
        """Listens and publishes. On the engine's loop. Raises CannotListen, an OSError, when a port can't be had."""
        assert self._publisher is None, "started twice"
        self._loop = asyncio.get_running_loop()
        announcer = Announcer(self._page_size, self._groups)
        self._publisher = Publisher(self._settings, self._backlog, announcer, self._clock, self._ask_whole)
        self._publisher.start()

    def source(self) -> KvSource:
        """With the ports that it has. Once it has started."""
        assert self._publisher is not None, "not started"
        return KvSource(
            endpoint=self._publisher.endpoint,
            replay_endpoint=self._publisher.replay_endpoint,
            topic=self._settings.topic,
            encoding=self._settings.encoding.value,
            schema_version=SCHEMA_VERSION,
            page_size=self._page_size,
            hash=HASH,
            replay_batches=REPLAY_BATCHES,
        )

    def close(self, timeout_s: float) -> None:
        """Sends what waits, for so long at most, and takes nothing more. Idempotent."""
        self._is_closed = True
        if self._publisher is not None:
            self._publisher.close(timeout_s)

    def publish(self, events: tuple[Numbered, ...], now: float) -> None:
        changes: list[Change] = []
        find = self._handlers.get
        for _, event in events:
            handle = find(type(event))
            if handle is not None and (change := handle(event)) is not None:
                changes.append(change)
        if not changes or self._is_closed:
            return
        if self._is_behind:
            if not self._tell_whole():  # these changes are in it
                self.dropped += len(changes)
        elif not self._tell(tuple(changes)):
            self._is_behind = True
            self.dropped += len(changes)

    def _moved(self, event: KvMoved) -> Change | None:
        if event.source.kind is not OwnerKind.CACHE:
            return None
        return self._index.leave(event.pool, event.pages)

    def _flushed(self, _event: CacheFlushed) -> Change | None:
        return Emptied() if self._index.is_empty else None

    def _tell(self, changes: tuple[Change, ...]) -> bool:
        """Whether there was room."""
        had_room = self._backlog.put(Told(self._wall.now(), changes))
        if self._publisher is not None:  # woken if there was none, too: it says when there is
            self._publisher.wake()
        return had_room

    # All of it

    def _ask_whole(self, is_for_late: bool) -> None:
        """From the publisher's thread: the index is the loop's alone."""
        assert self._loop is not None, "the thread runs, so it was started"
        with suppress(RuntimeError):  # the loop is closed, the engine gone
            self._loop.call_soon_threadsafe(self._answer_ask, is_for_late)

    def _answer_ask(self, is_for_late: bool) -> None:
        if (is_for_late or self._is_behind) and not self._is_closed:
            self._tell_whole()

    def _tell_whole(self) -> bool:
        if not self._backlog.has_room or not self._tell((self._index.copy(),)):
            self._is_behind = True
            return False
        self._is_behind = False
        self.clears += 1
        return True
