"""Plays the trials one after the other, and writes their table: `python -m tests.kill`."""

import argparse
import asyncio
import sys
import time
from pathlib import Path

from tests.kill.row import FULL, QUICK, Group, Scale
from tests.kill.table import write_table
from tests.kill.trials import PARTS, Part, Result, play


def main() -> int:
    """Exit code 1 when a trial failed."""
    arguments = _parse()
    scale = QUICK if arguments.quick else FULL
    results = asyncio.run(_play_all(scale, arguments.only))
    table = write_table(results, scale)
    sys.stdout.write(table)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(table)
    failed = [result.name for result in results if result.row is None]
    if failed:
        _say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _parse() -> argparse.Namespace:
    names = [name for part in PARTS for name in _names(part)]
    parser = argparse.ArgumentParser(prog="python -m tests.kill", description=__doc__)
    parser.add_argument("--only", choices=names, help="this trial alone")
    parser.add_argument("--quick", action="store_true", help="short faults and limits, as in the tests")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the table is written, too")
    return parser.parse_args()


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _names(part: Part) -> list[str]:
    return [trial.name for trial in part.trials] if isinstance(part, Group) else [part.name]


async def _play_all(scale: Scale, only: str | None) -> list[Result]:
    results: list[Result] = []
    began_s = time.monotonic()

    def note(result: Result) -> None:
        said = "as it should be" if result.row is not None else f"FAILED: {result.failure}"
        _say(f"{time.monotonic() - began_s:6.1f} s  {result.name}: {said}")
        results.append(result)

    for part in PARTS:
        await play(part, scale, note, only)
    return results


if __name__ == "__main__":
    sys.exit(main())
