"""Measures how long a small operation takes on one thread: median and 99th percentile of many repetitions."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

NS_PER_US = 1000

now_ns = time.thread_time_ns
"""CPU time of this thread: what other processes take from the machine meanwhile does not count."""


@dataclass(frozen=True, slots=True)
class Timing:
    median_us: float
    p99_us: float
    max_us: float
    repetitions: int


def nothing() -> None:
    """What comes before or after an operation that needs no preparation and leaves nothing behind."""


def clock_cost_ns() -> float:
    """What two readings of the clock measure when nothing is between them."""
    costs: list[int] = []
    for _ in range(2000):
        start = now_ns()
        costs.append(now_ns() - start)
    return median(costs)


CLOCK_COST_NS = clock_cost_ns()


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection inside: it would come at random, and looks at far more than the operation made."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def summarize(times_ns: list[int], calls: int = 1) -> Timing:
    """Times of repetitions, each of `calls` calls, per call and less what the clock itself costs."""
    ordered = sorted(max(0.0, time_ns - CLOCK_COST_NS) / (calls * NS_PER_US) for time_ns in times_ns)
    p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return Timing(median(ordered), p99, ordered[-1], len(ordered))


def measure(
    run: Callable[[], object],
    repetitions: int,
    before: Callable[[], object] = nothing,
    after: Callable[[], object] = nothing,
    calls: int = 1,
) -> Timing:
    """Times `run`, `calls` calls at once, between an untimed `before` and `after`. The first tenth only warms up."""
    times_ns: list[int] = []
    warm_ups = max(2, repetitions // 10)
    with quiet():
        for repetition in range(-warm_ups, repetitions):
            before()
            start = now_ns()
            for _ in range(calls):
                run()
            elapsed = now_ns() - start
            after()
            if repetition >= 0:
                times_ns.append(elapsed)
    return summarize(times_ns, calls)
