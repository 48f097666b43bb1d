"""The matrix of exactness on the real executor over a tiny model of every family that is implemented.

Model and expected ids are made by transformers. CI runs a pairwise cover for each family, `make exact` every cell with
every turn retracted in the midst of its life. Each prints what it exercised.
"""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest
import torch

from engine.core.sampling import GREEDY, Sampling
from engine.executor.models.registry import FAMILIES
from tests.kit.exactness.bench import never
from tests.kit.exactness.cells import Cell, Kind, Place, PlacedCell, all_cells, cover
from tests.kit.exactness.conversation import Texts
from tests.kit.exactness.memory import Memory
from tests.kit.exactness.retraction import retracted_at
from tests.kit.exactness.scenarios import ROUNDS
from tests.kit.exactness.tally import Tally
from tests.kit.exactness.torch_bench import TorchModel
from tests.kit.model_rig import read_model
from tests.kit.recipes import Saved, recipe_config, recipe_names, reference_logits, save_recipe

NAMES = tuple(name for name in recipe_names() if recipe_config(name)["model_type"] in FAMILIES)
LENGTHS = (70, 9, 8, 9, 7)
"""Tokens of each turn's new ids. The first prompt is longer than the largest page and chunk, and than the window."""
MAX_TOKENS = 12
FIRST_ID = 3
"""Those below it are special."""
SAFE_MARGIN = 1e-3
"""Where the two best logits are closer than this, either is right."""
NO_DRAFTS = (False,)
COVER = tuple(enumerate(cover(3, NO_DRAFTS)))
"""Retraction has 4 levels: never, and at three places of a turn's life."""
SLOW_EVERY = {1: 6, 7: 3, 64: 2}
"""`chunk_tokens` → in CI each family runs one of so many cells with these, families beside each other another one."""
DRAWN = Sampling(temperature=0.9, top_p=0.95, seed=5)
DRAWN_EVERY = 4
"""One of so many cells draws its ids: equal logits, bit for bit, draw equal ids."""
DRAFTING = (
    Cell(Kind.STREAMING, 16, 7, overlap=True, speculation=True),
    Cell(Kind.TRUNCATED, 1, None, overlap=False, speculation=True),
    Cell(Kind.FORKED, 16, 64, overlap=True, speculation=True),
)
FEW_IDS = 16
"""A vocabulary so small that a model soon says the same again, and guesses come true."""
ALL = list(enumerate(all_cells(NO_DRAFTS)))
DRAFTERS = ("mistral_swa", "gemma2", "gemma3", "gpt_oss")
"""Those with windows, which a wrong guess takes back. Full pages alone are guessed on in `test_exactness_tiny.py`, and
a state can't go back."""
MIDST = Fraction(1, 2)

pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(slots=True)
class Family:
    """A model as transformers has it and as the engine has it."""

    saved: Saved
    model: TorchModel
    vocab_size: int
    plain: dict[tuple[Cell, Memory], Tally]
    """Of all families: what is planned depends on the kinds of memory, not on the numbers."""
    num_compared: int = 0
    """Of the model's cold runs, in the order in which they were made."""

    def texts(self, sampling: Sampling = GREEDY) -> Texts:
        rng = Random(7)
        said = tuple(tuple(self._ids(rng, length)) for length in LENGTHS)
        return Texts(said, tuple(self._ids(rng, 40)), MAX_TOKENS, sampling)

    def _ids(self, rng: Random, length: int) -> list[int]:
        return [rng.randrange(FIRST_ID, self.vocab_size) for _ in range(length)]

    def run(self, cell: Cell, place: Place, intruded_round: int | None = None, sampling: Sampling = GREEDY) -> Tally:
        bench = self.model.bench(self.texts(sampling))
        key = (cell, bench.memory)
        if place is None or key not in self.plain:
            self.plain[key] = bench.run(cell, never)
        return self.plain[key] if place is None else retracted_at(bench, cell, self.plain[key], place, intruded_round)

    def require_references(self) -> tuple[int, int]:
        """Holds the cold runs since the last call against transformers. Returns how many ids are the same, and how many
        were set aside. Raises AssertionError for any other."""
        same = aside = 0
        for prompt, output in self.model.greedy_runs[self.num_compared :]:
            logits = reference_logits(self.saved, [*prompt, *output])[len(prompt) - 1 : -1]
            best, second = logits.topk(2).values.T
            is_safe = best - second >= SAFE_MARGIN
            found = torch.tensor(output)
            assert found[is_safe].tolist() == logits.argmax(-1)[is_safe].tolist(), f"behind {len(prompt)} tokens"
            same += int(is_safe.sum())
            aside += int((~is_safe).sum())
        self.num_compared = len(self.model.greedy_runs)
        return same, aside


class Families:
    """Made when first asked for, and kept: each is asked many times."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[str, Family] = {}
        self._plain: dict[tuple[Cell, Memory], Tally] = {}

    def __getitem__(self, name: str) -> Family:
        if name not in self._made:
            saved = save_recipe(name, self._directory / name)
            config, decoder = read_model(saved.directory)
            self._made[name] = Family(saved, TorchModel(config, decoder), config.vocab_size, self._plain)
        return self._made[name]


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Families:
    return Families(tmp_path_factory.mktemp("families"))


def test_recipes_when_listed_then_every_family_has_one() -> None:
    assert {recipe_config(name)["model_type"] for name in NAMES} == set(FAMILIES)


def _is_left_out(family: int, number: int, cell: Cell) -> bool:
    """Whether CI does without that cell of the cover for that family."""
    every = SLOW_EVERY.get(cell.chunk_tokens or 0, 1)
    before = sum(placed.cell.chunk_tokens == cell.chunk_tokens for _, placed in COVER[:number])
    return (before + family) % every != 0


IN_CI = [
    pytest.param(
        name,
        number,
        placed,
        marks=pytest.mark.exact_full if _is_left_out(family, number, placed.cell) else pytest.mark.exact,
        id=f"{name}-{placed}",
    )
    for family, name in enumerate(NAMES)
    for number, placed in COVER
]


@pytest.mark.parametrize(("name", "number", "placed"), IN_CI)
def test_cell_of_the_cover_when_run_then_the_ids_are_those_of_cold_runs_and_of_transformers(
    families: Families, name: str, number: int, placed: PlacedCell
) -> None:
    family, cell = families[name], placed.cell
    sampling = DRAWN if number % DRAWN_EVERY == 0 else GREEDY
    # Every other run goes without the pool being taken: then retracted turns find their history where it was put.
    is_intruded = placed.place is not None and number % 2 == 1 and cell.chunk_tokens != 1
    tally = family.run(cell, placed.place, number % ROUNDS[cell.kind] if is_intruded else None, sampling)
    same, aside = family.require_references()
    print(f"\n{name} {placed}: {tally}; {same} ids of transformers, {aside} set aside")  # noqa: T201


@pytest.mark.exact_full
@pytest.mark.parametrize(("number", "cell"), ALL, ids=[str(cell) for _, cell in ALL])
@pytest.mark.parametrize("name", NAMES)
def test_cell_when_every_turn_is_retracted_in_its_midst_then_the_ids_are_those_of_cold_runs_and_of_transformers(
    families: Families, name: str, number: int, cell: Cell
) -> None:
    family = families[name]
    family.run(cell, None)
    tally = family.run(cell, MIDST, number % ROUNDS[cell.kind])
    same, aside = family.require_references()
    print(f"\n{name} {cell}: {tally}; {same} ids of transformers, {aside} set aside")  # noqa: T201


@pytest.mark.exact
@pytest.mark.parametrize("number", range(len(DRAFTERS)), ids=DRAFTERS)
def test_cell_when_turns_guess_ahead_then_the_ids_are_those_of_cold_runs(tmp_path: Path, number: int) -> None:
    """Guesses that prove wrong take the windows back by as many tokens."""
    saved = save_recipe(DRAFTERS[number], tmp_path, {"vocab_size": FEW_IDS})
    config, decoder = read_model(saved.directory)
    family, cell = Family(saved, TorchModel(config, decoder), FEW_IDS, {}), DRAFTING[number % len(DRAFTING)]
    tally = family.run(cell, None)
    same, aside = family.require_references()
    print(f"\n{DRAFTERS[number]} {cell}: {tally}; {same} ids of transformers, {aside} set aside")  # noqa: T201
