"""Compiles a turn: a session, a parent and new ids become the input of one request. Pure."""

from dataclasses import dataclass

from engine.core.errors import Refusal, RefusalReason
from engine.core.ids import TurnId, count_ids
from engine.core.sessions import Session


@dataclass(frozen=True, slots=True)
class CompiledTurn:
    """`ids`: base and new ids. `base_len`: how many of them are history."""

    ids: bytes
    base_len: int


def base_ids(session: Session, parent: TurnId | None) -> bytes:
    """What an append follows: a streaming session's whole history, or the parent's path; nothing without a parent.

    Refused: STREAMING_APPENDS_ONLY, PARENT_UNKNOWN, PARENT_UNFINISHED.
    """
    if session.streaming:
        if parent is not None and parent != _last_turn(session):
            message = f"streaming session {session.session_id!r} appends to its last turn only, not to {parent!r}"
            raise Refusal(RefusalReason.STREAMING_APPENDS_ONLY, message, field="parent_turn_id", value=parent)
        return session.history
    if parent is None:
        return b""
    if parent in session.live:
        message = f"turn {parent!r} is not finished yet"
        raise Refusal(RefusalReason.PARENT_UNFINISHED, message, field="parent_turn_id", value=parent)
    node = session.nodes.get(parent)
    if node is None:
        message = f"session {session.session_id!r} has no finished turn {parent!r}"
        raise Refusal(RefusalReason.PARENT_UNKNOWN, message, field="parent_turn_id", value=parent)
    return node.path_ids()


def _last_turn(session: Session) -> TurnId | None:
    return next(reversed(session.nodes)) if session.nodes else None


def compile_turn(session: Session | None, parent: TurnId | None, new_ids: bytes) -> CompiledTurn:
    """The input of an appending turn. Refused as `base_ids` is."""
    base = base_ids(session, parent) if session is not None else b""
    return CompiledTurn(base + new_ids, count_ids(base))
