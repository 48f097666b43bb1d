"""Batch and pool state as plain data. Token ids never appear in it."""

from dataclasses import dataclass

from engine.core.events import SlotState
from engine.core.ids import Rid, SessionId, TurnId
from engine.core.ownership import PoolKind


@dataclass(frozen=True, slots=True)
class PoolBooks:
    """The terms of the equation for one pool, in pages (rows for `rows`).

    available + evictable + protected + session_held + uncached = total, where total leaves out padding and quarantine.
    """

    pool: PoolKind
    total: int
    available: int
    evictable: int
    protected: int
    session_held: int
    uncached: int
    draining: int
    """Part of uncached: given up, waiting for a plan in flight."""
    quarantined: int

    @property
    def is_balanced(self) -> bool:
        return self.available + self.evictable + self.protected + self.session_held + self.uncached == self.total


@dataclass(frozen=True, slots=True)
class TurnState:
    """One live turn, without its ids."""

    rid: Rid
    turn_id: TurnId
    session_id: SessionId | None
    phase: str
    context_len: int
    output_len: int
    kv_committed_len: int
    pages: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class SessionState:
    session_id: SessionId
    streaming: bool
    history_len: int
    live_turns: int
    slot: SlotState | None
    kv_committed_len: int
    pages: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything an operator may look at, at one instant."""

    page_size: int
    pools: tuple[PoolBooks, ...]
    turns: tuple[TurnState, ...]
    sessions: tuple[SessionState, ...]
    steps: int
    in_flight: int
    checks_run: int
