"""Where a time and a value lie in a picture, what stands at the axes, and how numbers and times are told."""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

WIDTH = 1280.0
"""Of all pictures, in pixels. They share one time axis, so that what happened at once stands below each other."""
LEFT = 236.0
"""Where the plot begins; names and axis stand before it."""
PLOT_WIDTH = 976.0
RIGHT = LEFT + PLOT_WIDTH

_TIME_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400)
_TIME_TICKS_MAX = 10


@dataclass(frozen=True, slots=True)
class Span:
    """The time that is shown, in seconds since 1970, and the zone in which it is told."""

    start_s: float
    end_s: float
    zone: tzinfo

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s

    def x(self, time_s: float) -> float:
        """Times outside lie at the edge."""
        share = (time_s - self.start_s) / self.length_s
        return LEFT + PLOT_WIDTH * min(max(share, 0.0), 1.0)

    def contains(self, time_s: float) -> bool:
        return self.start_s <= time_s <= self.end_s

    def wall(self, time_s: float) -> datetime:
        return datetime.fromtimestamp(time_s, self.zone)

    def clock(self, time_s: float) -> str:
        return self.wall(time_s).strftime("%H:%M:%S")

    def offset(self) -> str:
        """As in `UTC+02:00`."""
        minutes = round((self.wall(self.start_s).utcoffset() or timedelta()).total_seconds() / 60)
        sign = "-" if minutes < 0 else "+"
        return f"UTC{sign}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"

    def ticks(self) -> list[tuple[float, str]]:
        """Round times by the wall clock, with their names."""
        step = next((step for step in _TIME_STEPS_S if self.length_s / step <= _TIME_TICKS_MAX), _TIME_STEPS_S[-1])
        offset = (self.wall(self.start_s).utcoffset() or timedelta()).total_seconds()
        first = math.ceil((self.start_s + offset) / step) * step - offset
        count = int((self.end_s - first) // step) + 1
        form = "%H:%M" if step % 60 == 0 else "%H:%M:%S"
        return [(first + i * step, self.wall(first + i * step).strftime(form)) for i in range(count)]


@dataclass(frozen=True, slots=True)
class ValueScale:
    """Values from 0 to `top` on a plot whose base is at `base_y`. Logarithmic ones begin at `low`."""

    top: float
    base_y: float
    height: float
    low: float | None = None

    def y(self, value: float) -> float:
        if self.low is None:
            share = value / self.top
        else:
            share = math.log(max(value, self.low) / self.low) / math.log(self.top / self.low)
        return self.base_y - self.height * min(share, 1.0)

    def ticks(self, count: int = 3) -> list[float]:
        """Round values in it."""
        if self.low is None:
            return round_ticks(self.top, count)
        first, last = round(math.log10(self.low)), round(math.log10(self.top))
        stride = max(1, math.ceil((last - first) / (count + 1)))
        return [10.0**power for power in range(first, last + 1, stride)]


def round_ticks(top: float, count: int) -> list[float]:
    """From 0 up to `top`, about `count` steps of 1, 2 or 5 times a power of ten."""
    if top <= 0:
        return [0.0]
    rough = top / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return [i * step for i in range(int(top / step + 1e-9) + 1)]


def format_number(value: float) -> str:
    """Short: 3, 0.25, 1,234, 12.3k, 4.5M."""
    if value != value or value in (math.inf, -math.inf):
        return "?"
    if abs(value) >= 1_000_000:
        return f"{value / 1_000_000:.3g}M"
    if abs(value) >= 10_000:
        return f"{value / 1000:.3g}k" if abs(value) < 999_500 else "1M"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def format_ms(milliseconds: float) -> str:
    """As in 0.4 ms, 22 ms, 4.7 s."""
    if milliseconds >= 1000:
        return f"{format_number(float(f'{milliseconds / 1000:.3g}'))} s"
    return f"{format_number(milliseconds)} ms"


def format_length(seconds: float) -> str:
    """As in 0.4 s, 12 s, 3 min 20 s, 1 h."""
    if seconds < 9.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    parts = [(whole // 3600, "h"), (whole % 3600 // 60, "min"), (whole % 60, "s")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "0 s"
