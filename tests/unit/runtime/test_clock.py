"""Time that passes only while the process runs."""

import pytest

from engine.runtime.clock import PAUSE_S, AwakeClock


class HandClock:
    at_s = 100.0

    def now(self) -> float:
        return self.at_s


def test_awake_clock_when_read_often_then_as_its_source() -> None:
    hand = HandClock()
    clock = AwakeClock(hand)
    for _ in range(100):
        hand.at_s += 0.1
        assert clock.now() == pytest.approx(hand.at_s)
    assert clock.paused_s == 0


def test_awake_clock_when_nobody_could_read_it_then_only_the_longest_gap_allowed_goes_by() -> None:
    hand = HandClock()
    clock = AwakeClock(hand)
    hand.at_s += 60
    assert clock.now() == pytest.approx(100 + PAUSE_S)
    hand.at_s += 1
    assert clock.now() == pytest.approx(101 + PAUSE_S)
    assert clock.paused_s == pytest.approx(60 - PAUSE_S)
