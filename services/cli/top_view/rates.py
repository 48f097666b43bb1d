"""How things went in the last minute: a row for each rate, with its value, its course and its highest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.text import Text

from services.cli.top_view.inert import crop, tame
from services.cli.top_view.numbers import format_rate
from services.cli.top_view.owners import BLUE, GREEN, ORANGE, TEAL
from services.cli.top_view.reading import HISTORY_S
from services.client import History, Pool, Sample
from services.client.pools import name_units

RATE_S = 5.0
"""What "now" means: the mean over so many seconds."""
_SIGNS = "▁▂▃▄▅▆▇█"
_LABEL_WIDTH = 15
_VALUE_WIDTH = 8
_SPARK_WIDTHS = (60, 30, 20)
_ASIDE_WIDTH = 24
"""Room for what stands behind a course."""
_SHORT_OF_ONE = 0.9
"""A sample that is shorter than this part of an interval is not over yet."""


@dataclass(frozen=True, slots=True)
class Trend:
    """One row. Values are one a sample, oldest first; None: nothing to measure in it."""

    label: str
    values: tuple[float | None, ...]
    now: float | None
    highest: float | None
    colour: str
    aside: str = ""
    scale: float | None = None
    """What fills a cell; None: the highest."""


def finished_samples(history: History) -> tuple[Sample, ...]:
    """Those of the last minute that are over."""
    samples = tuple(
        sample for sample in history.samples if sample.time_s > history.now_s - HISTORY_S - history.interval_s
    )
    while samples and samples[-1].time_s > history.now_s:
        samples = samples[:-1]
    begun_s = samples[-2].time_s if len(samples) > 1 else history.started_s
    if samples and samples[-1].time_s - begun_s < _SHORT_OF_ONE * history.interval_s:
        return samples[:-1]
    return samples


def measure_trends(samples: Sequence[Sample], interval_s: float) -> list[Trend]:
    recent = _recent(samples, interval_s)
    failed = sum(sample.steps_failed for sample in samples)
    return [
        _rate("steps/s", samples, interval_s, lambda sample: sample.steps, TEAL, f"{failed} failed" if failed else ""),
        _rate("tokens/s", samples, interval_s, lambda sample: sample.tokens_generated, GREEN, "generated"),
        *_owned(samples),
        _latency("step ms", samples, recent, lambda s: (s.step_ms_p50, s.step_ms_max, s.steps), ORANGE),
        _latency("first token ms", samples, recent, lambda s: (s.first_token_ms_p50, s.first_token_ms_max, 1), ORANGE),
    ]


def _recent(samples: Sequence[Sample], interval_s: float) -> Sequence[Sample]:
    return samples[-max(1, round(RATE_S / interval_s)) :] if samples else ()


def _rate(
    label: str, samples: Sequence[Sample], interval_s: float, count: Callable[[Sample], int], colour: str, aside: str
) -> Trend:
    values = tuple(count(sample) / interval_s for sample in samples)
    recent = [count(sample) / interval_s for sample in _recent(samples, interval_s)]
    return Trend(label, values, fmean(recent) if recent else None, max(values, default=None), colour, aside)


def _owned(samples: Sequence[Sample]) -> list[Trend]:
    """Units that turns and sessions own, of each pool but the rows: what the prefix cache holds can be taken back at
    once."""
    if not samples:
        return [Trend("pages owned", (), None, None, BLUE)]
    return [_owned_of(samples, pool) for pool in samples[-1].pools if pool.kind != "rows"]


def _owned_of(samples: Sequence[Sample], pool: Pool) -> Trend:
    """`pool`: as it is in the last of the samples."""
    books = (sample.find(pool.kind) for sample in samples)
    values = tuple(each.uncached + each.session_held for each in books)
    name = f"{name_units(pool.kind)} owned"
    return Trend(name, values, values[-1], max(values), BLUE, f"of {pool.total:,}", pool.total)


def _latency(
    label: str,
    samples: Sequence[Sample],
    recent: Sequence[Sample],
    measure: Callable[[Sample], tuple[float, float, int]],
    colour: str,
) -> Trend:
    """The medians of samples; now is the median of the recent ones, each as often as it has steps."""
    values = tuple(measure(sample)[0] or None for sample in samples)
    weighted = [(p50, num) for p50, _, num in map(measure, recent) if p50 > 0]
    highest = max((measure(sample)[1] for sample in samples), default=0.0)
    return Trend(label, values, _weighted_median(weighted), highest or None, colour, "p50 and max")


def _weighted_median(values: Sequence[tuple[float, int]]) -> float | None:
    half, passed = sum(num for _, num in values) / 2, 0
    for value, num in sorted(values):
        passed += num
        if passed >= half:
            return value
    return None


def sum_moves(samples: Sequence[Sample], interval_s: float) -> list[tuple[str, float]]:
    """Hand-overs a second by the name of the move, the most frequent first."""
    recent = _recent(samples, interval_s)
    names = sorted({name for sample in recent for name in sample.moves})
    span_s = len(recent) * interval_s
    rates = [(name, sum(sample.moves.get(name, 0) for sample in recent) / span_s) for name in names]
    return sorted(((name, rate) for name, rate in rates if rate > 0), key=lambda move: (-move[1], move[0]))


def render_rates(history: History, width: int) -> list[Text]:
    """A head, the trends, and the moves."""
    samples = finished_samples(history)
    spark_width = _spark_width(width)
    head = (
        "".ljust(_LABEL_WIDTH)
        + f"last {RATE_S:.0f} s".rjust(_VALUE_WIDTH)
        + "  "
        + f"last {HISTORY_S:.0f} s".ljust(spark_width)
        + ("highest".rjust(_VALUE_WIDTH) if spark_width else "")
    )
    lines = [Text(head, style="dim")]
    lines += [_render_trend(trend, spark_width) for trend in measure_trends(samples, history.interval_s)]
    lines.append(_render_moves(sum_moves(samples, history.interval_s), width))
    return [crop(line, width) for line in lines]


def _spark_width(width: int) -> int:
    room = width - _LABEL_WIDTH - _VALUE_WIDTH - _ASIDE_WIDTH
    return next((cells for cells in _SPARK_WIDTHS if cells <= room), 0)


def _render_trend(trend: Trend, spark_width: int) -> Text:
    line = Text(trend.label.ljust(_LABEL_WIDTH)).append(format_rate(trend.now).rjust(_VALUE_WIDTH), style="bold")
    if not spark_width:
        return line
    line.append("  ").append(render_spark(trend.values, spark_width, _scale(trend)), style=trend.colour)
    line.append(format_rate(trend.highest).rjust(_VALUE_WIDTH))
    return line.append(f"  {trend.aside}", style="red" if trend.aside.endswith("failed") else "dim")


def _scale(trend: Trend) -> float:
    return trend.highest or 0.0 if trend.scale is None else trend.scale


def render_spark(values: Sequence[float | None], cells: int, scale: float) -> str:
    """The last minute in `cells`, newest at the right; a blank where nothing is known. `scale` fills a cell."""
    per_cell = max(1, int(HISTORY_S) // cells)
    newest = values[-cells * per_cell :]
    padded: tuple[float | None, ...] = (*[None] * (cells * per_cell - len(newest)), *newest)
    return "".join(_sign(_fold(padded[start : start + per_cell]), scale) for start in range(0, len(padded), per_cell))


def _fold(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _sign(value: float | None, scale: float) -> str:
    """The lowest sign is for 0 alone."""
    if value is None:
        return " "
    if value <= 0 or scale <= 0:
        return _SIGNS[0]
    return _SIGNS[min(max(1, round(value / scale * (len(_SIGNS) - 1))), len(_SIGNS) - 1)]


def _render_moves(moves: Sequence[tuple[str, float]], width: int) -> Text:
    """All of them together, and as many of the most frequent ones as there is room for."""
    line = Text("moves/s".ljust(_LABEL_WIDTH))
    line.append(format_rate(sum((rate for _, rate in moves), 0.0)).rjust(_VALUE_WIDTH), style="bold")
    gap = "  "
    for name, rate in moves:
        part = Text(gap).append(f"{tame(name)} ", style="dim").append(format_rate(rate), style="bold")
        if line.cell_len + part.cell_len > width:
            break
        line.append_text(part)
        gap = "   "
    return line
