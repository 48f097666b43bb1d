"""What all pictures have in common: the frame, its time axis, and the incidents across it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.client.history import History, Sample
from services.client.incidents import Incident
from services.report.markup import Markup, element, escape_text, join, text, title
from services.report.scales import LEFT, PLOT_WIDTH, RIGHT, WIDTH, Span, ValueScale, format_number

_MARK_LABEL_PX = 88.0
_LABEL_ROWS = 2
_BAND_PX_MIN = 0.5
LABEL_ROW_PX = 12.0
MARKS_PX = LABEL_ROW_PX * _LABEL_ROWS + 2
"""Room above a plot for the ids of incidents."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The samples, when each of them began, and what went wrong meanwhile."""

    span: Span
    samples: tuple[Sample, ...]
    starts_s: tuple[float, ...]
    interval_s: float
    incidents: tuple[Incident, ...]
    """Those that began or lasted in the span."""


def start_times(history: History) -> tuple[float, ...]:
    """When each sample began: where the one before it ended."""
    samples = history.samples
    if not samples:
        return ()
    return (samples[0].time_s - history.interval_s, *(sample.time_s for sample in samples[:-1]))


def draw_picture(name: str, span: Span, height: float, label: str, *children: Markup) -> Markup:
    """One SVG. `name` is that of its numbers in the page's data, for the script."""
    cross = element("path", class_="cross", d=f"M0 0v{height:.0f}")
    return element(
        "svg",
        *children,
        cross,
        class_="picture",
        data_chart=name,
        data_start=f"{span.start_s:.3f}",
        data_length=f"{span.length_s:.3f}",
        viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
        role="img",
        aria_label=label,
    )


def draw_grid(timeline: Timeline, top: float, bottom: float, *, with_times: bool) -> Markup:
    """Lines at round times, with their names below."""
    ticks = timeline.span.ticks()
    lines = "".join(f"M{timeline.span.x(time_s):.1f} {top:.0f}V{bottom:.0f}" for time_s, _ in ticks)
    names = [text(timeline.span.x(time_s), bottom + 14, name, "tick middle") for time_s, name in ticks]
    return join([element("path", class_="grid", d=lines), *(names if with_times else ())])


def draw_value_axis(
    scale: ValueScale, num_ticks: int, *, last: float | None = None, tell: Callable[[float], str] = format_number
) -> Markup:
    """Lines at round values, with their names at the left. `last` gives the end of the axis a name, too."""
    ticks = [tick for tick in scale.ticks(num_ticks) if last is None or scale.y(tick) - scale.y(last) > 11]
    lines = "".join(f"M{LEFT:.0f} {scale.y(tick):.1f}h{PLOT_WIDTH:.0f}" for tick in ticks)
    named = ticks if last is None else [*ticks, last]
    names = [text(LEFT - 6, scale.y(tick) + 3.5, tell(tick), "tick end") for tick in named]
    return join([element("path", class_="grid", d=lines), *names])


def draw_incidents(timeline: Timeline, top: float, bottom: float, *, with_ids: bool) -> Markup:
    """A line where each began, shaded until it was over; ids stand above, in rows, as far as there is room."""
    parts = [_draw_incident(timeline.span, incident, top, bottom) for incident in timeline.incidents]
    if with_ids:
        parts.append(_draw_ids(timeline, top))
    return join(parts)


def _draw_incident(span: Span, incident: Incident, top: float, bottom: float) -> Markup:
    """Nothing where it was over before the span, or began after it."""
    x, height = span.x(incident.time_s), bottom - top
    until = span.x(incident.over_s) if incident.over_s is not None else x
    band = element("rect", x=x, y=top, width=until - x, height=height, class_="trouble")
    line = element("path", d=f"M{x:.1f} {top:.0f}V{bottom:.0f}", class_="incident")
    parts = (
        band if until - x > _BAND_PX_MIN else Markup(""),
        line if span.contains(incident.time_s) else Markup(""),
    )
    words = f"{span.clock(incident.time_s)} {incident.kind}: {incident.message} ({incident.incident_id})"
    return element("g", title(words), *parts, class_="trouble-of") if any(parts) else Markup("")


def _draw_ids(timeline: Timeline, top: float) -> Markup:
    free_from = [0.0] * _LABEL_ROWS
    names: list[Markup] = []
    for incident in timeline.incidents:
        if not timeline.span.contains(incident.time_s):
            continue
        x = timeline.span.x(incident.time_s)
        is_at_edge = x > RIGHT - _MARK_LABEL_PX
        left = x - _MARK_LABEL_PX if is_at_edge else x
        row = next((row for row in range(_LABEL_ROWS) if free_from[row] <= left), None)
        if row is None:
            continue
        free_from[row] = left + _MARK_LABEL_PX
        name = shorten(incident.incident_id, 13)
        y = top - 4 - LABEL_ROW_PX * row
        names.append(text(x + 4, y, f"{name}▾", "mark end") if is_at_edge else text(x - 4, y, f"▾{name}", "mark"))
    return join(names)


def draw_legend(x: float, y: float, entries: Sequence[tuple[str, str, str]], *, row_px: float = 17.0) -> Markup:
    """Rows of (class of the colour, name, value). The value is that at the end."""
    parts: list[Markup] = []
    for row, (colour, name, value) in enumerate(entries):
        base = y + row * row_px
        parts.append(element("rect", x=x, y=base - 9, width=11.0, height=11.0, class_=f"swatch {colour}"))
        parts.append(text(x + 17, base, name, "name"))
        parts.append(text(LEFT - 62, base, value, "value end"))
    return join(parts)


def shorten(words: str, length: int) -> str:
    return words if len(words) <= length else words[: length - 1] + "…"


def caption(words: str) -> Markup:
    return element("p", escape_text(words), class_="note")
