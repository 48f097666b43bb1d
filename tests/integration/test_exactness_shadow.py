"""The whole matrix of exactness on the shadow device: every cell, with every turn retracted after each of its steps.

CI runs every cell with one retraction of every turn, `make exact` with all. Each prints what it exercised.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

from engine.core.config import CoreConfig
from engine.core.plan import StepOutcome, StepResult
from engine.core.sampling import Sampling
from tests.kit.exactness.bench import Bench, never
from tests.kit.exactness.cells import Cell, Kind, all_cells, cover, cover_rows, cover_sizes
from tests.kit.exactness.conversation import Texts
from tests.kit.exactness.cover import all_pairs, uncovered_pairs
from tests.kit.exactness.cyclic_model import CyclicModel
from tests.kit.exactness.devices import Device, ShadowBackend
from tests.kit.exactness.retraction import retracted_at, sweep
from tests.kit.exactness.scenarios import ROUNDS
from tests.kit.shadow_model import ShadowModel

VOCAB_SIZE = 64
CONTEXT_LEN = 512
MAX_TOKENS = 12
LONG = (70, 9, 8, 9, 7)
"""Tokens of each turn's new ids. The first prompt is longer than the largest page and the largest chunk."""
SHORT = (24, 9, 8, 9, 7)
"""For chunks of one token on small pages: a turn has fewer steps, and all kinds of them."""
CELLS = list(enumerate(all_cells()))
ONE_OF = 7
"""Each cell of the short run retracts at one of so many places."""


def _texts(lengths: tuple[int, ...]) -> Texts:
    rng = Random(7)
    said = tuple(tuple(rng.randrange(VOCAB_SIZE) for _ in range(length)) for length in lengths)
    return Texts(said, tuple(rng.randrange(VOCAB_SIZE) for _ in range(40)), MAX_TOKENS)


def _bench(cell: Cell, model: ShadowModel) -> Bench:
    """What is right the model says itself, asked with the plain history."""

    @contextmanager
    def make_device(config: CoreConfig) -> Iterator[Device]:
        yield ShadowBackend(model, page_size=config.page_size, pool_pages=config.pool_pages, num_rows=config.num_rows)

    def cold_run(prompt: tuple[int, ...], max_tokens: int, _sampling: Sampling) -> list[int]:
        output: list[int] = []
        digest = model.digest(prompt)
        for position in range(len(prompt), len(prompt) + max_tokens):
            output.append(model.next_id(digest))
            digest = model.extend(digest, output[-1], position)
        return output

    is_short = cell.chunk_tokens == 1 and cell.page_size < SHORT[0]
    return Bench(make_device, cold_run, _texts(SHORT if is_short else LONG), VOCAB_SIZE, CONTEXT_LEN)


def _sound_bench(cell: Cell) -> Bench:
    return _bench(cell, CyclicModel(VOCAB_SIZE))


@pytest.mark.parametrize(("num_places", "num_cells"), [(3, 24), (7, 45)])
def test_pairwise_cover_when_made_then_every_two_levels_of_two_factors_meet(num_places: int, num_cells: int) -> None:
    rows, sizes = cover_rows(num_places), cover_sizes(num_places)
    assert uncovered_pairs(rows, sizes) == set()
    assert uncovered_pairs(rows[:-1], sizes) != set()
    assert len(set(cover(num_places))) == len(rows) <= num_cells


def test_pairs_when_counted_then_are_those_of_two_different_factors() -> None:
    assert len(all_pairs((2, 3, 2))) == 2 * 3 + 2 * 2 + 3 * 2
    assert uncovered_pairs([(0, 0), (1, 1)], (2, 2)) == {((0, 0), (1, 1)), ((0, 1), (1, 0))}


@pytest.mark.exact
@pytest.mark.parametrize(("number", "cell"), CELLS, ids=[str(cell) for _, cell in CELLS])
def test_cell_when_every_turn_is_retracted_once_then_the_ids_are_those_of_the_plain_history(
    number: int, cell: Cell
) -> None:
    bench = _sound_bench(cell)
    plain = bench.run(cell, never)
    intruded_round = number % ROUNDS[cell.kind] if cell.chunk_tokens != 1 else None
    place = Fraction(number % ONE_OF, ONE_OF - 1)
    print(f"\n{cell}: {retracted_at(bench, cell, plain, place, intruded_round)}")  # noqa: T201


@pytest.mark.exact_full
@pytest.mark.parametrize("cell", [cell for _, cell in CELLS], ids=str)
def test_cell_when_every_turn_is_retracted_after_each_of_its_steps_then_the_ids_are_those_of_the_plain_history(
    cell: Cell,
) -> None:
    print(f"\n{cell}: {sweep(_sound_bench(cell), cell)}")  # noqa: T201


# What the matrix would not be worth without: it fails.

STREAMING = Cell(Kind.STREAMING, 16, 7, overlap=False, speculation=False)
WRONG_ANSWER = 20


class WrongOnce(ShadowBackend):
    """Its twentieth answer has one id that is not the right one."""

    def __init__(self, config: CoreConfig) -> None:
        super().__init__(
            CyclicModel(VOCAB_SIZE),
            page_size=config.page_size,
            pool_pages=config.pool_pages,
            num_rows=config.num_rows,
        )
        self._answers = 0

    def answer(self) -> StepOutcome:
        outcome = super().answer()
        self._answers += 1
        if self._answers != WRONG_ANSWER:
            return outcome
        assert isinstance(outcome, StepResult)
        (first, *rest), *others = outcome.sampled
        return replace(outcome, sampled=(((first + 1) % VOCAB_SIZE, *rest), *others))


def test_cell_when_one_id_of_a_run_is_wrong_then_fails() -> None:
    @contextmanager
    def make_device(config: CoreConfig) -> Iterator[Device]:
        yield WrongOnce(config)

    bench = replace(_sound_bench(STREAMING), make_device=make_device)
    with pytest.raises(AssertionError, match="a cold run gives"):
        bench.run(STREAMING, never)


def test_cell_when_the_model_never_repeats_itself_then_a_speculating_run_proves_nothing_and_fails() -> None:
    cell = Cell(Kind.STREAMING, 16, 7, overlap=True, speculation=True)
    with pytest.raises(AssertionError, match="no guess was right"):
        _bench(cell, ShadowModel(VOCAB_SIZE)).run(cell, never)
