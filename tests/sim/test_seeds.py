"""A hundred seeds: every law after every call, every mark reached, and the same events under any hash seed."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.sim.marks import SEEDS_FOR_MARKS, missing_marks
from tests.sim.runner import SeedResult, describe_failure, run_seed

ROOT = Path(__file__).parents[2]
SEEDS_A_TEST = 20
FIRST_SEEDS = range(0, SEEDS_FOR_MARKS, SEEDS_A_TEST)
DIGEST_SEEDS = (1, 2, 3, 10)
PRINT_DIGESTS = f"from tests.sim.runner import run_seed; print([run_seed(seed).digest for seed in {DIGEST_SEEDS}])"


class Runs:
    """Runs each seed once, whichever test asks first."""

    def __init__(self) -> None:
        self._results: dict[int, SeedResult] = {}

    def result(self, seed: int) -> SeedResult:
        if seed not in self._results:
            self._results[seed] = run_seed(seed)
        return self._results[seed]


@pytest.fixture(scope="module")
def runs() -> Runs:
    return Runs()


@pytest.mark.parametrize("first_seed", FIRST_SEEDS)
def test_seeds_when_run_then_no_law_is_broken(runs: Runs, first_seed: int) -> None:
    results = [runs.result(seed) for seed in range(first_seed, first_seed + SEEDS_A_TEST)]
    failures = [describe_failure(result) for result in results if result.failure is not None]
    assert not failures, "\n".join(failures)


@pytest.mark.timeout(120)  # in random order it may come first, and then runs all of them
def test_seeds_when_all_ran_then_every_mark_was_reached(runs: Runs) -> None:
    marks: Counter[str] = Counter()
    for seed in range(SEEDS_FOR_MARKS):
        marks.update(runs.result(seed).marks)
    assert missing_marks(marks, with_rare=False) == []


def test_events_when_hash_seed_differs_then_are_the_same_bytes() -> None:
    told = [_digests(hash_seed) for hash_seed in ("0", "4242")]
    assert told[0] == told[1]
    assert told[0].count("'") == 2 * len(DIGEST_SEEDS)


def _digests(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", PRINT_DIGESTS]
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout
