"""`python -m tests.sim`: seeded worlds against the core, with a table of what they reached; or one script again."""

import argparse
import sys
import time
from pathlib import Path

from tests.kit.transcript import trace_failure
from tests.sim.campaign import Tally, describe_tally, run_range, soak
from tests.sim.families import Family
from tests.sim.runner import SeedResult, describe_failure, run_scenario
from tests.sim.script import read_script, render_script
from tests.sim.shrink import shrink


def main() -> int:
    """0 when every seed is clean and, in a long enough run, every mark was hit."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first-seed", type=int, help="0, and for a soak the clock says which")
    parser.add_argument("--jobs", type=int, default=1, help="processes; the result is the same with any number")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="fresh seeds until then, or to the first failure")
    parser.add_argument("--marks-min", type=int, help="hits that every mark must have; 1 in a long enough run")
    parser.add_argument("--family", type=Family, choices=tuple(Family), help="of all seeds, not each seed's own")
    parser.add_argument("--verbose", action="store_true", help="one line a seed")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failing seed")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run a script (- for stdin) in place of seeds")
    parser.add_argument("--shrink", action="store_true", help="print the shortest schedule that breaks the same law")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error(f"--seeds (SEEDS in make) must be at least 1, not {options.seeds}")
    if options.replay is not None:
        return replay(options.replay, is_shrinking=options.shrink)
    return run_seeds(options)


def run_seeds(options: argparse.Namespace) -> int:
    def report(result: SeedResult) -> None:
        if options.verbose:
            print(f"seed {result.seed}: {result.scenario.family}, {result.step} operations, {result.digest[:16]}")
        if result.failure is not None:
            print(describe_failure(result), flush=True)
            if options.shrink or options.soak is not None:
                print_shrunk(result)

    if options.soak is not None:
        first_seed = int(time.time()) * 1000 if options.first_seed is None else options.first_seed
        print(f"soak from seed {first_seed} on, for {options.soak:g} minutes", flush=True)
        tally = soak(first_seed, options.soak * 60, options.jobs, report)
    else:
        first_seed = options.first_seed or 0
        seeds = range(first_seed, first_seed + options.seeds)
        tally = run_range(seeds, options.family, options.jobs, report, keeps_going=options.keep_going)
    return _conclude(tally, options)


def _conclude(tally: Tally, options: argparse.Namespace) -> int:
    table, rare = describe_tally(tally, options.marks_min, is_of_all=options.family is None)
    print(table)
    return 1 if tally.failures or rare else 0


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
    print(trace_failure(render_script(shrunk.scenario)), end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
