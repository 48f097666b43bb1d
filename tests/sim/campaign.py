"""Many seeds, over several processes: what all of them reached together. The result does not depend on how many."""

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from tests.sim.families import Family
from tests.sim.marks import REQUIRED_MARKS, SEEDS_FOR_MARKS, SEEDS_FOR_RARE_MARKS, count_endings, missing_marks
from tests.sim.runner import SeedResult, run_seed

SEEDS_A_TASK = 10
"""Seeds that a process takes at once."""

Report = Callable[[SeedResult], None]


@dataclass(slots=True)
class Tally:
    """What a range of seeds did. `failures` are in the order of their seeds."""

    seeds: int = 0
    steps: list[int] = field(default_factory=list)
    """Operations of each seed."""
    cpu_s: float = 0.0
    marks: Counter[str] = field(default_factory=Counter)
    failures: list[SeedResult] = field(default_factory=list)

    def add(self, result: SeedResult, cpu_s: float) -> None:
        self.seeds += 1
        self.steps.append(result.step)
        self.cpu_s += cpu_s
        self.marks.update(result.marks)
        if result.failure is not None:
            self.failures.append(result)


def run_range(seeds: range, family: Family | None, jobs: int, report: Report, *, keeps_going: bool) -> Tally:
    """Runs seeds in order, or in order of their results. Stops behind the first failing one unless `keeps_going`."""
    tally = Tally()
    with _results(seeds, family, jobs) as results:
        for result, cpu_s in results:
            tally.add(result, cpu_s)
            report(result)
            if result.failure is not None and not keeps_going:
                break
    return tally


@contextmanager
def _results(seeds: range, family: Family | None, jobs: int) -> Iterator[Iterator[tuple[SeedResult, float]]]:
    tasks = ((seed, family) for seed in seeds)
    if jobs <= 1:
        yield map(_run, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield pool.imap(_run, tasks, SEEDS_A_TASK)


def _run(task: tuple[int, Family | None]) -> tuple[SeedResult, float]:
    start_s = time.process_time()
    result = run_seed(task[0], family=task[1])
    return result, time.process_time() - start_s


def soak(first_seed: int, wall_s: float, jobs: int, report: Report) -> Tally:
    """Fresh seeds until the time is over, or up to the first one that fails."""
    total = Tally()
    stop_s = time.monotonic() + wall_s
    batch = SEEDS_A_TASK if jobs == 1 else 20 * SEEDS_A_TASK * jobs  # starting processes takes a while
    while time.monotonic() < stop_s and not total.failures:
        seeds = range(first_seed + total.seeds, first_seed + total.seeds + batch)
        part = run_range(seeds, None, jobs, report, keeps_going=False)
        total.seeds += part.seeds
        total.steps += part.steps
        total.cpu_s += part.cpu_s
        total.marks.update(part.marks)
        total.failures += part.failures
    return total


def describe_tally(tally: Tally, marks_min: int | None, *, is_of_all: bool) -> tuple[str, list[str]]:
    """A table for people, and the marks that were hit less than `marks_min` times.

    None requires what so many seeds must reach, if they were of all families.
    """
    with_rare = marks_min is not None or tally.seeds >= SEEDS_FOR_RARE_MARKS
    if marks_min is None:
        marks_min = int(is_of_all and tally.seeds >= SEEDS_FOR_MARKS)
    rare = missing_marks(tally.marks, marks_min, with_rare=with_rare)
    others = sorted(mark for mark in tally.marks if mark not in REQUIRED_MARKS and tally.marks[mark])
    lines = [f"{tally.marks[mark]:>8}  {mark}" for mark in sorted(REQUIRED_MARKS)]
    lines += [f"{tally.marks[mark]:>8}  {mark} (not required)" for mark in others]
    lines += ["endings:", *(f"{count:>8}  {mark}" for mark, count in count_endings(tally.marks).items())]
    lines += [f"under {marks_min}: {tally.marks[mark]:>4}  {mark}" for mark in rare]
    steps = tally.steps or [0]
    lines.append(
        f"{tally.seeds} seeds, {sum(steps)} operations, {median(steps):g} in the median, "
        f"{tally.cpu_s:.1f} s of CPU ({1000 * tally.cpu_s / max(1, tally.seeds):.0f} ms a seed), "
        f"{len(tally.failures)} failures, {len(rare)} marks under {marks_min}"
    )
    return "\n".join(lines), rare
