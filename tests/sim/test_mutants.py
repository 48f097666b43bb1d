"""A small part of the table of defects, and that the script which runs all of it can fail."""

import shutil
from pathlib import Path

import pytest

from tests.sim.defect import Mutant, mutant
from tests.sim.mutant_table import MUTANTS
from tests.sim.mutants import ROOT, Caught, NotApplied, Survived, apply_edits, run_seeds, run_table

ALWAYS = ("lock leak", "free while in flight", "lost return", "a turn that does not fit is overtaken")
NUM_SEEDS = 60
HARMLESS = mutant("harmless", "engine/core/stops.py", "import FinishReason\n", "import FinishReason\n\nUNUSED = 1\n")


@pytest.mark.parametrize("name", ALWAYS)
def test_seeds_when_defect_is_in_a_copy_then_a_law_says_so(name: str) -> None:
    (seeded,) = (each for each in MUTANTS if each.name == name)
    assert isinstance(run_seeds(seeded, NUM_SEEDS), Caught)


def test_table_when_applied_then_each_edit_fits_exactly_once(tmp_path: Path) -> None:
    assert len({each.name for each in MUTANTS}) == len(MUTANTS) >= 20
    for number, each in enumerate(MUTANTS):
        root = tmp_path / str(number)
        shutil.copytree(ROOT / "engine" / "core", root / "engine" / "core")
        apply_edits(each, root)


@pytest.mark.parametrize("old", ["no such text", "token_id"], ids=["absent", "several times"])
def test_edit_when_it_does_not_fit_exactly_once_then_raises_and_the_table_fails(
    old: str, capsys: pytest.CaptureFixture[str]
) -> None:
    misfit = mutant("misfit", "engine/core/stops.py", old, "")
    with pytest.raises(NotApplied):
        run_seeds(misfit, 1)
    assert run_table([misfit], 1) == 1
    assert "does not apply" in capsys.readouterr().out


@pytest.mark.parametrize(
    "surviving",
    [HARMLESS, mutant("broken", "engine/core/stops.py", "from engine", "from engin")],
    ids=["harmless", "breaks the simulator itself"],
)
def test_table_when_a_defect_survives_then_fails(surviving: Mutant, capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(run_seeds(surviving, 2), Survived)
    assert run_table([surviving], 2) == 1
    assert "SURVIVED" in capsys.readouterr().out


def test_table_when_the_unmutated_tree_is_clean_then_only_survivors_count() -> None:
    assert run_table([], 2) == 0
