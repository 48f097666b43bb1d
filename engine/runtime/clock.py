"""Where the runtime reads the time, so that tests can turn it by hand."""

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
