"""`python -m tests.sim.mutants`: seeds known defects into copies of the tree; the simulator must catch each one."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.sim.defect import Mutant
from tests.sim.mutant_table import MUTANTS

ROOT = Path(__file__).parents[2]
ROOMS = ("engine", "tests")
"""What a copy needs."""
SEEDS_MAX = 200
TIMEOUT_S = 120.0
"""Of all seeds of one defect. One that hangs the simulator is not caught: no law said so."""
SEARCH = """
import sys
import engine
from tests.sim.runner import find_failure
print(engine.__file__)
failing = find_failure(range(int(sys.argv[1])))
if failing is not None:
    print(failing.seed, failing.failure, sep="\\t")
"""


class NotApplied(Exception):
    """The table and the source have parted."""


@dataclass(frozen=True, slots=True)
class Caught:
    """Where a defect showed. `seed` is the first of those from 0 on, so seed + 1 were needed."""

    seed: int
    oracle: str
    message: str
    wall_s: float


@dataclass(frozen=True, slots=True)
class Survived:
    """No law was broken, or the run came to no end: `reason` says which."""

    reason: str


def apply_edits(mutant: Mutant, root: Path) -> None:
    """Writes a defect into a copy. Raises NotApplied unless the old text of each edit is there exactly once."""
    for edit in mutant.edits:
        path = root / edit.file
        text = path.read_text("utf-8")
        if text.count(edit.old) != 1 or edit.old == edit.new:
            raise NotApplied(f"{mutant.name}: {text.count(edit.old)} times in {edit.file}: {edit.old!r}")
        path.write_text(text.replace(edit.old, edit.new), "utf-8")


def run_seeds(mutant: Mutant | None, num_seeds: int) -> Caught | Survived:
    """Runs the seeds in a copy of the tree that has the defect; None takes the tree as it is. Raises NotApplied."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        root = Path(folder)
        for room in ROOMS:
            shutil.copytree(ROOT / room, root / room, ignore=shutil.ignore_patterns("__pycache__", "data"))
        if mutant is not None:
            apply_edits(mutant, root)
        return _search(root, num_seeds)


def _search(root: Path, num_seeds: int) -> Caught | Survived:
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", SEARCH, str(num_seeds)]
    start_s = time.monotonic()
    try:
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Survived(f"no end after {TIMEOUT_S:g} s")
    if done.returncode != 0:
        return Survived(f"broke the simulator itself: {done.stderr.strip().splitlines()[-1]}")
    where, *found = done.stdout.splitlines()
    assert Path(where).is_relative_to(root), f"ran {where}, not the copy"
    if not found:
        return Survived(f"{num_seeds} seeds are clean")
    seed, failure = found[0].split("\t", 1)
    oracle, _, message = failure.partition(": ")
    return Caught(int(seed), oracle, message, time.monotonic() - start_s)


def run_table(mutants: Sequence[Mutant], num_seeds: int, jobs: int = 1) -> int:
    """Prints a line for each defect. Returns how many were not caught, the unmutated tree's failure included."""
    clean = run_seeds(None, num_seeds)
    failures = int(isinstance(clean, Caught))
    print(f"{'no defect':<52}{clean.message if isinstance(clean, Caught) else clean.reason}", flush=True)
    print(f"{'defect':<52}{'seed':>5}{'seeds':>7}{'s':>7}  {'oracle':<10}what it said", flush=True)
    all_caught: list[Caught] = []
    with ThreadPoolExecutor(jobs) as pool:  # each defect runs in a process of its own: threads only wait for it
        for mutant, outcome in zip(mutants, pool.map(lambda each: _try(each, num_seeds), mutants), strict=True):
            if isinstance(outcome, Survived):
                failures += 1
                print(f"{mutant.name:<52}{'-':>5}{num_seeds:>7}{'':>7}  SURVIVED  {outcome.reason}", flush=True)
            else:
                all_caught.append(outcome)
                numbers = f"{outcome.seed:>5}{outcome.seed + 1:>7}{outcome.wall_s:>7.1f}"
                print(f"{mutant.name:<52}{numbers}  {outcome.oracle:<10}{outcome.message[:80]}", flush=True)
    _print_summary(all_caught)
    print(f"{len(mutants)} defects, {failures} failures")
    return failures


def _try(mutant: Mutant, num_seeds: int) -> Caught | Survived:
    try:
        return run_seeds(mutant, num_seeds)
    except NotApplied as error:
        return Survived(f"does not apply: {error}")


def _print_summary(all_caught: Sequence[Caught]) -> None:
    if not all_caught:
        return
    needed = [caught.seed + 1 for caught in all_caught]
    print(f"seeds needed: {median(needed):g} in the median, {max(needed)} at most; caught by")
    for oracle, count in Counter(caught.oracle for caught in all_caught).most_common():
        print(f"{count:>5}  {oracle}")


def main() -> int:
    """0 when every defect was caught and the unmutated tree was not."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="how many each may need, from seed 0 on")
    parser.add_argument("--only", default="", help="defects whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="defects at once; the table is the same with any number")
    options = parser.parse_args()
    chosen = [each for each in MUTANTS if options.only in each.name]
    return 1 if run_table(chosen, options.seeds, options.jobs) else 0


if __name__ == "__main__":
    sys.exit(main())
