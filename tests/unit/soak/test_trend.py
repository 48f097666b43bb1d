"""The line through a series and its standard error, on series whose slope and noise are known."""

from collections.abc import Sequence

import numpy as np
import pytest

from tests.soak.trend import POINTS_MIN, Z_TWO_SIDED, fit_trend

NUM_POINTS = 240
NUM_SERIES = 300
INTERVAL_S = 5.0
MEAN = 1000.0
SLOPE = 0.002
TIMES_S = [INTERVAL_S * place for place in range(NUM_POINTS)]


def made_series(rng: np.random.Generator, rho: float) -> list[float]:
    """MEAN and SLOPE under noise that remembers: each deviation is `rho` times the last one and something new."""
    deviation = rng.normal() / np.sqrt(1 - rho**2)
    values = []
    for time_s in TIMES_S:
        values.append(MEAN + SLOPE * (time_s - TIMES_S[-1] / 2) + deviation)
        deviation = rho * deviation + rng.normal()
    return values


def test_trend_when_there_is_no_noise_then_the_slope_exactly_and_no_error() -> None:
    trend = fit_trend(TIMES_S, [MEAN + SLOPE * time_s for time_s in TIMES_S])
    assert trend.slope == pytest.approx(SLOPE)
    assert trend.slope_error == pytest.approx(0, abs=1e-9)
    assert trend.mean == pytest.approx(MEAN + SLOPE * TIMES_S[-1] / 2)
    assert trend.duration_s == TIMES_S[-1]


def test_trend_when_flat_then_nothing_at_all() -> None:
    trend = fit_trend(TIMES_S, [MEAN] * NUM_POINTS)
    assert (trend.slope, trend.slope_error, trend.rho) == (0, 0, 0)


def test_percent_when_asked_then_of_the_mean_in_an_hour() -> None:
    trend = fit_trend(TIMES_S, [MEAN + SLOPE * (time_s - TIMES_S[-1] / 2) for time_s in TIMES_S])
    assert trend.percent == pytest.approx(100 * 3600 * SLOPE / MEAN)
    low, high = trend.percent_interval
    assert high - low == pytest.approx(2 * Z_TWO_SIDED * trend.percent_error)


@pytest.mark.parametrize(("rho", "coverage_min"), [(0.0, 0.91), (0.5, 0.88), (0.8, 0.86), (0.9, 0.83)])
def test_interval_when_the_noise_remembers_then_it_holds_the_true_slope_nearly_as_often_as_it_says(
    rho: float, coverage_min: float
) -> None:
    rng = np.random.default_rng(7)
    trends = [fit_trend(TIMES_S, made_series(rng, rho)) for _ in range(NUM_SERIES)]
    held = [abs(trend.slope - SLOPE) <= Z_TWO_SIDED * trend.slope_error for trend in trends]
    assert coverage_min <= np.mean(held) <= 0.98
    assert np.mean([trend.slope for trend in trends]) == pytest.approx(SLOPE, abs=0.001)
    assert np.mean([trend.rho for trend in trends]) == pytest.approx(rho, abs=0.06)


def plain_error(values: Sequence[float]) -> float:
    """What a textbook says for independent noise."""
    time_s = np.asarray(TIMES_S) - np.mean(TIMES_S)
    residuals = np.asarray(values) - np.mean(values)
    residuals -= (time_s @ residuals) / (time_s @ time_s) * time_s
    return float(np.sqrt(residuals @ residuals / (len(values) - 2) / (time_s @ time_s)))


def test_error_when_the_noise_remembers_then_several_times_the_plain_one_and_as_the_slopes_scatter() -> None:
    rng = np.random.default_rng(11)
    series = [made_series(rng, 0.9) for _ in range(NUM_SERIES)]
    trends = [fit_trend(TIMES_S, values) for values in series]
    error = np.mean([trend.slope_error for trend in trends])
    assert error > 3 * np.mean([plain_error(values) for values in series])
    assert error == pytest.approx(np.std([trend.slope for trend in trends]), rel=0.25)


@pytest.mark.parametrize(("num_times", "num_values"), [(POINTS_MIN - 1, POINTS_MIN - 1), (20, 19)])
def test_trend_when_there_are_too_few_values_then_refused(num_times: int, num_values: int) -> None:
    with pytest.raises(ValueError, match=f"{num_values} values at {num_times} times"):
        fit_trend(TIMES_S[:num_times], [MEAN] * num_values)
