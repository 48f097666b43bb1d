"""`tenure sessions`: the open sessions of a running server."""

from collections.abc import Sequence

from services.cli.run import run_work
from services.client import SessionInfo, connect

_COLUMNS = ("session", "kind", "tokens", "kv", "kv tokens", "pages", "running")


def run_sessions(target: str) -> int:
    return run_work(target, _sessions(target))


async def _sessions(target: str) -> int:
    async with connect(target) as client:
        sessions = [session async for session in client.sessions()]
    print(format_sessions(sessions))
    return 0


def format_sessions(sessions: Sequence[SessionInfo]) -> str:
    """A table, or a line when there is nothing to show."""
    if not sessions:
        return "no session is open"
    rows = [_COLUMNS, *map(_cells, sessions)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _cells(session: SessionInfo) -> tuple[str, ...]:
    return (
        session.session_id,
        "streaming" if session.streaming else "ordinary",
        str(session.session_len) if session.streaming else "-",
        session.kv_state,
        str(session.kv_tokens),
        str(session.kv_pages),
        ", ".join(session.live_turn_ids) or "-",
    )
