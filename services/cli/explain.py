"""`tenure explain`: who owns a unit of a running server, and who did before."""

import asyncio
import sys
from collections.abc import Mapping

from services.cli.arguments import USAGE_CODE
from services.cli.run import run_work
from services.cli.tables import format_table
from services.client import Client, TenureError, UnitHistory, UnitOwner, connect
from services.client.asking import QUICK_S
from services.client.pools import name_unit, name_units

FLAGS = {"full": "", "swa": " --swa", "mamba": " --states", "rows": " --rows"}
"""By pool, what stands behind the number of a unit: see `services.cli.operating`."""
_SESSION = "session"


def run_explain(target: str, unit: int, pool: str) -> int:
    return run_work(target, _explain(target, unit, pool))


async def _explain(target: str, unit: int, pool: str) -> int:
    async with connect(target) as client:
        kinds = (await client.model()).pools
        if pool not in kinds:
            there_are = ", ".join(map(name_units, kinds))
            print(f"tenure:{FLAGS[pool]}: this server has no {name_units(pool)}; it has {there_are}", file=sys.stderr)
            return USAGE_CODE
        history = await client.explain(unit, pool)
        names = await find_names(client) if _has_session(history) else {}
    print(format_history(history, names))
    return 0


async def find_names(client: Client) -> dict[int, str]:
    """Of sessions by number, as far as the server remembers them. None is an answer, too: they only go beside it."""
    try:
        facts = (await asyncio.wait_for(client.history(), QUICK_S)).facts
    except (TenureError, TimeoutError):
        return {}
    return {fact.session_number: fact.session_id for fact in facts}


def format_history(history: UnitHistory, names: Mapping[int, str] | None = None) -> str:
    """A line on its owner, then one for each move, newest first. `names` of sessions stand beside their numbers."""
    known = names or {}
    head = f"{name_unit(history.pool, history.unit)}: {_describe(history.owner, known)}"
    if not history.changes:
        return f"{head}; nobody ever had it"
    rows = [
        (
            f"step {change.step}",
            change.move,
            f"{_describe(change.source, known)} -> {_describe(change.target, known)}",
            f"trace {change.trace_id}" if change.trace_id else "",
        )
        for change in history.changes
    ]
    return f"{head}; newest move first:\n{format_table(rows, indent='  ')}"


def _has_session(history: UnitHistory) -> bool:
    owners = [history.owner, *(owner for change in history.changes for owner in (change.source, change.target))]
    return any(owner.kind == _SESSION for owner in owners)


def _describe(owner: UnitOwner, names: Mapping[int, str]) -> str:
    """As in `session 9 (user-0-3)`, or without a name `session 9`."""
    name = names.get(owner.number) if owner.kind == _SESSION else None
    return f"{owner} ({name})" if name else str(owner)
