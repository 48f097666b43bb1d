"""`tenure explain`: who owns a page of a running server, and who did before."""

from services.cli.run import run_work
from services.cli.tables import format_table
from services.client import UnitHistory, connect


def run_explain(target: str, unit: int, *, is_row: bool) -> int:
    return run_work(target, _explain(target, unit, "rows" if is_row else "full"))


async def _explain(target: str, unit: int, pool: str) -> int:
    async with connect(target) as client:
        history = await client.explain(unit, pool)
    print(format_history(history))
    return 0


def format_history(history: UnitHistory) -> str:
    """A line on its owner, then one for each move, newest first."""
    name = f"row {history.unit}" if history.pool == "rows" else f"{history.pool} page {history.unit}"
    head = f"{name}: {history.owner}"
    if not history.changes:
        return f"{head}; nobody ever had it"
    rows = [
        (
            f"step {change.step}",
            change.move,
            f"{change.source} -> {change.target}",
            f"trace {change.trace_id}" if change.trace_id else "",
        )
        for change in history.changes
    ]
    return f"{head}; newest move first:\n{format_table(rows, indent='  ')}"
