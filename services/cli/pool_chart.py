"""One pool over time: a row for each stretch of it, with a bar that is split by owner, and the numbers beside it."""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from services.cli.top_view.numbers import format_rate
from services.cli.top_view.owners import OWNERS, share_cells
from services.client import Pool
from services.client.history import Sample

ROWS_MAX = 24
BAR_CELLS = 32
_STRETCHES_S = (1, 2, 3, 5, 10, 15, 20, 30, 60, 90, 120, 150)
_THOUSAND = 1000
_WORK_MEANS = "moves/s: hand-overs of units, of all pools; step ms: from plan to answer, the median"
_MEANINGS = {
    "available": "nobody's",
    "evictable": "of the prefix cache, used by nobody: can be taken at once",
    "protected": "of the prefix cache, used by a turn or a session",
    "session": "of sessions, between their turns",
    "uncached": "of turns that run",
    "quarantined": "lost, and out of circulation: a defect, please report it",
}


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some samples in a row, never none."""

    samples: tuple[Sample, ...]
    seconds: float

    @property
    def end_s(self) -> float:
        return self.samples[-1].time_s

    @property
    def num_steps(self) -> int:
        return sum(sample.steps for sample in self.samples)

    @property
    def num_moves(self) -> int:
        return sum(sum(sample.moves.values()) for sample in self.samples)

    def fullest(self, kind: str) -> Pool:
        """The books of the second with the least available: the last one of several."""
        return min((sample.find(kind) for sample in reversed(self.samples)), key=lambda pool: pool.available)

    def step_ms_p50(self) -> float | None:
        """The median of the seconds' medians, each as often as it had steps. None without any step."""
        return _weighted_median((sample.step_ms_p50, sample.steps) for sample in self.samples)


def make_stretches(samples: Sequence[Sample], interval_s: float) -> list[Stretch]:
    """At most `ROWS_MAX`, of a round number of seconds each; the last one ends with the samples."""
    least = math.ceil(len(samples) * interval_s / ROWS_MAX)
    stretch_s = next((fit for fit in _STRETCHES_S if fit >= least), least)
    size = max(1, round(stretch_s / interval_s))
    first = len(samples) % size or size  # the oldest one may be shorter
    cuts = [0, *range(first, len(samples) + 1, size)]
    return [Stretch(tuple(samples[at:end]), (end - at) * interval_s) for at, end in pairwise(cuts)]


def format_chart(kind: str, stretches: Sequence[Stretch], *, with_work: bool = True) -> str:
    """Two lines of heads, the signs of the bar above the names of who has them, then the rows.

    Below 100 columns wide for pools of up to a million units. `with_work`: moves of all pools, and steps.
    """
    owners = [owner for owner in OWNERS if any(owner.count(stretch.fullest(kind)) for stretch in stretches)]
    work_heads = ["moves/s", "steps/s", "step ms"] if with_work else []
    signs = ["", "", *(owner.sign for owner in owners), *("" for _ in work_heads)]
    heads = ["until", "", *(owner.short for owner in owners), *work_heads]
    rows = [signs, heads]
    for stretch in stretches:
        pool = stretch.fullest(kind)
        until = time.strftime("%H:%M:%S", time.localtime(stretch.end_s))
        counts = [_shorten(owner.count(pool)) for owner in owners]
        rows.append([until, format_bar(pool), *counts, *(_describe_work(stretch) if with_work else [])])
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    return "\n".join(
        " ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _describe_work(stretch: Stretch) -> list[str]:
    step_ms = stretch.step_ms_p50()
    return [
        format_rate(stretch.num_moves / stretch.seconds),
        format_rate(stretch.num_steps / stretch.seconds),
        format_rate(step_ms),
    ]


def format_bar(pool: Pool) -> str:
    """As wide as `BAR_CELLS`: a sign for each owner, in proportion, at least one for whoever has a unit."""
    shares = share_cells([owner.count(pool) for owner in OWNERS], BAR_CELLS)
    return "".join(owner.sign * share for owner, share in zip(OWNERS, shares, strict=True)).ljust(BAR_CELLS)


def format_legend() -> str:
    """What each sign means, a line each, and which numbers stand behind the bars."""
    width = max(len(owner.label) for owner in OWNERS)
    lines = [f"  {owner.sign} {owner.label.ljust(width)}  {_MEANINGS[owner.label]}" for owner in OWNERS]
    return "\n".join((*lines, f"  {_WORK_MEANS}"))


def _shorten(count: int) -> str:
    """Up to four characters below a million: as it is, or in whole thousands."""
    return str(count) if count < 10 * _THOUSAND else f"{count // _THOUSAND}k"


def _weighted_median(values: Iterable[tuple[float, int]]) -> float | None:
    ordered = sorted((value, weight) for value, weight in values if weight)
    left = sum(weight for _, weight in ordered) / 2
    for value, weight in ordered:
        left -= weight
        if left <= 0:
            return value
    return None
