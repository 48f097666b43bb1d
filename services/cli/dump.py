"""`tenure incidents` and `tenure dump`: what went wrong on a running server, and all that was known of it."""

import shutil
import sys
from collections.abc import Sequence
from datetime import datetime

from services.cli.arguments import DEFAULT_TARGET
from services.cli.run import run_work
from services.cli.tables import format_table
from services.client import connect
from services.client.incidents import Incident

_COLUMNS = ("time", "incident", "kind", "over after", "what happened")
_GAP = 2
"""Blanks between two columns of a table."""
_MESSAGE_MIN = 60
"""Characters of what happened that are shown on any terminal; a narrow one breaks the line."""
_CUT = "..."


def run_incidents(target: str) -> int:
    return run_work(target, _incidents(target))


async def _incidents(target: str) -> int:
    async with connect(target) as client:
        incidents = await client.incidents()
    print(format_incidents(incidents, target, find_width()))
    return 0


def run_dump(target: str, incident_id: str | None) -> int:
    return run_work(target, _dump(target, incident_id))


async def _dump(target: str, incident_id: str | None) -> int:
    async with connect(target) as client:
        text = await client.dump(incident_id)
    print(text)
    return 0


def find_width() -> int | None:
    """Of the terminal that is written to; None for a pipe or a file, where nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def format_incidents(incidents: Sequence[Incident], target: str = DEFAULT_TARGET, width: int | None = None) -> str:
    """A table, oldest first, and how to see the dump of the newest one that has any.

    What happened is cut so that a line is `width` wide, but not below 60 characters; None leaves it whole.
    """
    if not incidents:
        return "nothing went wrong lately"
    whole = format_table([_COLUMNS, *map(_cells, incidents)])
    table = whole if width is None else _cut_messages(incidents, width)
    at = "" if target == DEFAULT_TARGET else f" --target {target}"
    lines = [table]
    if table != whole:
        lines.append(f"cut to the width of the terminal; all of it: tenure incidents{at} | cat")
    dumped = [incident for incident in incidents if incident.has_dump]
    if dumped:
        lines.append(f"next: tenure dump --incident {dumped[-1].incident_id}{at}")
    return "\n".join(lines)


def _cut_messages(incidents: Sequence[Incident], width: int) -> str:
    rows = [_COLUMNS, *map(_cells, incidents)]
    others = sum(max(len(row[column]) for row in rows) + _GAP for column in range(len(_COLUMNS) - 1))
    return format_table([(*row[:-1], _cut(row[-1], max(width - others, _MESSAGE_MIN))) for row in rows])


def _cut(message: str, length: int) -> str:
    return message if len(message) <= length else f"{message[: length - len(_CUT)]}{_CUT}"


def _cells(incident: Incident) -> tuple[str, ...]:
    over = "-" if incident.over_s is None else f"{max(0.0, incident.over_s - incident.time_s):.1f} s"
    return (format_time(incident.time_s), incident.incident_id, incident.kind, over, incident.message)


def format_time(time_s: float) -> str:
    """Seconds since 1970 → the time here, as in `2026-11-29 19:51:21+00:00`."""
    return datetime.fromtimestamp(time_s).astimezone().isoformat(sep=" ", timespec="seconds")
