"""Where the runtime reads the time, so that tests can turn it by hand."""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Monotonic seconds."""
        ...


class MonotonicClock:
    """The clock of the machine."""

    def now(self) -> float:
        return time.monotonic()


class WallClock:
    """Seconds since 1970: for what people read, never for measuring."""

    def now(self) -> float:
        return time.time()


PAUSE_S = 2.0
"""A gap between two readings of an `AwakeClock` that is longer can only be a pause: it is read ten times a second."""


class AwakeClock:
    """Monotonic seconds during which this process ran: while it was stopped (SIGSTOP, a frozen container) none pass.

    A thread has to read it a few times a second. Between two readings at most `PAUSE_S` go by. Any thread may read it.
    """

    def __init__(self, source: Clock | None = None) -> None:
        self._source = source or MonotonicClock()
        self._lock = threading.Lock()
        self._read_at_s = self._source.now()
        self._paused_s = 0.0

    @property
    def paused_s(self) -> float:
        """What was left out so far."""
        return self._paused_s

    def now(self) -> float:
        with self._lock:
            read_at_s = self._source.now()
            self._paused_s += max(0.0, read_at_s - self._read_at_s - PAUSE_S)
            self._read_at_s = read_at_s
            return read_at_s - self._paused_s
