"""What was measured, beside what is to be reached and what the peer takes; as a table and as JSON."""

import json
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.core.timing import Timing

ROOT = Path(__file__).parents[2]
PEER_NOTE = "peer: SGLang's classes as measured on one thread of a 2021 server core; not of this run"


@dataclass(frozen=True, slots=True)
class Result:
    """One operation at one size. Times in µs; None where the design states no target, or no figure of the peer."""

    operation: str
    variant: str
    size: int
    size_unit: str
    timing: Timing
    target_us: float | None = None
    peer_us: float | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the median is within the target; None without one."""
        return None if self.target_us is None else self.timing.median_us <= self.target_us


def hardware() -> dict[str, str | int]:
    """The machine and the interpreter that the times belong to."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text("utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": len(names),
        "system": f"{platform.system()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def read_commit() -> str:
    """Hash of the commit that is checked out, marked when tracked files differ from it; "unknown" outside git."""
    try:
        head = _git("rev-parse", "HEAD")
        return f"{head}+changes" if _git("status", "--porcelain", "--untracked-files=no") else head
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def to_json(results: Iterable[Result], commit: str) -> str:
    told = [asdict(result) | {"is_met": result.is_met} for result in results]
    date = datetime.now(UTC).isoformat(timespec="seconds")
    whole = {"date": date, "commit": commit, "hardware": hardware(), "peer": PEER_NOTE, "results": told}
    return json.dumps(whole, indent=1) + "\n"


def table(results: Sequence[Result]) -> str:
    """One line a result, columns aligned, a blank line between operations."""
    header = ("operation", "size", "median", "p99", "median's target", "peer", "")
    rows = [header, *(_cells(result) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines: list[str] = []
    for index, row in enumerate(rows):
        if index > 1 and results[index - 1].operation != results[index - 2].operation:
            lines.append("")
        name, *rest = (
            cell.rjust(width) if place else cell.ljust(width) for place, (cell, width) in _placed(row, widths)
        )
        lines.append("  ".join((name, *rest)).rstrip())
    return "\n".join(lines)


def _placed(row: Sequence[str], widths: Sequence[int]) -> Iterable[tuple[int, tuple[str, int]]]:
    return enumerate(zip(row, widths, strict=True))


def _cells(result: Result) -> tuple[str, ...]:
    verdict = {None: "", True: "met", False: "MISSED"}[result.is_met]
    return (
        f"{result.operation}, {result.variant}" if result.variant else result.operation,
        f"{result.size:,} {result.size_unit}",
        show_us(result.timing.median_us),
        show_us(result.timing.p99_us),
        show_us(result.target_us),
        show_us(result.peer_us),
        verdict,
    )


def show_us(time_us: float | None) -> str:
    """A time for people, three digits and its unit."""
    if time_us is None:
        return "-"
    if time_us >= 1_000_000:
        return f"{time_us / 1_000_000:.3g} s"
    if time_us >= 1000:
        return f"{time_us / 1000:.3g} ms" if time_us < 999_500 else f"{time_us / 1000:.0f} ms"
    return f"{time_us:.3g} µs"
