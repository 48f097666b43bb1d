"""The loop's lateness, with a clock and a sleep that are turned by hand."""

import asyncio

import pytest

from telemetry.metrics.loop_lag import INTERVAL_S, measure_lag


class HandClock:
    now_s = 50.0

    def now(self) -> float:
        return self.now_s


class LateSleep:
    """Sleeps so much longer than it was asked to, time after time, and is cancelled then."""

    def __init__(self, clock: HandClock, *late_s: float) -> None:
        self._clock = clock
        self._late_s = list(late_s)

    async def __call__(self, delay_s: float) -> None:
        if not self._late_s:
            raise asyncio.CancelledError
        self._clock.now_s += delay_s + self._late_s.pop(0)


async def test_lag_when_the_loop_is_late_then_each_lateness_is_told_and_early_is_0() -> None:
    clock, told = HandClock(), list[float]()
    with pytest.raises(asyncio.CancelledError):
        await measure_lag(told.append, clock, LateSleep(clock, 0.0, 0.5, -INTERVAL_S / 2, 3.0))
    assert told == pytest.approx([0.0, 0.5, 0.0, 3.0])
