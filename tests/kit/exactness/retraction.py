"""Every turn of a cell retracted at a chosen step: at each one in turn, or at a share of its life."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count

from tests.kit.exactness.bench import Bench, never
from tests.kit.exactness.cells import Cell
from tests.kit.exactness.conversation import RetractAfter
from tests.kit.exactness.scenarios import ROUNDS
from tests.kit.exactness.tally import Tally

INTRUDED_EVERY = 3
"""Of the steps of a sweep: so many retractions from one that is followed by a turn which takes the whole pool."""
INTRUDED_EVERY_SINGLE = 8
"""The same where prompts are computed token by token, and such a turn takes hundreds of steps."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What all runs of one cell did together."""

    plain: Tally
    """Of the run without retractions."""
    last_step: int
    """The last step of any turn after which one was retracted: so many runs had retractions."""
    retractions: int
    intrusions: int

    def __str__(self) -> str:
        return (
            f"{self.plain}; then {self.last_step} runs with {self.retractions} retractions, after each step "
            f"1..{self.last_step} of every turn, {self.intrusions} with the pool taken"
        )


def sweep(bench: Bench, cell: Cell) -> Sweep:
    """Run k retracts every turn after its k-th step, k = 1, 2, ... until every turn is over by then.

    Raises AssertionError as `Bench.run` does, and for a turn that went on after its k-th step and kept its KV.
    """
    plain = bench.run(cell, never)
    every = INTRUDED_EVERY_SINGLE if cell.chunk_tokens == 1 else INTRUDED_EVERY
    tallies: list[Tally] = []
    for step in count(1):
        intruded_round = None if step % every else step // every % ROUNDS[cell.kind]
        tally = bench.run(cell, _always(step), intruded_round)
        _assert_all_retracted(cell, tally, step)
        if not tally.retracted:
            break
        tallies.append(tally)
    assert len(tallies) >= max(_steps_open(cell, plain)), f"{cell}: no retraction after step {len(tallies) + 1}"
    retractions = sum(len(tally.retracted) for tally in tallies)
    intrusions = sum(tally.intrusions for tally in tallies)
    assert intrusions > 0, f"{cell}: the pool was never taken"
    return Sweep(plain, len(tallies), retractions, intrusions)


def retracted_at(bench: Bench, cell: Cell, plain: Tally, place: Fraction, intruded_round: int | None) -> Tally:
    """Retracts every turn once, at the same share of its life. `plain`: of the cell's run without retractions.

    Raises AssertionError as `Bench.run` does, and when a turn was not retracted, or the pool not taken as asked.
    """
    steps = [1 + round(place * (last - 1)) for last in _steps_open(cell, plain)]
    tally = bench.run(cell, steps.__getitem__, intruded_round)
    assert tally.retracted_after == steps, f"{cell}: retracted after {tally.retracted_after}, not after {steps}"
    assert tally.intrusions == (intruded_round is not None), f"{cell}: the pool was taken {tally.intrusions} times"
    return tally


def _always(step: int) -> RetractAfter:
    return lambda _turn: step


def _steps_open(cell: Cell, plain: Tally) -> Sequence[int]:
    """The last step of each turn after which it may be retracted.

    With overlap that is its very last one, whose answer is not there yet when the next plan is made; without, a turn
    has ended by then.
    """
    return [plans - (not cell.overlap) for plans in plain.plans_of]


def _assert_all_retracted(cell: Cell, tally: Tally, step: int) -> None:
    for plans, retracted_after, last in zip(
        tally.plans_of, tally.retracted_after, _steps_open(cell, tally), strict=True
    ):
        is_over = retracted_after is None and last < step
        assert is_over or retracted_after == step, f"{cell}: {plans} steps, retracted after {retracted_after}"
