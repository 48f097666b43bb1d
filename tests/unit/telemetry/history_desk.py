"""A `HistorySink` whose clocks are turned by hand."""

from collections.abc import Mapping

from engine.core.events import CoreEvent, Numbered
from engine.core.ownership import PoolKind
from telemetry.history import HistorySink

UNIX_S = 1_700_000_000.0
SIZES = {PoolKind.FULL: 11, PoolKind.ROWS: 4}


class HandClock:
    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def now(self) -> float:
        return self.now_s


class Desk:
    """Tells the sink, and turns its clock, which begins at 100 s when the wall clock is at `UNIX_S`."""

    def __init__(self, sizes: Mapping[PoolKind, int] = SIZES) -> None:
        self.clock, self.wall = HandClock(100.0), HandClock(UNIX_S)
        self.sink = HistorySink(sizes, self.clock, self.wall)

    def tell(self, *events: CoreEvent, after_s: float = 0.0) -> None:
        self.wait(after_s)
        numbered = tuple(Numbered(seq, event) for seq, event in enumerate(events, 1))
        self.sink.publish(numbered, self.clock.now_s)

    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds
