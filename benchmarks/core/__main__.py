"""`python -m benchmarks.core`: measures the core, prints a table, and writes results and curves where told to."""

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from benchmarks.core.check_cases import check_results
from benchmarks.core.curves import plots
from benchmarks.core.results import PEER_NOTE, Result, hardware, read_commit, table, to_json
from benchmarks.core.session_cases import session_results
from benchmarks.core.step_cases import step_results
from benchmarks.core.svg import draw
from benchmarks.core.tree_cases import tree_results

GROUPS = {"tree": tree_results, "session": session_results, "step": step_results, "check": check_results}


def write(folder: Path, results: list[Result], commit: str) -> list[Path]:
    """Writes core.json and a core-*.svg a curve; returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    told = hardware()
    head, mark, rest = commit.partition("+")
    machine = f"{told['cpu']}, {told['python']}, commit {head[:12]}{mark}{rest}"
    texts = {"core.json": to_json(results, commit)}
    texts |= {f"core-{name}.svg": draw(plot) for name, plot in plots(results, machine)}
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
    return [folder / name for name in texts]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what `arguments` (those of the process when None) ask for."""
    parser = ArgumentParser(prog="python -m benchmarks.core", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smallest sizes, few repetitions: a smoke run in seconds")
    parser.add_argument("--only", choices=tuple(GROUPS), action="append", help="a group of cases; may be repeated")
    parser.add_argument("--out", type=Path, help="folder for core.json and the curves; none is written without it")
    parser.add_argument("--commit", help="hash that the results belong to (default: what git says)")
    asked = parser.parse_args(arguments)
    groups = asked.only or tuple(GROUPS)
    results = [result for group in groups for result in GROUPS[group](asked.quick)]
    print(table(results))
    print(f"\nmedian and p99 of CPU time; {PEER_NOTE}")
    if asked.out is not None:
        for path in write(asked.out, results, asked.commit or read_commit()):
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
