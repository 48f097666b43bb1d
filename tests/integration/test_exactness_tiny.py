"""The matrix of exactness on the real executor over a tiny model.

CI runs a pairwise cover, `make exact` every cell with every turn retracted at three places. Each prints what it
exercised.
"""

from collections.abc import Iterator
from fractions import Fraction
from random import Random

import pytest
import torch

from tests.kit.exactness.bench import never
from tests.kit.exactness.cells import Cell, PlacedCell, all_cells, cover
from tests.kit.exactness.conversation import Texts
from tests.kit.exactness.retraction import retracted_at
from tests.kit.exactness.scenarios import ROUNDS
from tests.kit.exactness.torch_bench import CONTEXT_LEN, TorchModel
from tests.kit.tiny_llama import tiny_llama_config, tiny_llama_decoder

VOCAB_SIZE = 16
"""So few ids that the model soon says the same again, and guesses come true."""
LENGTHS = (70, 9, 8, 9, 7)
"""Tokens of each turn's new ids. The first prompt is longer than the largest page and the largest chunk."""
MAX_TOKENS = 12
COVER = list(enumerate(cover(7)))
"""Retraction has 8 levels: never, and 7 places from a turn's first step to its last."""
ALL = list(enumerate(all_cells()))
PLACES = (Fraction(0), Fraction(1, 2), Fraction(1))


@pytest.fixture(autouse=True)
def one_thread_each(one_thread: None) -> None:
    """The executor's own thread has one too."""


@pytest.fixture(scope="module")
def model() -> Iterator[TorchModel]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    config = tiny_llama_config(vocab_size=VOCAB_SIZE, context_len=CONTEXT_LEN)
    model = TorchModel(config, tiny_llama_decoder(vocab_size=VOCAB_SIZE, context_len=CONTEXT_LEN))
    torch.set_num_threads(before)
    yield model
    print(f"\n{model.num_cold_runs} cold runs")  # noqa: T201


def _texts() -> Texts:
    rng = Random(7)
    said = tuple(tuple(rng.randrange(VOCAB_SIZE) for _ in range(length)) for length in LENGTHS)
    return Texts(said, tuple(rng.randrange(VOCAB_SIZE) for _ in range(40)), MAX_TOKENS)


@pytest.mark.exact
@pytest.mark.parametrize(("number", "placed"), COVER, ids=[str(placed) for _, placed in COVER])
def test_cell_of_the_cover_when_run_then_the_ids_are_those_of_cold_runs(
    model: TorchModel, number: int, placed: PlacedCell
) -> None:
    bench, cell = model.bench(_texts()), placed.cell
    tally = bench.run(cell, never)
    if placed.place is not None:
        # Every other run goes without the pool being taken: then retracted turns find their history where it was put.
        intruded_round = number % ROUNDS[cell.kind] if number % 2 else None
        tally = retracted_at(bench, cell, tally, placed.place, intruded_round)
    print(f"\n{number + 1}/{len(COVER)} {placed}: {tally}")  # noqa: T201


@pytest.mark.exact_full
@pytest.mark.parametrize(("number", "cell"), ALL, ids=[str(cell) for _, cell in ALL])
def test_cell_when_every_turn_is_retracted_at_three_places_then_the_ids_are_those_of_cold_runs(
    model: TorchModel, number: int, cell: Cell
) -> None:
    bench = model.bench(_texts())
    plain = bench.run(cell, never)
    print(f"\n{cell}: {plain}")  # noqa: T201
    for place in PLACES:
        intruded_round = number % ROUNDS[cell.kind] if place == Fraction(1, 2) else None
        print(f"{cell}: {retracted_at(bench, cell, plain, place, intruded_round)}")  # noqa: T201
