"""Open sessions, as the client sees them."""

from dataclasses import dataclass

from protos.v1 import session_pb2

_KV_STATES = {
    session_pb2.KV_STATE_NONE: "none",
    session_pb2.KV_STATE_HELD: "held",
    session_pb2.KV_STATE_LENT: "lent",
    session_pb2.KV_STATE_DEMOTED: "demoted",
}


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """An open session at one instant."""

    session_id: str
    streaming: bool
    session_len: int
    """Tokens of a streaming session."""
    live_turn_ids: tuple[str, ...]
    kv_state: str
    """none, held, lent (to a turn) or demoted (to the prefix cache)."""
    kv_tokens: int
    kv_pages: int
    swa_pages: int = 0
    """As kv_pages, of the other pools."""
    states: int = 0


@dataclass(frozen=True, slots=True)
class Lengths:
    """What a session has after it was forked or truncated."""

    session_len: int
    """Tokens; of an ordinary session those of its longest path."""
    kv_tokens: int
    """How many of them need not be computed again."""


def decode_session(info: session_pb2.SessionInfo) -> SessionInfo:
    return SessionInfo(
        session_id=info.session_id,
        streaming=info.streaming,
        session_len=info.session_len,
        live_turn_ids=tuple(info.live_turn_ids),
        kv_state=_KV_STATES.get(info.kv_state, f"state {info.kv_state}"),
        kv_tokens=info.kv_tokens,
        kv_pages=info.kv_pages,
        swa_pages=info.swa_pages,
        states=info.states,
    )
