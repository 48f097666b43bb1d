"""A core in the middle of its work: a session that holds KV, a turn in flight, and pages that somebody gave back."""

from engine.core.commands import Abort, CommitAck, Open, Submit
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.events import CommitRequested, CoreEvent
from engine.core.ids import Rid, SessionId, TurnId, pack_ids
from engine.core.plan import StepPlan, StepResult

CONFIG = CoreConfig(page_size=4, pool_pages=33, num_rows=5, context_len=64, vocab_size=1000)
SAMPLED = 777
"""The only id that is ever sampled, and in no prompt."""


def answer(plan: StepPlan) -> StepResult:
    return StepResult(plan.step, tuple((SAMPLED,) * row.num_samples for row in plan.rows))


def run_step(core: Core) -> list[CoreEvent]:
    """Plans, answers and acknowledges commits. Returns what was told."""
    plan = core.next_plan(0.0)
    assert plan is not None, "nothing to run"
    core.advance(answer(plan), 0.0)
    return settle(core)


def settle(core: Core) -> list[CoreEvent]:
    told: list[CoreEvent] = []
    while events := [numbered.event for numbered in core.take_events()]:
        told += events
        for event in events:
            if isinstance(event, CommitRequested):
                core.apply(CommitAck(event.rid), 0.0)
    return told


def make_busy_core() -> Core:
    """Session "s" (trace "trace-s") holds two pages; turn 2 was aborted; turn 3 (trace "trace-3") is in flight."""
    core = Core(CONFIG)
    core.apply(Open(SessionId("s"), streaming=True, trace_id="trace-s"), 0.0)
    core.apply(_submit(1, range(10), session_id=SessionId("s"), max_tokens=4), 0.0)
    core.apply(_submit(2, range(100, 115)), 0.0)
    for _ in range(4):
        run_step(core)
    core.apply(_submit(3, range(200, 210)), 0.0)
    run_step(core)
    core.apply(Abort(Rid(2)), 0.0)
    assert core.next_plan(0.0) is not None, "turn 3 goes on"
    settle(core)
    return core


def _submit(rid: int, ids: range, session_id: SessionId | None = None, max_tokens: int = 20) -> Submit:
    return Submit(
        Rid(rid),
        TurnId(f"t{rid}"),
        pack_ids(ids),
        session_id=session_id,
        max_tokens=max_tokens,
        trace_id=f"trace-{rid}",
    )
