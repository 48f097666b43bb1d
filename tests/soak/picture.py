"""Resident memory over time, as one self-contained SVG."""

import math
from collections.abc import Iterator, Sequence
from html import escape

from tests.soak.memory import MIB, Reading, late_readings
from tests.soak.trend import Trend

WIDTH, HEIGHT = 860, 380
LEFT, RIGHT, TOP, BOTTOM = 84, 30, 70, 56
_TICKS = 5


class _Scale:
    """Values from `low` to `high` on pixels from `start` to `stop`."""

    def __init__(self, low: float, high: float, start: float, stop: float) -> None:
        self._low, self._high = low, high if high > low else low + 1
        self._start, self._stop = start, stop

    def at(self, value: float) -> float:
        return self._start + (value - self._low) / (self._high - self._low) * (self._stop - self._start)

    def ticks(self) -> list[float]:
        """Round numbers inside, some five of them."""
        rough = (self._high - self._low) / _TICKS
        power = 10 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
        first = math.ceil(self._low / step)
        return [place * step for place in range(first, math.floor(self._high / step) + 1)]


def draw(readings: Sequence[Reading], trend: Trend | None, subtitle: str) -> str:
    """The SVG's text. Needs two readings or more."""
    minutes = _Scale(0, readings[-1].time_s / 60, LEFT, WIDTH - RIGHT)
    values = [each.resident_bytes / MIB for each in readings]
    # From zero nothing could be seen: the axis says where it begins.
    pad = max(2.0, 0.15 * (max(values) - min(values)))
    mib = _Scale(min(values) - pad, max(values) + pad, HEIGHT - BOTTOM, TOP)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="12" fill="#111827">'
    )
    body = [
        "<title>Resident memory of the server</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 26, "Resident memory of the server under mixed load", extra=' font-size="16" font-weight="bold"'),
        _text(LEFT, 46, subtitle, extra=' fill="#4b5563"'),
        *_axes(minutes, mib),
        _line(((each.time_s / 60, each.resident_bytes / MIB) for each in readings), minutes, mib, "#0b6e99", ""),
    ]
    if trend is not None:
        body += _trend(readings, trend, minutes, mib)
    return "\n".join((head, *body, "</svg>\n"))


def _trend(readings: Sequence[Reading], trend: Trend, minutes: _Scale, mib: _Scale) -> Iterator[str]:
    late = late_readings(readings)
    first_s, last_s = late[0].time_s, late[-1].time_s
    middle_s = sum(each.time_s for each in late) / len(late)
    ends = [(time_s / 60, (trend.mean + trend.slope * (time_s - middle_s)) / MIB) for time_s in (first_s, last_s)]
    yield _line(iter(ends), minutes, mib, "#b91c1c", ' stroke-dasharray="7 4"')
    low, high = trend.percent_interval
    told = f"{trend.percent:+.2f} % an hour (95 %: {low:+.2f} to {high:+.2f})"
    yield _text(WIDTH - RIGHT, 46, told, "end", ' fill="#b91c1c"')


def _axes(minutes: _Scale, mib: _Scale) -> Iterator[str]:
    bottom = HEIGHT - BOTTOM
    for value in mib.ticks():
        y = mib.at(value)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e5e7eb"/>'
        yield _text(LEFT - 8, y + 4, f"{value:,g} MiB", "end")
    for value in minutes.ticks():
        x = minutes.at(value)
        yield f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 5}" stroke="#111827"/>'
        yield _text(x, bottom + 20, f"{value:.3g}", "middle")
    yield f'<line x1="{LEFT}" y1="{bottom}" x2="{WIDTH - RIGHT}" y2="{bottom}" stroke="#111827"/>'
    yield _text(
        (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "minutes of load (the vertical axis does not begin at 0)", "middle"
    )


def _line(points: Iterator[tuple[float, float]], minutes: _Scale, mib: _Scale, color: str, extra: str) -> str:
    path = " ".join(f"{minutes.at(x):.1f},{mib.at(y):.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{extra}/>'


def _text(x: float, y: float, text: str, anchor: str = "start", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(text)}</text>'
