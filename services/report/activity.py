"""What the server did, second by second: strips of the same time axis below each other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.client.history import Sample
from services.report.markup import Markup, element, join, text, title
from services.report.sampling import pick_extremes
from services.report.scales import LEFT, ValueScale, format_ms, format_number
from services.report.timeline import Timeline, draw_grid, draw_incidents, draw_picture, draw_value_axis

_PLOT_PX = 62.0
_MOVE_PX = 17.0
_TOP_PX = 8.0
_LOG_FROM = 12.0
"""A strip of times is logarithmic when its highest value is so many times the middle one."""


@dataclass(frozen=True, slots=True)
class Series:
    """One number of every sample; None where there was nothing to measure."""

    name: str
    colour: str
    """A class."""
    values: tuple[float | None, ...]
    is_area: bool = False


@dataclass(frozen=True, slots=True)
class Strip:
    """Series that share an axis."""

    key: str
    name: str
    unit: str
    series: tuple[Series, ...]
    is_time: bool = False
    """In milliseconds: the axis may be logarithmic."""

    def tell(self, value: float) -> str:
        return format_ms(value) if self.is_time else f"{format_number(value)}{self.unit}"


MOVES = (
    ("grant", "free → turn", "request"),
    ("donate", "turn → cache", "protected"),
    ("park", "turn → session", "session"),
    ("lend", "session → turn", "request"),
    ("return", "turn → session", "session"),
    ("publish", "session → cache", "protected"),
    ("demote", "session → cache", "evictable"),
    ("evict", "cache → free", "idle"),
    ("release", "any → free", "idle"),
    ("quarantine", "any → lost", "lost"),
)
"""Name, from whom to whom, and the colour of whom the units go to."""


def build_strips(timeline: Timeline) -> tuple[Strip, ...]:
    """Those in which something was above 0."""
    return tuple(
        strip for strip in _read_strips(timeline) if any(value for series in strip.series for value in series.values)
    )


def _read_strips(timeline: Timeline) -> tuple[Strip, ...]:
    read = _Reader(timeline)
    running = read.levels("running", "request", lambda s: s.turns_running, is_area=True)
    waiting = read.levels("waiting", "ink", lambda s: s.turns_waiting)
    steps = read.rates("answered", "steps", lambda s: s.steps, is_area=True)
    failed = read.rates("failed", "bad", lambda s: s.steps_failed, is_area=True)
    step_ms = (
        read.times("longest", "faint", lambda s: s.step_ms_max),
        read.times("median", "steps", lambda s: s.step_ms_p50),
    )
    first_ms = (
        read.times("longest", "faint", lambda s: s.first_token_ms_max),
        read.times("median", "steps", lambda s: s.first_token_ms_p50),
    )
    return (
        Strip("turns", "turns", "", (running, waiting)),
        Strip("sessions", "sessions open", "", (read.levels("open", "session", lambda s: s.sessions_open),)),
        Strip("ended", "turns ended", "/s", (read.rates("ended", "steps", lambda s: s.turns_ended, is_area=True),)),
        Strip("steps", "steps", "/s", (steps,)),
        Strip("failed", "steps failed", "/s", (failed,)),
        Strip("step-ms", "step time", " ms", step_ms, is_time=True),
        Strip("first-ms", "first token", " ms", first_ms, is_time=True),
        Strip(
            "generated",
            "tokens generated",
            "/s",
            (read.rates("generated", "steps", lambda s: s.tokens_generated, is_area=True),),
        ),
        Strip(
            "computed",
            "tokens computed",
            "/s",
            (read.rates("computed", "request", lambda s: s.tokens_computed, is_area=True),),
        ),
    )


def build_moves(timeline: Timeline) -> tuple[Strip, ...]:
    """One for each move that happened."""
    read = _Reader(timeline)
    strips = (
        Strip(f"move-{name}", name, "/s", (read.rates(name, colour, _count_of(name), is_area=True),))
        for name, _, colour in MOVES
    )
    return tuple(strip for strip in strips if any(strip.series[0].values))


def draw_strip(timeline: Timeline, strip: Strip, *, with_times: bool) -> Markup:
    """Its name, unit and last values stand at the left; an axis from 0 (or logarithmic, and it says so)."""
    bottom = _TOP_PX + _PLOT_PX
    scale = _choose_scale(strip, bottom)
    log = " (log)" if scale.low is not None else ""
    lines = [_draw_series(timeline, series, scale) for series in strip.series]
    return draw_picture(
        strip.key,
        timeline.span,
        bottom + (20 if with_times else 6),
        f"{strip.name}{strip.unit}, over time",
        text(6, _TOP_PX + 9, f"{strip.name}{log}", "strong"),
        *_name_series(strip),
        draw_grid(timeline, _TOP_PX, bottom, with_times=with_times),
        draw_value_axis(scale, 2 if scale.top > 1 else 1, tell=format_ms if strip.is_time else format_number),
        *lines,
        draw_incidents(timeline, _TOP_PX, bottom, with_ids=False),
    )


def draw_move(timeline: Timeline, strip: Strip, *, with_times: bool) -> Markup:
    """One row: the name, from whom to whom, and the peak, which is the height of the row."""
    bottom = _MOVE_PX + 3
    scale = ValueScale(top=_peak(strip), base_y=bottom, height=_MOVE_PX)
    series = strip.series[0]
    direction = next(direction for name, direction, _ in MOVES if name == strip.name)
    return draw_picture(
        strip.key,
        timeline.span,
        bottom + (20 if with_times else 3),
        f"{strip.name} moves a second, over time",
        element("rect", x=6.0, y=bottom - 11, width=11.0, height=11.0, class_=f"swatch {series.colour}"),
        text(23, bottom - 2, strip.name, "name"),
        text(92, bottom - 2, direction, "faint"),
        text(LEFT - 6, bottom - 2, strip.tell(_peak(strip)), "tick end"),
        draw_grid(timeline, 3, bottom, with_times=with_times),
        _draw_series(timeline, series, scale),
        draw_incidents(timeline, 3, bottom, with_ids=False),
    )


def _name_series(strip: Strip) -> list[Markup]:
    parts: list[Markup] = []
    for row, series in enumerate(strip.series):
        y = _TOP_PX + 26 + 16 * row
        parts.append(element("rect", x=6.0, y=y - 9, width=11.0, height=11.0, class_=f"swatch {series.colour}"))
        parts.append(text(23, y, series.name, "name"))
        parts.append(text(LEFT - 62, y, f"max {strip.tell(_peak_of(series))}", "value end"))
    return parts


def _choose_scale(strip: Strip, bottom: float) -> ValueScale:
    top = _peak(strip)
    values = sorted(value for series in strip.series for value in series.values if value)
    if strip.is_time and values and values[-1] > _LOG_FROM * values[len(values) // 2]:
        low, high = 10.0 ** _floor_power(values[0]), 10.0 ** (_floor_power(values[-1]) + 1)
        return ValueScale(top=high, base_y=bottom, height=_PLOT_PX, low=low)
    return ValueScale(top=top, base_y=bottom, height=_PLOT_PX)


def _floor_power(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])


def _peak_of(series: Series) -> float:
    return max((value for value in series.values if value is not None), default=0.0)


def _peak(strip: Strip) -> float:
    return max(map(_peak_of, strip.series)) or 1.0


def _draw_series(timeline: Timeline, series: Series, scale: ValueScale) -> Markup:
    """A step line, broken where there is nothing; an area has its outline only where it is above 0."""
    if not any(series.values):
        return Markup("")
    indices = pick_extremes([series.values])
    ends_s = [*(timeline.starts_s[index] for index in indices[1:]), timeline.samples[-1].time_s]
    path = _Path(scale.base_y if series.is_area else None)
    for index, end_s in zip(indices, ends_s, strict=True):
        value = series.values[index]
        if value is None or (series.is_area and value == 0):
            path.lift()
        else:
            path.go(timeline.span.x(timeline.starts_s[index]), timeline.span.x(end_s), scale.y(value))
    kind = "area" if series.is_area else "line"
    return element("path", title(series.name), d=path.finish(), class_=f"{kind} {series.colour}")


class _Path:
    """A step line in pieces. With a base each piece is closed along it."""

    def __init__(self, base_y: float | None) -> None:
        self._base_y = base_y
        self._parts: list[str] = []
        self._start_x: float | None = None

    def go(self, x: float, until_x: float, y: float) -> None:
        if self._start_x is None:
            self._start_x = x
            self._parts.append(f"M{x:.1f} {y:.1f}")
        else:
            self._parts.append(f"V{y:.1f}")
        self._parts.append(f"H{until_x:.1f}")

    def lift(self) -> None:
        if self._start_x is not None and self._base_y is not None:
            self._parts.append(f"V{self._base_y:.1f}H{self._start_x:.1f}z")
        self._start_x = None

    def finish(self) -> str:
        self.lift()
        return "".join(self._parts)


def _count_of(name: str) -> Callable[[Sample], float]:
    return lambda sample: sample.moves.get(name, 0)


class _Reader:
    """Takes series out of the samples."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def levels(self, name: str, colour: str, read: Callable[[Sample], float], *, is_area: bool = False) -> Series:
        return Series(name, colour, tuple(map(read, self._timeline.samples)), is_area)

    def rates(self, name: str, colour: str, read: Callable[[Sample], float], *, is_area: bool = False) -> Series:
        """A second. A last sample that is not over yet counts as a whole one: it may just have begun."""
        interval_s = self._timeline.interval_s
        return Series(name, colour, tuple(read(sample) / interval_s for sample in self._timeline.samples), is_area)

    def times(self, name: str, colour: str, read: Callable[[Sample], float]) -> Series:
        """In milliseconds; 0 says that there was none."""
        return Series(name, colour, tuple(read(sample) or None for sample in self._timeline.samples))


def draw_strips(timeline: Timeline, strips: Sequence[Strip], draw: Callable[..., Markup]) -> Markup:
    """Below each other; the times stand below the last one."""
    return join(draw(timeline, strip, with_times=strip is strips[-1]) for strip in strips)
