"""Draws a growth curve as one self-contained SVG: log-log axes, lines with points, targets dashed, peers dotted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from itertools import cycle
from math import ceil, floor, log10

WIDTH, HEIGHT = 860, 480
LEFT, RIGHT, TOP, BOTTOM = 84, 250, 64, 64
COLORS = ("#0b6e99", "#c2410c", "#4d7c0f", "#7e22ce", "#b45309", "#0f766e")
PEER_COLOR = "#6b7280"
TARGET_COLOR = "#b91c1c"
LABEL_GAP = 15


Points = tuple[tuple[float, float], ...]
"""(size, µs), sizes ascending, both above 0."""


class Style(StrEnum):
    """How a line is drawn: what was measured, what is to be reached, what the peer takes."""

    MEASURED = "measured"
    TARGET = "target"
    PEER = "peer"


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    points: Points
    style: Style = Style.MEASURED


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    subtitle: str
    x_label: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic axis from 10 ** low to 10 ** high, drawn from pixel `start` to `stop`."""

    low: float
    high: float
    start: float
    stop: float

    def at(self, value: float) -> float:
        share = (log10(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)


def draw(plot: Plot) -> str:
    """The SVG's text. Needs at least one line with one point."""
    sizes = sorted({x for line in plot.lines for x, _ in line.points})
    times = [y for line in plot.lines for _, y in line.points]
    pad = 0.08
    horizontal = Axis(log10(sizes[0]) - pad, log10(sizes[-1]) + pad, LEFT, WIDTH - RIGHT)
    vertical = Axis(
        floor(log10(min(times))), max(ceil(log10(max(times))), floor(log10(min(times))) + 1), HEIGHT - BOTTOM, TOP
    )
    body = [*_frame(plot), *_vertical_grid(vertical), *_horizontal_ticks(horizontal, sizes, plot.x_label)]
    colors = cycle(COLORS)
    for line in plot.lines:
        body.extend(_curve(line, _color(line, colors), horizontal, vertical))
    body.extend(_labels(plot.lines, vertical))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="12" fill="#111827">'
    )
    return "\n".join((head, *body, "</svg>\n"))


def _color(line: Line, colors: Iterator[str]) -> str:
    match line.style:
        case Style.MEASURED:
            return next(colors)
        case Style.TARGET:
            return TARGET_COLOR
        case Style.PEER:
            return PEER_COLOR


def _text(x: float, y: float, text: str, anchor: str = "start", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(text)}</text>'


def _frame(plot: Plot) -> Iterator[str]:
    yield f"<title>{escape(plot.title)}</title>"
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    yield _text(LEFT, 26, plot.title, extra=' font-size="16" font-weight="bold"')
    yield _text(LEFT, 46, plot.subtitle, extra=' fill="#4b5563"')


def _vertical_grid(axis: Axis) -> Iterator[str]:
    """A line a decade, and thin ones at 2 and 5 of each."""
    for decade in range(int(axis.low), int(axis.high) + 1):
        for factor in (1, 2, 5) if decade < axis.high else (1,):
            y = axis.at(factor * 10.0**decade)
            color = "#d1d5db" if factor == 1 else "#f0f1f3"
            yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="{color}"/>'
            if factor == 1:
                yield _text(LEFT - 8, y + 4, _show_us(10.0**decade), "end")


def _show_us(time_us: float) -> str:
    for unit, scale in (("s", 1e6), ("ms", 1e3), ("µs", 1.0)):
        if time_us >= scale:
            return f"{time_us / scale:g} {unit}"
    return f"{time_us * 1000:g} ns"


def show_size(size: float) -> str:
    """1024 as 1 Ki, 1000 as 1k: whichever divides it; other sizes in full."""
    for scale, unit in ((1 << 20, " Mi"), (1_000_000, " M"), (1 << 10, " Ki"), (1000, "k")):
        if size >= scale and size % scale == 0:
            return f"{int(size) // scale:,}{unit}"
    return f"{size:,g}"


def _horizontal_ticks(axis: Axis, sizes: Sequence[float], label: str) -> Iterator[str]:
    bottom = HEIGHT - BOTTOM
    for size in sizes:
        x = axis.at(size)
        yield f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#f0f1f3"/>'
        yield f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 5}" stroke="#111827"/>'
        yield _text(x, bottom + 20, show_size(size), "middle")
    yield f'<line x1="{LEFT}" y1="{bottom}" x2="{WIDTH - RIGHT}" y2="{bottom}" stroke="#111827"/>'
    yield f'<line x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{bottom}" stroke="#111827"/>'
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16, label, "middle")


def _curve(line: Line, color: str, horizontal: Axis, vertical: Axis) -> Iterator[str]:
    """The points joined, each marked unless it is a target's, and a lead from the last one to its label."""
    places = [(horizontal.at(x), vertical.at(y)) for x, y in line.points]
    dashes = {Style.MEASURED: "", Style.TARGET: ' stroke-dasharray="7 4"', Style.PEER: ' stroke-dasharray="2 4"'}
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    width = 2 if line.style is Style.MEASURED else 1.5
    yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}"{dashes[line.style]}/>'
    for x, y in places:
        if line.style is Style.PEER:
            yield f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7" fill="#ffffff" stroke="{color}"/>'
        elif line.style is Style.MEASURED:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>'
        elif len(places) == 1:
            yield f'<line x1="{x - 12:.1f}" y1="{y:.1f}" x2="{x + 12:.1f}" y2="{y:.1f}" stroke="{color}"/>'


def _labels(lines: Sequence[Line], vertical: Axis) -> Iterator[str]:
    """Each line's name at the right, at the height of its last point, moved apart where they would touch."""
    colors = cycle(COLORS)
    named = [(vertical.at(line.points[-1][1]), line.label, _color(line, colors)) for line in lines]
    y = float(TOP - LABEL_GAP)
    for wanted, label, color in sorted(named):
        y = max(wanted + 4, y + LABEL_GAP)
        yield _text(WIDTH - RIGHT + 12, y, label, extra=f' fill="{color}"')
