"""A soak on paper: the table of verdicts, a page for people, and a file for programs."""

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version

from tests.soak.memory import MIB, Reading
from tests.soak.server import FAILING_EVERY, OPTIONS
from tests.soak.verdict import Evidence, Verdict, ending_rows

_ENDINGS_NOTE = (
    "Endings, as clients heard them and as the server counted them. The server may have more where a client let the "
    "stream go, or its call's time was over. Spans are not counted: the server has none yet."
)
_PACKAGES = ("torch", "grpcio", "protobuf", "numpy")


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for."""

    minutes: float
    seed: int
    num_clients: int
    has_steady_allocator: bool = False

    def __str__(self) -> str:
        """The command that runs it again."""
        steady = " --steady-allocator" if self.has_steady_allocator else ""
        return (
            f"python -m tests.soak --minutes {self.minutes:g} --seed {self.seed} --clients {self.num_clients}{steady}"
        )


def describe(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as lines."""
    width = max(len(verdict.name) for verdict in verdicts)
    return "\n".join(f"{'ok  ' if each.holds else 'FAIL'}  {each.name:<{width}}  {each.told}" for each in verdicts)


def write_page(plan: Plan, evidence: Evidence, verdicts: Sequence[Verdict], picture_name: str) -> str:
    """Markdown, with the picture beside it."""
    where = surroundings()
    settings = " ".join(f"--{name} {value}" for name, value in OPTIONS.items())
    how = (
        f"Made by `{plan}`; "
        f"commit {where['commit']}, {where['cores']} cores, {where['machine']}, Python {where['python']}, "
        f"torch {where['torch']}, grpcio {where['grpcio']}."
    )
    load = (
        f"A real `tenure serve` with the embedded model and `{settings}`; one forward of {FAILING_EVERY} raises. "
        f"{plan.num_clients} clients play the scenarios of `tests/soak` all the time."
    )
    played = ", ".join(f"{name} {count}" for name, count in sorted(evidence.ledger.scenarios.items()))
    lines = ["# Soak", "", how, "", load, "", f"![Resident memory over time]({picture_name})", ""]
    lines += [_ends(evidence.readings), ""]
    lines += ["| verdict | | numbers |", "|---|---|---|"]
    lines += [f"| {each.name} | {'ok' if each.holds else '**fails**'} | {_cell(each.told)} |" for each in verdicts]
    lines += ["", _ENDINGS_NOTE, "", "| ending | client | server |", "|---|---|---|"]
    lines += [f"| {row.ending} | {row.client} | {row.server} |" for row in ending_rows(evidence)]
    lines += ["", f"Scenarios played: {played}.", ""]
    return "\n".join(lines)


def _ends(readings: Sequence[Reading]) -> str:
    """First and last reading."""
    if not readings:
        return "The process was never read."
    first, last = readings[0], readings[-1]
    return (
        f"From the first reading to the last, {last.time_s / 60:.1f} minutes later: resident memory "
        f"{first.resident_bytes / MIB:.1f} to {last.resident_bytes / MIB:.1f} MiB, threads {first.threads} to "
        f"{last.threads}, open files {first.open_files} to {last.open_files}."
    )


def to_json(plan: Plan, evidence: Evidence, verdicts: Sequence[Verdict]) -> dict[str, object]:
    """All series and counts."""
    ledger, history = evidence.ledger, evidence.history
    return {
        "plan": asdict(plan),
        "surroundings": surroundings(),
        "server": OPTIONS,
        "verdicts": [asdict(each) for each in verdicts],
        "trend": None if evidence.trend is None else asdict(evidence.trend),
        "endings": [asdict(row) for row in ending_rows(evidence)],
        "totals": None if history is None else asdict(history.totals),
        "client": {
            "accepted": len(ledger.turns),
            "unheard": ledger.num_unheard,
            "unsure": ledger.unsure,
            "sessions_opened": ledger.sessions_opened,
            "resumed": ledger.resumed,
            "refusals": ledger.refusals,
            "surprises": ledger.surprises,
            "violations": ledger.violations,
            "scenarios": ledger.scenarios,
        },
        "probes": asdict(evidence.probes),
        "incidents": [asdict(each) for each in evidence.incidents],
        "readings": [asdict(each) for each in evidence.readings],
    }


def surroundings() -> dict[str, str]:
    """Commit, hardware and versions."""
    return {
        "commit": _commit(),
        "cores": str(os.cpu_count()),
        "machine": f"{platform.machine()} {platform.system()}",
        "python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
    }


def _commit() -> str:
    """With `+` for changes that are not committed; `unknown` outside a checkout."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(("git", *arguments), capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
