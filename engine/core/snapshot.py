"""Batch and pool state as plain data. Token ids never appear in it."""

from dataclasses import dataclass

from engine.core.events import SlotState
from engine.core.ids import Rid, SessionId, StepNo, TurnId
from engine.core.ownership import PoolKind
from engine.core.plan import StepPlan


@dataclass(frozen=True, slots=True)
class PoolBooks:
    """The terms of the equation for one pool, in its units: pages, SWA pages, state slots or rows.

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
    """Given up, but with their last owner until a plan in flight is answered: part of the terms above."""
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
    """Of its own, as the units of the other pools."""
    in_flight: int
    swa_pages: int = 0
    states: int = 0
    """State slots."""


@dataclass(frozen=True, slots=True)
class SessionState:
    session_id: SessionId
    streaming: bool
    history_len: int
    live_turns: int
    slot: SlotState | None
    kv_committed_len: int
    """Tokens of KV that the slot holds, or has lent to its turn."""
    pages: int
    """The same, in pages of its own."""
    number: int = 0
    """The server's, as in `Owner`."""
    swa_pages: int = 0
    """As `pages`, of the other pools."""
    states: int = 0


@dataclass(frozen=True, slots=True)
class PlanRowState:
    """One turn's share of a plan in flight: it computes positions [start_len, start_len + query_len)."""

    rid: Rid
    epoch: int
    req_pool_idx: int
    start_len: int
    query_len: int
    num_samples: int


@dataclass(frozen=True, slots=True)
class PlanState:
    """A plan that is not answered yet."""

    step: StepNo
    rows: tuple[PlanRowState, ...]


def describe_plan(plan: StepPlan) -> PlanState:
    """A plan without its ids."""
    rows = tuple(
        PlanRowState(row.rid, row.epoch, row.req_pool_idx, row.start_len, row.query_len, row.num_samples)
        for row in plan.rows
    )
    return PlanState(plan.step, rows)


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
    plans: tuple[PlanState, ...] = ()
    """Those in flight, oldest first."""
