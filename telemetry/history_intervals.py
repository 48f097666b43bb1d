"""The intervals of the last hour: one that is filled, and those that are over."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.core.snapshot import PoolBooks
from telemetry.history_records import Sample
from telemetry.sample_ring import SampleRing

INTERVAL_S = 1.0
SAMPLES_MAX = 3600
_VALUES_MAX = 1024
_MS = 1000.0


class Spread:
    """Median and maximum of any number of values, of which it keeps `_VALUES_MAX` at most: every 2nd, every 4th, ..."""

    def __init__(self) -> None:
        self._kept: list[float] = []
        self._stride = 1
        self._to_skip = 0
        self.max = 0.0
        """0 without any value. Values are not negative."""

    def add(self, value: float) -> None:
        if value > self.max:
            self.max = value
        if self._to_skip:
            self._to_skip -= 1
            return
        self._to_skip = self._stride - 1
        self._kept.append(value)
        if len(self._kept) >= _VALUES_MAX:
            self._kept = self._kept[::2]
            self._stride *= 2

    def median(self) -> float:
        """The upper one of two; 0 without any value."""
        return sorted(self._kept)[len(self._kept) // 2] if self._kept else 0.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What is true at an instant."""

    pools: tuple[PoolBooks, ...]
    sessions_open: int
    turns_running: int
    turns_waiting: int


@dataclass(slots=True)
class Interval:
    """What happened so far in interval `index` since the beginning."""

    index: int
    moves: dict[str, int] = field(default_factory=dict)
    moved_units: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    steps_failed: int = 0
    tokens_computed: int = 0
    tokens_generated: int = 0
    turns_ended: int = 0
    step_s: Spread = field(default_factory=Spread)
    first_token_s: Spread = field(default_factory=Spread)
    num_facts: int = 0

    def sample(self, time_s: float, standing: Standing) -> Sample:
        return Sample(
            time_s=time_s,
            pools=standing.pools,
            moves=dict(self.moves),
            moved_units=dict(self.moved_units),
            steps=self.steps,
            steps_failed=self.steps_failed,
            tokens_computed=self.tokens_computed,
            tokens_generated=self.tokens_generated,
            turns_ended=self.turns_ended,
            sessions_open=standing.sessions_open,
            turns_running=standing.turns_running,
            turns_waiting=standing.turns_waiting,
            step_ms_p50=self.step_s.median() * _MS,
            step_ms_max=self.step_s.max * _MS,
            first_token_ms_p50=self.first_token_s.median() * _MS,
            first_token_ms_max=self.first_token_s.max * _MS,
            num_facts=self.num_facts,
        )


class Intervals:
    """Samples of the intervals in which something was told; those between them are made up when they are read.

    So an hour of silence costs nothing when it ends. Indices count from the beginning, at `origin_s` of the monotonic
    clock and `started_s` of the wall clock, which is not asked again: a step of it bends nothing.
    """

    def __init__(self, origin_s: float, started_s: float, standing: Standing) -> None:
        self._origin_s = origin_s
        self.started_s = started_s
        self.open = Interval(0)
        self.open_until_s = origin_s + INTERVAL_S
        """Monotonic. What is told then or later belongs to another interval: `turn` to it first."""
        first = Interval(-1).sample(started_s, standing)
        # With one more than is ever shown, what stood before the first one shown is always known.
        self._over = SampleRing([books.pool for books in standing.pools], SAMPLES_MAX + 1)
        self._over.append(-1, first)

    def unix_s(self, now_s: float) -> float:
        return self.started_s + (now_s - self._origin_s)

    def turn(self, now_s: float, standing: Standing) -> None:
        """The open interval is over; `standing` is as at its end."""
        index = self.open.index
        self._over.append(index, self.open.sample(self._end_of(index), standing))
        self.open = Interval(max(index + 1, self._index_of(now_s)))
        self.open_until_s = self._origin_s + (self.open.index + 1) * INTERVAL_S

    def capture(self, last_s: float | None, now_s: float, standing: Standing) -> "Past":
        """What is known now of the last so many seconds, or of all that is kept."""
        newest = self.open.index
        first = max(0, newest - SAMPLES_MAX + 1)
        if last_s is not None:
            first = max(first, min(newest, self._index_of(max(now_s - last_s, self._origin_s))))
        return Past(self.started_s, first, newest, self._over.copy(), self.open.sample(self.unix_s(now_s), standing))

    def _index_of(self, now_s: float) -> int:
        return math.floor((now_s - self._origin_s) / INTERVAL_S)

    def _end_of(self, index: int) -> float:
        return _end_of(self.started_s, index)


@dataclass(frozen=True, slots=True)
class Past:
    """Intervals at one moment. Nothing changes it: any thread may read it."""

    started_s: float
    first: int
    newest: int
    """Indices; the newest one is not over yet."""
    over: SampleRing
    open: Sample

    @property
    def begin_s(self) -> float:
        """When the first of them began, in seconds since 1970. All but the last one are whole."""
        return _end_of(self.started_s, self.first - 1)

    def samples(self) -> tuple[Sample, ...]:
        """Without gaps, oldest first. O(samples)."""
        return (*self._all_over(), self.open)

    def _all_over(self) -> Iterator[Sample]:
        """Samples `first` up to the open one."""
        before: Sample | None = None
        due = self.first
        for index, sample in self.over.from_before(self.first):
            if index >= self.first:
                yield from self._quiet(range(due, index), before)
                yield sample
                due = index + 1
            before = sample
        yield from self._quiet(range(due, self.newest), before)

    def _quiet(self, indices: range, before: Sample | None) -> Iterator[Sample]:
        """Intervals in which nothing was told, after `before`."""
        for index in indices:
            assert before is not None, f"nothing is known of what stood before interval {index}"
            standing = Standing(before.pools, before.sessions_open, before.turns_running, before.turns_waiting)
            yield Interval(index).sample(_end_of(self.started_s, index), standing)


def _end_of(started_s: float, index: int) -> float:
    return started_s + (index + 1) * INTERVAL_S
