"""A straight line through a series, with a standard error that allows for noise that remembers.

Readings of memory are not independent: what is high now is high five seconds later. The plain standard error of a least
squares slope is then too small, by several times. Here it is the one of Andrews and Monahan (1992, Econometrica 60):
the products of time and residual are whitened by a first-order autoregression, what is left is summed with Bartlett
weights (Newey and West 1987, Econometrica 55) up to the lag that Andrews (1991, Econometrica 59) gives, and coloured
again.

What it is worth, on 240 made values whose noise is an autoregression: the 95 % interval holds the true slope in 94 % of
the series at rho 0, 91 % at 0.8, 88 % at 0.9, and in 82 % at 0.95. `Trend.rho` says how the residuals were.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

POINTS_MIN = 12
"""Fewer say nothing about how noise remembers."""
Z_ONE_SIDED = 1.645
"""5 % of a normal distribution lie above."""
Z_TWO_SIDED = 1.960
_RHO_MAX = 0.97
"""A root nearer to 1 can not be told from a trend in any series that we have."""

_Series = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Trend:
    """A least squares line, in units a second."""

    mean: float
    slope: float
    slope_error: float
    """Standard error."""
    num_points: int
    duration_s: float
    rho: float
    """First-order autocorrelation of the residuals. Above 0.95 the standard error is too small."""

    def percent_an_hour(self, slope: float) -> float:
        return 100 * 3600 * slope / self.mean

    @property
    def percent(self) -> float:
        """The slope as a share of the mean, in percent an hour."""
        return self.percent_an_hour(self.slope)

    @property
    def percent_error(self) -> float:
        """Its standard error."""
        return self.percent_an_hour(self.slope_error)

    @property
    def percent_interval(self) -> tuple[float, float]:
        """95 %."""
        reach = Z_TWO_SIDED * self.percent_error
        return self.percent - reach, self.percent + reach


def fit_trend(times_s: Sequence[float], values: Sequence[float]) -> Trend:
    """The line through the values, evenly spaced or nearly so. Raises ValueError for fewer than POINTS_MIN of them."""
    if len(times_s) != len(values) or len(values) < POINTS_MIN:
        raise ValueError(f"{len(values)} values at {len(times_s)} times; at least {POINTS_MIN} are needed")
    time_s = np.asarray(times_s, dtype=np.float64)
    value = np.asarray(values, dtype=np.float64)
    centered = time_s - time_s.mean()
    spread = float(centered @ centered)
    slope = float(centered @ value) / spread
    residuals = value - value.mean() - slope * centered
    num = len(value)
    scores = centered * residuals
    variance = num * _long_run_variance(scores) / spread**2 * num / (num - 2)
    return Trend(
        mean=float(value.mean()),
        slope=slope,
        slope_error=math.sqrt(variance),
        num_points=num,
        duration_s=float(time_s[-1] - time_s[0]),
        rho=_autocorrelation(residuals),
    )


def _long_run_variance(scores: _Series) -> float:
    """Of the scores' mean, times their number: whitened, summed, coloured."""
    rho = _autocorrelation(scores)
    whitened = scores[1:] - rho * scores[:-1]
    return _bartlett_sum(whitened, _lag(whitened)) / (1 - rho) ** 2


def _autocorrelation(series: _Series) -> float:
    """Of first order, kept away from 1."""
    power = float(series[:-1] @ series[:-1])
    if power == 0:
        return 0.0
    return float(np.clip(series[1:] @ series[:-1] / power, -_RHO_MAX, _RHO_MAX))


def _lag(series: _Series) -> int:
    """How many lags are summed: Andrews' rule for Bartlett weights and a first-order autoregression."""
    rho = _autocorrelation(series)
    alpha = 4 * rho**2 / ((1 - rho) ** 2 * (1 + rho) ** 2)
    lag = math.ceil(1.1447 * math.pow(alpha * len(series), 1 / 3))
    return min(lag, len(series) // 4)


def _bartlett_sum(series: _Series, num_lags: int) -> float:
    """Never below 0, by the choice of the weights."""
    num = len(series)
    total = float(series @ series) / num
    for lag in range(1, num_lags + 1):
        total += 2 * (1 - lag / (num_lags + 1)) * float(series[lag:] @ series[:-lag]) / num
    return max(total, 0.0)
