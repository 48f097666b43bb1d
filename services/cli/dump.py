"""`tenure incidents` and `tenure dump`: what went wrong on a running server, and all that was known of it."""

import re
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import datetime

from services.cli.arguments import DEFAULT_TARGET
from services.cli.explain import FLAGS
from services.cli.run import run_work
from services.cli.tables import format_table
from services.cli.top_view.numbers import format_span
from services.client import Client, TenureError, connect
from services.client.incidents import Incident

DRILL = "faults can be planted on this server (--fault-injection): this may be a drill"
_COLUMNS = ("time", "incident", "kind", "state", "dump", "what happened")
_GAP = 2
"""Blanks between two columns of a table."""
_MESSAGE_MIN = 60
"""Characters of what happened that are shown on any terminal; a narrow one breaks the line."""
_CUT = "..."
_LASTING = ("forward_stuck", "loop_stuck", "failing", "slow_start", "slow_end")
"""Kinds that go on until they are over."""
_LEAK = "leak"
_LOST = re.compile(r"(page|SWA page|state|row) (\d+)\b")
"""How a leak's message begins."""
_POOLS = {"page": "full", "SWA page": "swa", "state": "mamba", "row": "rows"}


def run_incidents(target: str) -> int:
    return run_work(target, _incidents(target))


async def _incidents(target: str) -> int:
    async with connect(target) as client:
        incidents = await client.incidents()
        is_drill = await can_be_drill(client)
    print(format_incidents(incidents, time.time(), target, find_width()))
    if is_drill:
        print(DRILL)
    return 0


def run_dump(target: str, incident_id: str | None) -> int:
    return run_work(target, _dump(target, incident_id))


async def _dump(target: str, incident_id: str | None) -> int:
    async with connect(target) as client:
        text = await client.dump(incident_id)
        is_drill = await can_be_drill(client)
    print(text)
    if is_drill:
        print(DRILL)
    return 0


async def can_be_drill(client: Client) -> bool:
    """Whether faults can be planted. A server that does not say so spoils no answer."""
    try:
        return (await client.config()).get("fault_injection") == "yes"
    except TenureError:
        return False


def find_width() -> int | None:
    """Of the terminal that is written to; None for a pipe or a file, where nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def format_incidents(
    incidents: Sequence[Incident], now_s: float, target: str = DEFAULT_TARGET, width: int | None = None
) -> str:
    """A table, oldest first, and where to look next: at the newest lost page, at the newest dump.

    What happened is cut so that a line is `width` wide, but not below 60 characters; None leaves it whole. `now_s` is
    in seconds since 1970: what is not over has lasted until then.
    """
    if not incidents:
        return "nothing went wrong lately"
    rows = [_COLUMNS, *(_cells(incident, now_s) for incident in incidents)]
    whole = format_table(rows)
    table = whole if width is None else format_table(_cut_messages(rows, width))
    at = "" if target == DEFAULT_TARGET else f" --target {target}"
    lines = [table]
    if table != whole:
        lines.append(f"cut to the width of the terminal; all of it: tenure incidents{at} | cat")
    return "\n".join((*lines, *(f"next: {command}{at}" for command in _next_commands(incidents))))


def _next_commands(incidents: Sequence[Incident]) -> list[str]:
    commands = []
    leaks = [incident.message for incident in incidents if incident.kind == _LEAK]
    lost = _LOST.match(leaks[-1]) if leaks else None
    if lost is not None:
        commands.append(f"tenure explain {lost[2]}{FLAGS[_POOLS[lost[1]]]}")
    dumped = [incident.incident_id for incident in incidents if incident.has_dump]
    if dumped:
        commands.append(f"tenure dump --incident {dumped[-1]}")
    return commands


def _cut_messages(rows: Sequence[tuple[str, ...]], width: int) -> list[tuple[str, ...]]:
    others = sum(max(len(row[column]) for row in rows) + _GAP for column in range(len(_COLUMNS) - 1))
    return [(*row[:-1], _cut(row[-1], max(width - others, _MESSAGE_MIN))) for row in rows]


def _cut(message: str, length: int) -> str:
    return message if len(message) <= length else f"{message[: length - len(_CUT)]}{_CUT}"


def _cells(incident: Incident, now_s: float) -> tuple[str, ...]:
    return (
        format_time(incident.time_s),
        incident.incident_id,
        incident.kind,
        describe_state(incident, now_s),
        "yes" if incident.has_dump else "-",
        incident.message,
    )


def describe_state(incident: Incident, now_s: float) -> str:
    """As in `over after 3.4 s`, `not over, 2 min` or `contained`; `-` for what has no end to wait for."""
    if incident.over_s is not None:
        return f"over after {max(0.0, incident.over_s - incident.time_s):.1f} s"
    if incident.kind == _LEAK:
        return "contained"
    return f"not over, {format_span(now_s - incident.time_s)}" if incident.kind in _LASTING else "-"


def format_time(time_s: float) -> str:
    """Seconds since 1970 → the time here, as in `2026-11-29 19:51:21+00:00`."""
    return datetime.fromtimestamp(time_s).astimezone().isoformat(sep=" ", timespec="seconds")
