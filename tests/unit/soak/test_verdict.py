"""What a slope is judged to be, from runs that are clear and runs that are noisy."""

import pytest

from tests.soak.memory import Reading, late_readings, resident_trend
from tests.soak.trend import Trend
from tests.soak.verdict import judge_slope

HOUR_S = 3600.0


def trend(percent: float, error: float) -> Trend:
    """Of a mean of 100, so that a unit is a percent."""
    return Trend(100.0, percent / HOUR_S, error / HOUR_S, num_points=240, duration_s=1200.0, rho=0.5)


@pytest.mark.parametrize(
    ("percent", "error", "holds", "told"),
    [
        (0.2, 0.1, True, "proven at 95 %"),
        (0.9, 0.5, True, "not contradicted, and not proven"),
        (1.5, 0.5, True, "not contradicted, and not proven"),
        (2.0, 0.5, False, "contradicted at 95 %"),
        (1.2, 0.1, False, "contradicted at 95 %"),
        (-3.0, 0.5, True, "proven at 95 %"),
    ],
)
def test_slope_when_judged_then_it_fails_only_where_the_run_speaks_against_it(
    percent: float, error: float, holds: bool, told: str
) -> None:
    verdict = judge_slope(trend(percent, error))
    assert verdict.holds is holds
    assert told in verdict.told


def test_slope_when_judged_then_the_growth_that_would_have_been_caught_is_told() -> None:
    assert "growth above 1.33 % an hour is caught 95 times of 100" in judge_slope(trend(0.0, 0.1)).told


def test_slope_when_the_run_was_too_short_then_fails() -> None:
    assert not judge_slope(None).holds


def test_readings_when_trended_then_only_those_of_the_last_two_thirds() -> None:
    """Memory climbs for a third of the time, and stands still from there on."""
    mib = 1024 * 1024
    readings = [
        Reading(5.0 * place, (500 + min(place, 100)) * mib, 0, 0, threads=10, open_files=20) for place in range(301)
    ]
    assert [late_readings(readings)[0].time_s, late_readings(readings)[-1].time_s] == [500.0, 1500.0]
    found = resident_trend(readings)
    assert (found.slope, found.mean) == (0.0, 600 * mib)
