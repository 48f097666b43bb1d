"""Who owned the units of a pool: a stacked area over time."""

from collections.abc import Sequence
from itertools import accumulate

from services.client.pools import Pool
from services.report.markup import Markup, element, join, text, title
from services.report.sampling import pick_extremes
from services.report.scales import LEFT, PLOT_WIDTH, RIGHT, ValueScale, format_number
from services.report.steps import StepGrid, lay_grid
from services.report.timeline import (
    MARKS_PX,
    Timeline,
    draw_grid,
    draw_incidents,
    draw_legend,
    draw_picture,
    draw_value_axis,
)

TERMS = (
    ("request", "uncached"),
    ("session", "session"),
    ("protected", "protected"),
    ("evictable", "evictable"),
    ("free", "available"),
)
"""From the bottom up: the class of the colour, which is the owner's everywhere, and the term of the equation."""
LOST = ("lost", "quarantined")
"""On top of the total: out of circulation."""
_MEANING = {
    "uncached": "owned by running turns",
    "session": "owned by sessions between their turns",
    "protected": "of the prefix cache, in use",
    "evictable": "of the prefix cache, free to take",
    "available": "owned by nobody",
    "quarantined": "lost, out of circulation",
}
_PLOT_PX = {"full": 210.0}
_OTHER_PLOT_PX = 120.0
_SLICES = 240
"""So many parts have their numbers as titles, for a browser that runs no script."""


def read_terms(pool: Pool | None) -> tuple[int, ...]:
    """In the order of TERMS, then what was lost; zeros without a pool."""
    if pool is None:
        return (0,) * (len(TERMS) + 1)
    return (pool.uncached, pool.session_held, pool.protected, pool.evictable, pool.available, pool.quarantined)


def collect_terms(timeline: Timeline, kind: str) -> tuple[list[list[int]], list[int], list[int]]:
    """Of each sample: the terms, one list for each; the totals; what drains."""
    pools = [next((pool for pool in sample.pools if pool.kind == kind), None) for sample in timeline.samples]
    columns = zip(*map(read_terms, pools), strict=True)
    totals = [pool.total if pool else 0 for pool in pools]
    return [list(column) for column in columns], totals, [pool.draining if pool else 0 for pool in pools]


def draw_pool(timeline: Timeline, kind: str, page_size: int) -> Markup:
    """`timeline` has one sample at least."""
    terms, totals, draining = collect_terms(timeline, kind)
    height = _PLOT_PX.get(kind, _OTHER_PLOT_PX)
    bottom = MARKS_PX + height
    top = max(total + lost for total, lost in zip(totals, terms[-1], strict=True))
    scale = ValueScale(top=float(max(top, 1)), base_y=bottom, height=height)
    indices = pick_extremes([*terms, totals, draining])
    grid = lay_grid(timeline.span, [timeline.starts_s[index] for index in indices], timeline.samples[-1].time_s)
    return draw_picture(
        f"pool-{kind}",
        timeline.span,
        bottom + 20,
        f"units of the pool {kind} by owner, over time",
        draw_legend(6, MARKS_PX + 10, _describe_terms(terms, totals, draining, with_cache=kind != "rows")),
        grid.place(
            timeline.span,
            scale,
            *_draw_bands(grid, [[column[index] for index in indices] for column in terms]),
            *_draw_drain(grid, [draining[index] for index in indices]),
            _draw_total(grid, [totals[index] for index in indices]),
        ),
        draw_grid(timeline, MARKS_PX, bottom, with_times=True),
        draw_value_axis(scale, 4 if height > _OTHER_PLOT_PX else 2, last=scale.top),
        _draw_tokens(scale, page_size),
        _draw_slices(timeline, terms, totals, draining, bottom),
        draw_incidents(timeline, MARKS_PX, bottom, with_ids=True),
    )


def _describe_terms(
    terms: Sequence[Sequence[int]], totals: Sequence[int], draining: Sequence[int], *, with_cache: bool
) -> list[tuple[str, str, str]]:
    """Rows of the legend, from the top down as they are stacked. The cache owns no rows, and seldom is a unit lost."""
    optional = {LOST[1], *(() if with_cache else ("evictable", "protected"))}
    rows = [
        (colour, name, f"{values[-1]:,}")
        for (colour, name), values in zip((*TERMS, LOST), terms, strict=True)
        if name not in optional or any(values)
    ]
    told = [*reversed(rows), ("total", "total", f"{totals[-1]:,}")]
    return [*told, ("draining", "of which draining", f"{draining[-1]:,}")] if any(draining) else told


def _draw_bands(grid: StepGrid, terms: Sequence[Sequence[int]]) -> list[Markup]:
    """The highest first, each from 0 up to its level: lower ones are painted over it.

    So at a spike the owner is seen, not who gave way.
    """
    levels = accumulate(terms, lambda below, values: [a + b for a, b in zip(below, values, strict=True)])
    bands = [
        element("path", title(f"{name}: {_MEANING[name]}"), d=grid.fill(level), class_=f"band {colour}", data_term=name)
        for (colour, name), level, values in zip((*TERMS, LOST), levels, terms, strict=True)
        if any(values)
    ]
    return bands[::-1]


def _draw_drain(grid: StepGrid, draining: Sequence[int]) -> list[Markup]:
    return [element("path", d=grid.fill(draining), class_="drain")] if any(draining) else []


def _draw_total(grid: StepGrid, totals: Sequence[int]) -> Markup:
    return element("path", d=grid.trace(totals), class_="total-line")


def _draw_tokens(scale: ValueScale, page_size: int) -> Markup:
    """The second axis, at the right: the same heights in tokens. Rows and states have none."""
    if page_size == 0:
        return Markup("")
    top = text(RIGHT + 6, scale.y(scale.top) + 3.5, f"{format_number(scale.top * page_size)} tok", "tick")
    rest = [tick for tick in scale.ticks(4) if scale.y(tick) - scale.y(scale.top) > 11]
    return join(
        [top, *(text(RIGHT + 6, scale.y(tick) + 3.5, format_number(tick * page_size), "tick") for tick in rest)]
    )


def _draw_slices(
    timeline: Timeline, terms: Sequence[Sequence[int]], totals: Sequence[int], draining: Sequence[int], bottom: float
) -> Markup:
    """Clear strips whose titles tell the books at their ends. The script takes them away: it tells every second."""
    count = min(len(totals), _SLICES)
    parts: list[Markup] = []
    x = timeline.span.x(timeline.starts_s[0]) if count else LEFT
    for number in range(count):
        index = (number + 1) * len(totals) // count - 1
        until = timeline.span.x(timeline.samples[index].time_s)
        told = [f"{name} {values[index]:,}" for (_, name), values in zip((*TERMS, LOST), terms, strict=True)]
        equation = " + ".join(told[:-1]) + f" = {totals[index]:,}"
        extra = f"; draining {draining[index]:,}; {told[-1]}"
        words = f"{timeline.span.clock(timeline.samples[index].time_s)} {equation}{extra}"
        parts.append(element("rect", title(words), x=x, y=MARKS_PX, width=until - x, height=bottom - MARKS_PX))
        x = until
    assert x <= LEFT + PLOT_WIDTH + 0.1, f"the last strip ends at {x}"
    return element("g", *parts, class_="slices")
