"""The numbers behind the pictures, for the page's script: what it shows where the pointer is."""

import json
from collections.abc import Sequence
from datetime import timedelta

from services.report.activity import Series, Strip
from services.report.areas import LOST, TERMS, collect_terms
from services.report.markup import Markup
from services.report.scales import LEFT, PLOT_WIDTH, WIDTH
from services.report.timeline import Timeline

Row = tuple[str, str, str, list[float | None]]
"""Name, class of its colour, unit, and its value in each sample, or only one when all are the same."""


def format_numbers(timeline: Timeline, kinds: Sequence[str], strips: Sequence[Strip]) -> Markup:
    """A script element with data: it can not end early, whatever names are in it."""
    span = timeline.span
    charts = {f"pool-{kind}": _collect_pool(timeline, kind) for kind in kinds}
    charts |= {strip.key: [_collect(series, strip.unit) for series in strip.series] for strip in strips}
    numbers = {
        "start": span.start_s,
        "offset": (span.wall(span.start_s).utcoffset() or timedelta()).total_seconds(),
        "left": LEFT,
        "plot": PLOT_WIDTH,
        "width": WIDTH,
        "ends": [_shorten(sample.time_s - span.start_s) for sample in timeline.samples],
        "charts": {name: list(map(_fold, rows)) for name, rows in charts.items()},
    }
    told = json.dumps(numbers, separators=(",", ":")).replace("<", "\\u003c")
    return Markup(f'<script type="application/json" id="numbers">{told}</script>')


def _collect_pool(timeline: Timeline, kind: str) -> list[Row]:
    terms, totals, draining = collect_terms(timeline, kind)
    rows: list[Row] = [
        (name, colour, "", [*values]) for (colour, name), values in zip((*TERMS, LOST), terms, strict=True)
    ]
    if not any(terms[-1]):
        rows.pop()
    rows = [*reversed(rows), ("total", "total", "", [*totals])]
    return [*rows, ("draining", "draining", "", [*draining])] if any(draining) else rows


def _collect(series: Series, unit: str) -> Row:
    return (series.name, series.colour, unit, [None if value is None else _shorten(value) for value in series.values])


def _fold(row: Row) -> Row:
    name, colour, unit, values = row
    return (name, colour, unit, values[:1] if len(set(values)) == 1 else values)


def _shorten(value: float) -> float:
    """Four digits are enough to read."""
    return int(value) if value == int(value) else float(f"{value:.4g}") if value < 1000 else round(value, 1)
