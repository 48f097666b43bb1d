"""`python -m tests.sim`: seeded worlds against the core, with a table of what they reached."""

import argparse
import sys
from collections import Counter

from tests.sim.runner import SEEDS_FOR_MARKS, describe_failure, missing_marks, run_seed


def main() -> int:
    """0 when every seed is clean and, in a long enough run, every mark was hit."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="one line a seed")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failing seed")
    options = parser.parse_args()
    marks: Counter[str] = Counter()
    failures = 0
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        result = run_seed(seed)
        marks.update(result.marks)
        if options.verbose:
            print(f"seed {seed}: {result.step} operations, events {result.digest[:16]}")
        if result.failure is not None:
            failures += 1
            print(describe_failure(result))
            if not options.keep_going:
                break
    for mark in sorted(marks):
        print(f"{marks[mark]:>8}  {mark}")
    missing = missing_marks(marks) if options.seeds >= SEEDS_FOR_MARKS and not failures else []
    for mark in missing:
        print(f"never reached: {mark}")
    print(f"{options.seeds} seeds, {failures} failures, {len(missing)} marks missing")
    return 1 if failures or missing else 0


if __name__ == "__main__":
    sys.exit(main())
