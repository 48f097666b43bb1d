"""What the prefix cache holds, published in the format that routers and indexers know: the `EventSink`."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from engine.core.events import Numbered
from engine.core.ownership import PoolKind
from engine.runtime.clock import MonotonicClock, WallClock
from telemetry.kv.announcer import Announcer, groups_of
from telemetry.kv.backlog import CHANGES_MAX, REPLAY_BATCHES, Backlog
from telemetry.kv.prefix_index import PrefixIndex
from telemetry.kv.publisher import Publisher
from telemetry.kv.teller import Teller
from telemetry.kv.wire_format import HASH, SCHEMA_VERSION
from telemetry.settings import KvFeedSettings


@dataclass(frozen=True, slots=True)
class KvSource:
    """Where and how to listen."""

    endpoint: str
    """With the host that was configured; `tcp://*:PORT` when that is all addresses of the machine."""
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
        self._settings = settings
        self._page_size = page_size
        self._groups = groups_of(sizes, window)
        others = [pool for pool in self._groups if pool is not PoolKind.FULL]
        index = PrefixIndex(page_size, others, has_salted=settings.publishes_salted)
        self._backlog = Backlog(changes_max)
        self._teller = Teller(index, self._backlog, WallClock(), self._wake)
        self._publisher: Publisher | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    @property
    def dropped(self) -> int:
        """Changes of the cache that could not be told one by one: too many waited, or nobody was left to send them."""
        if self._publisher is None:
            return self._teller.dropped + (self._backlog.num_waiting if self._is_closed else 0)
        late = self._backlog.num_waiting if self._publisher.is_over else 0  # came as the thread ended
        return self._teller.dropped + self._publisher.dropped + late

    @property
    def clears(self) -> int:
        """How often listeners were told to forget all and then told the whole: after drops, or for a late listener."""
        return self._teller.clears

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
        self._publisher = Publisher(self._settings, self._backlog, announcer, MonotonicClock(), self._ask_whole)
        self._publisher.start()

    def source(self) -> KvSource | None:
        """With the ports that it has; None once nobody can listen any more. When it has started."""
        assert self._publisher is not None, "not started"
        if self._is_closed or self._publisher.is_over:
            return None
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
        """Sends what waits, for so long at most, and takes nothing more; what is left is dropped. Idempotent."""
        self._is_closed = True
        if self._publisher is not None:
            self._publisher.close(timeout_s)

    def publish(self, events: tuple[Numbered, ...], now: float) -> None:
        if self._is_closed or (self._publisher is not None and self._publisher.is_over):
            self._teller.drop(events)
        else:
            self._teller.hear(events)

    def _wake(self) -> None:
        if self._publisher is not None:
            self._publisher.wake()

    def _ask_whole(self, is_for_late: bool) -> None:
        """From the publisher's thread: the index is the loop's alone."""
        assert self._loop is not None, "the thread runs, so it was started"
        with suppress(RuntimeError):  # the loop is closed, the engine gone
            self._loop.call_soon_threadsafe(self._answer_ask, is_for_late)

    def _answer_ask(self, is_for_late: bool) -> None:
        if not self._is_closed:
            self._teller.answer(is_for_late=is_for_late)
