"""`tenure incidents` and `tenure dump`: what went wrong on a running server, and all that was known of it."""

from collections.abc import Sequence
from datetime import datetime

from services.cli.run import run_work
from services.cli.tables import format_table
from services.client import connect
from services.client.incidents import Incident

_COLUMNS = ("time", "incident", "kind", "over after", "what happened")


def run_incidents(target: str) -> int:
    return run_work(target, _incidents(target))


async def _incidents(target: str) -> int:
    async with connect(target) as client:
        incidents = await client.incidents()
    print(format_incidents(incidents))
    return 0


def run_dump(target: str, incident_id: str | None) -> int:
    return run_work(target, _dump(target, incident_id))


async def _dump(target: str, incident_id: str | None) -> int:
    async with connect(target) as client:
        text = await client.dump(incident_id)
    print(text)
    return 0


def format_incidents(incidents: Sequence[Incident]) -> str:
    """A table, oldest first, and how to see the dump of the newest one that has any."""
    if not incidents:
        return "nothing went wrong lately"
    table = format_table([_COLUMNS, *map(_cells, incidents)])
    dumped = [incident for incident in incidents if incident.has_dump]
    if not dumped:
        return table
    return f"{table}\nnext: tenure dump --incident {dumped[-1].incident_id}"


def _cells(incident: Incident) -> tuple[str, ...]:
    over = "-" if incident.over_s is None else f"{max(0.0, incident.over_s - incident.time_s):.1f} s"
    return (format_time(incident.time_s), incident.incident_id, incident.kind, over, incident.message)


def format_time(time_s: float) -> str:
    """Seconds since 1970 → the time here, as in `2026-11-29 19:51:21+00:00`."""
    return datetime.fromtimestamp(time_s).astimezone().isoformat(sep=" ", timespec="seconds")
