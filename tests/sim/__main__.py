"""`python -m tests.sim`: seeded worlds against the core, with a table of what they reached; or one script again."""

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.kit.transcript import trace_failure
from tests.sim.runner import SEEDS_FOR_MARKS, SeedResult, describe_failure, missing_marks, run_scenario, run_seed
from tests.sim.schedule import Family
from tests.sim.script import read_script, render_script
from tests.sim.shrink import shrink


def main() -> int:
    """0 when every seed is clean and, in a long enough run, every mark was hit."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--family", type=Family, choices=tuple(Family), help="of all seeds, not each seed's own")
    parser.add_argument("--verbose", action="store_true", help="one line a seed")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failing seed")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run a script (- for stdin) in place of seeds")
    parser.add_argument("--shrink", action="store_true", help="print the shortest schedule that breaks the same law")
    options = parser.parse_args()
    if options.replay is not None:
        return replay(options.replay, is_shrinking=options.shrink)
    return run_seeds(options)


def run_seeds(options: argparse.Namespace) -> int:
    marks: Counter[str] = Counter()
    failures = 0
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        result = run_seed(seed, family=options.family)
        marks.update(result.marks)
        if options.verbose:
            print(f"seed {seed}: {result.scenario.family}, {result.step} operations, events {result.digest[:16]}")
        if result.failure is not None:
            failures += 1
            print(describe_failure(result))
            if options.shrink:
                print_shrunk(result)
            if not options.keep_going:
                break
    for mark in sorted(marks):
        print(f"{marks[mark]:>8}  {mark}")
    is_long = options.seeds >= SEEDS_FOR_MARKS and options.family is None
    missing = missing_marks(marks) if is_long and not failures else []
    for mark in missing:
        print(f"never reached: {mark}")
    print(f"{options.seeds} seeds, {failures} failures, {len(missing)} marks missing")
    return 1 if failures or missing else 0


def replay(path: Path, *, is_shrinking: bool) -> int:
    """Runs the script of a schedule and prints what it leaves. 1 when it breaks a law."""
    scenario = read_script(sys.stdin.read() if str(path) == "-" else path.read_text("utf-8"))
    result = run_scenario(scenario)
    if result.failure is not None and is_shrinking:
        print_shrunk(result)
    else:
        print(trace_failure(render_script(scenario)), end="")
    print("# clean" if result.failure is None else f"# {result.failure}")
    return 1 if result.failure is not None else 0


def print_shrunk(result: SeedResult) -> None:
    """A script with its trace: to be kept in a file for `--replay`, or as a transcript."""
    shrunk = shrink(result)
    before, after = len(result.scenario.ops), len(shrunk.scenario.ops)
    print(f"# {before} operations shrunk to {after} in {shrunk.runs} runs; replay: python -m tests.sim --replay FILE")
    print(trace_failure(render_script(shrunk.scenario)), end="")


if __name__ == "__main__":
    sys.exit(main())
