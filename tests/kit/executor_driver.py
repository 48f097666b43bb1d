"""Drives any `Executor` by hand, plan by plan: what the contracts of executors are written with."""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from engine.core.plan import PageCopy, PlanRow, StepOutcome, StepResult
from engine.core.sampling import SEED_MAX, Sampling
from engine.executor.protocol import Executor
from tests.kit.paged_sequence import PagedSequence, make_plan

PAGE_SIZE = 4
POOL_PAGES = 64
NUM_ROWS = 8
PROMPT = [17, 3, 42, 99, 5, 61, 28, 7, 77, 12, 50]
OTHER_PROMPT = [9, 8, 7, 6, 5]
DRAWN = (Sampling(2.0, seed=1), Sampling(5.0, top_k=20, seed=SEED_MAX), Sampling(3.0, top_p=0.9, seed=1))


class Driver:
    """Submits to one executor, with step numbers that only grow."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._steps = itertools.count(1)

    def submit(self, rows: Sequence[PlanRow], copies: Sequence[PageCopy] = ()) -> asyncio.Future[StepOutcome]:
        return self.executor.submit(make_plan(next(self._steps), PAGE_SIZE, rows, copies))

    async def run(self, rows: Sequence[PlanRow], copies: Sequence[PageCopy] = ()) -> StepResult:
        return result_of(await self.submit(rows, copies))

    async def ids(self, row: PlanRow) -> list[int]:
        """What a plan of this row alone answers for it."""
        return list((await self.run([row])).sampled[0])

    async def decode(self, sequence: PagedSequence, count: int) -> list[int]:
        """The next `count` ids, one plan each, which take their input from the executor."""
        return [sampled_id(await self.run([sequence.decode()])) for _ in range(count)]

    async def generate(self, sequence: PagedSequence, prompt: Sequence[int], count: int) -> list[int]:
        """The first `count` ids behind `prompt`: one shot, then decode."""
        first = await self.run([sequence.chunk(prompt)])
        return [sampled_id(first), *await self.decode(sequence, count - 1)]


class ExecutorRig:
    """Base of the contracts. A subclass named `Test…` defines `make_executor`: 100 token ids or more, a context of 64
    tokens or more.
    """

    def make_executor(self, *, page_size: int, pool_pages: int, num_rows: int) -> Executor:
        """A fresh executor, whose pools hold nothing. The contract closes it."""
        raise NotImplementedError

    @contextmanager
    def driver(self) -> Iterator[Driver]:
        executor = self.make_executor(page_size=PAGE_SIZE, pool_pages=POOL_PAGES, num_rows=NUM_ROWS)
        try:
            yield Driver(executor)
        finally:
            executor.close()


def result_of(outcome: StepOutcome) -> StepResult:
    assert isinstance(outcome, StepResult), outcome
    return outcome


def sampled_id(result: StepResult, place: int = 0) -> int:
    """The one id that row `place` sampled."""
    (token_id,) = result.sampled[place]
    return token_id
