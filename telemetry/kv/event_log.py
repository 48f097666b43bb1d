"""The sink that numbers every change of owner, from 1 without gaps, and keeps the newest for whoever follows them."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from engine.core.events import (
    Draining,
    KvMoved,
    Numbered,
    Protected,
    SessionClosed,
    SessionOpened,
    SlotChanged,
    StepPlanned,
    TurnAccepted,
    TurnEnded,
    Unprotected,
)
from engine.core.ids import StepNo
from engine.core.ownership import PoolKind
from engine.runtime.clock import Clock, WallClock
from telemetry.kv.event_names import OwnerNames

EVENTS_MAX = 16_384
UNITS_MAX = 2**21
"""Units that the events kept may name together: 16 MiB."""

KvFact = KvMoved | Protected | Unprotected | Draining


class KvRecord(NamedTuple):
    """One numbered event."""

    sequence: int
    time_s: float
    """Seconds since 1970."""
    step: StepNo
    """The newest plan by then."""
    session_id: str
    """Of a move: whom it is about; empty when there is none."""
    turn_id: str
    fact: KvFact


class KvEventLog:
    """An `EventSink` of bounded size, for one thread: it is read where it is told.

    It must have heard every event since the core was made, so that the books at any time are those of its events up to
    then. A reader is a number, the next that it wants: nothing is kept for it, and it delays nobody.
    """

    def __init__(
        self,
        sizes: Mapping[PoolKind, int],
        log_id: str,
        wall: Clock | None = None,
        *,
        events_max: int = EVENTS_MAX,
        units_max: int = UNITS_MAX,
    ) -> None:
        """`sizes`: units of each pool, padding included. `log_id` names this run of the server. `wall` tells seconds
        since 1970.
        """
        assert events_max > 0, f"a log keeps something: {events_max}"
        self.sizes = dict(sizes)
        self.log_id = log_id
        self.last_core_seq = 0
        """The core's number of the newest event that was heard, of whatever kind."""
        self.num_lapped = 0
        """How often a reader was so slow that events which it wanted were gone."""
        self._wall = wall or WallClock()
        self._units_max = units_max
        self._ring: list[KvRecord | None] = [None] * events_max
        self._first = 1
        self._next = 1
        self._num_units = 0
        self._names = OwnerNames()
        self._step = StepNo(0)
        self._time_s = 0.0
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = asyncio.Event()
        self._handlers = self._make_handlers()

    @property
    def last_sequence(self) -> int:
        """Number of the newest event; 0 before the first."""
        return self._next - 1

    @property
    def first_sequence(self) -> int:
        """Number of the oldest event that is kept; where there is none, of the next one."""
        return self._first

    def publish(self, events: tuple[Numbered, ...], now: float) -> None:
        self._time_s = self._wall.now()
        handlers, before = self._handlers, self._next
        for _, event in events:
            handle = handlers.get(type(event))
            if handle is not None:
                handle(event)
        if events:
            self.last_core_seq = events[-1].seq
        if self._next != before and self._waiting:
            self._wake()

    def since(self, sequence: int, count_max: int = EVENTS_MAX) -> tuple[KvRecord, ...] | None:
        """At most so many events from number `sequence` on; none when that is the next one. O(events returned).

        None when they are not kept any more, or when the log has not come so far.
        """
        if not self._first <= sequence <= self._next:
            return None
        ring, stop = self._ring, min(self._next, sequence + count_max)
        return tuple(record for at in range(sequence, stop) if (record := ring[at % len(ring)]) is not None)

    async def wait_for(self, sequence: int) -> bool:
        """Returns once event `sequence` was told. False when it never will be: the log is closed."""
        while self._next <= sequence:
            if self.is_closed:
                return False
            told = asyncio.get_running_loop().create_future()
            self._waiting.add(told)
            try:
                await told
            finally:
                self._waiting.discard(told)
        return True

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    async def wait_closed(self, timeout_s: float) -> bool:
        """Whether it was closed within so long, or before."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._closed.wait()
        return self._closed.is_set()

    @property
    def num_waiting(self) -> int:
        """Readers that have all there is."""
        return len(self._waiting)

    def wall_s(self) -> float:
        """Seconds since 1970, by the clock that events are told the time by."""
        return self._wall.now()

    def note_lapped(self) -> None:
        """A reader wanted what is gone."""
        self.num_lapped += 1

    def close(self) -> None:
        """The engine has stopped, and nothing more will be told: whoever waits learns of it. Idempotent."""
        self._closed.set()
        self._wake()

    def _wake(self) -> None:
        for told in self._waiting:
            if not told.done():
                told.set_result(None)
        self._waiting.clear()

    def _make_handlers(self) -> dict[type, Callable[[Any], None]]:
        """By the event's type. What has no handler is not about the books, nor about whose they are."""
        names = self._names
        return {
            KvMoved: self._moved,
            Protected: self._keep,
            Unprotected: self._keep,
            Draining: self._keep,
            StepPlanned: self._planned,
            TurnAccepted: names.accepted,
            TurnEnded: names.ended,
            SessionOpened: names.opened,
            SessionClosed: names.closed,
            SlotChanged: names.slot_changed,
        }

    def _planned(self, event: StepPlanned) -> None:
        self._step = event.step

    def _moved(self, event: KvMoved) -> None:
        session_id, turn_id = self._names.moved(event)
        self._keep(event, session_id, turn_id)

    def _keep(self, fact: KvFact, session_id: str = "", turn_id: str = "") -> None:
        ring, sequence = self._ring, self._next
        if sequence - self._first == len(ring):
            self._drop_oldest()
        ring[sequence % len(ring)] = KvRecord(sequence, self._time_s, self._step, session_id, turn_id, fact)
        self._next = sequence + 1
        self._num_units += len(fact.pages)
        while self._num_units > self._units_max and self._first < sequence:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        at = self._first % len(self._ring)
        oldest, self._ring[at] = self._ring[at], None
        assert oldest is not None, f"event {self._first} is not kept"
        self._num_units -= len(oldest.fact.pages)
        self._first += 1
