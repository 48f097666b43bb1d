"""`tenure sessions`, `fork`, `truncate` and `close`: the open sessions of a running server."""

from collections.abc import Sequence

from services.cli.held import USUAL_KINDS, held_counts, held_heads
from services.cli.run import run_work
from services.cli.tables import format_table
from services.client import Lengths, SessionInfo, connect

_COLUMNS = ("session", "kind", "tokens", "kv", "kv tokens")


def run_sessions(target: str) -> int:
    return run_work(target, _sessions(target))


async def _sessions(target: str) -> int:
    async with connect(target) as client:
        kinds = tuple((await client.model()).pools)
        sessions = [session async for session in client.sessions()]
    print(format_sessions(sessions, kinds))
    return 0


def run_fork(target: str, session_id: str, name: str | None, *, at_turn: str | None, at_length: int | None) -> int:
    return run_work(target, _fork(target, session_id, name, at_turn, at_length))


async def _fork(target: str, session_id: str, name: str | None, at_turn: str | None, at_length: int | None) -> int:
    async with connect(target) as client:
        fork = await client.session(session_id).fork(name, at_turn=at_turn, at_length=at_length)
    told = describe_lengths(fork.lengths) if fork.lengths is not None else ""
    print(f"session {fork.session_id} begins with what {session_id} has: {told}")
    return 0


def run_truncate(target: str, session_id: str, length: int) -> int:
    return run_work(target, _truncate(target, session_id, length))


async def _truncate(target: str, session_id: str, length: int) -> int:
    async with connect(target) as client:
        lengths = await client.session(session_id).truncate(length)
    print(f"session {session_id} is rewound: {describe_lengths(lengths)}")
    return 0


def run_close(target: str, session_id: str, *, drain: bool) -> int:
    return run_work(target, _close(target, session_id, drain=drain))


async def _close(target: str, session_id: str, *, drain: bool) -> int:
    async with connect(target) as client:
        await client.find_session(session_id)  # closing what is not open is no error of the server's, but one of ours
        await client.session(session_id).close(drain=drain)
    print(f"session {session_id} is closed")
    return 0


def describe_lengths(lengths: Lengths) -> str:
    """As in `120 tokens, of which 112 need not be computed again`."""
    return f"{lengths.session_len} tokens, of which {lengths.kv_tokens} need not be computed again"


def format_sessions(sessions: Sequence[SessionInfo], kinds: Sequence[str] = USUAL_KINDS) -> str:
    """A table, or a line when there is nothing to show. `kinds`: those of the server's pools."""
    if not sessions:
        return "no session is open"
    heads = (*_COLUMNS, *held_heads(kinds), "running")
    return format_table([heads, *(_cells(session, kinds) for session in sessions)])


def _cells(session: SessionInfo, kinds: Sequence[str]) -> tuple[str, ...]:
    return (
        session.session_id,
        "streaming" if session.streaming else "ordinary",
        str(session.session_len) if session.streaming else "-",
        session.kv_state,
        str(session.kv_tokens),
        *map(str, held_counts(session, kinds)),
        ", ".join(session.live_turn_ids) or "-",
    )
