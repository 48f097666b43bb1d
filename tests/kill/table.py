"""The table, as a page of Markdown."""

import os
import subprocess
import textwrap
from collections.abc import Sequence

from tests.kill.row import HARD, Scale
from tests.kill.trials import Result

_HEAD = ("what was done", "what clients saw", "what health said", "what the dump said", "what recovered")
_FAILURE_CHARS_MAX = 300
_WIDTH = 118

_INTRODUCTION = """\
# What the server does when it is hurt

Written by `make kill-tests` (`python -m tests.kill`): do not edit. Each line is a real server process that was hurt
while streams ran on it, watched from outside; each was also checked, so that a line can not be wrong in silence.
Times are seconds after the fault. Health is what the probe port (`--health-port`) said, unless another port is named:
*ready* is readiness and liveness SERVING, *not ready* is readiness NOT_SERVING, *not alive* is both NOT_SERVING, *no
answer* is none within 1 s, *gone* is a port on which nobody listens. Silences of under 3 s are left out: the machine
was shared, and slow.
"""


def write_table(results: Sequence[Result], scale: Scale) -> str:
    return "\n".join((_INTRODUCTION, _made(scale), "", *_rows(results), ""))


def _made(scale: Scale) -> str:
    limits = f"{scale.limit_s:g} s for a forward and for the event loop"
    if scale.calm_limit_s != scale.limit_s:
        limits += f" where one is to be found stuck, {scale.calm_limit_s:g} s where none is"
    facts = (
        f"Made at {_commit()}, on {os.cpu_count()} cores. Limits of the watchdog: {limits}; it gives up at {HARD} "
        f"times that, and where the process is to end it ends {scale.exit_s:g} s later."
    )
    return textwrap.fill(facts, _WIDTH, break_long_words=False)


def _rows(results: Sequence[Result]) -> list[str]:
    return [_line(_HEAD), _line(["---"] * len(_HEAD)), *(_line(_cells(result)) for result in results)]


def _cells(result: Result) -> tuple[str, ...]:
    if result.row is None:
        return (result.title, f"**FAILED**: {result.failure.partition(chr(10))[0][:_FAILURE_CHARS_MAX]}", "", "", "")
    row = result.row
    return (result.title, row.clients, row.health, row.dump, row.recovered)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(("git", *arguments), capture_output=True, text=True, check=True).stdout.strip()

    is_changed = bool(git("status", "--porcelain", "--untracked-files=no"))
    return f"commit `{git('rev-parse', '--short', 'HEAD')}`" + (
        " with changes that are not in it yet" if is_changed else ""
    )
