"""The facade: what it refuses to believe of an executor, and its look-ups."""

import pytest

from engine.core.commands import AbortReason, Close, Fork, Lengths, Open, Submit, Truncate
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.errors import InvariantViolation
from engine.core.events import TokensSampled, TurnEnded
from engine.core.findings import CheckLevel
from engine.core.ids import Rid, SessionId, StepNo, TurnId, pack_ids
from engine.core.ownership import PoolKind
from engine.core.plan import StepResult
from tests.kit.core_parts import CoreRig

CONFIG = CoreConfig(page_size=4, pool_pages=9, num_rows=4, context_len=24, vocab_size=100, chunk_tokens=4)


def make_core(prompt_len: int = 3) -> Core:
    """With one turn that waits."""
    core = Core(CONFIG)
    core.apply(Submit(Rid(1), TurnId("t"), pack_ids(range(prompt_len)), max_tokens=2), 0.0)
    return core


@pytest.mark.parametrize(
    ("prompt_len", "sampled"),
    [(3, ()), (3, (100,)), (3, (-1,)), (3, (5, 5)), (8, (5,))],
    ids=["nothing where an id is due", "past the vocabulary", "negative", "two ids", "an id where nothing is due"],
)
def test_advance_when_the_answer_makes_no_sense_then_the_turn_ends_and_its_pages_are_free(
    prompt_len: int, sampled: tuple[int, ...]
) -> None:
    core = make_core(prompt_len)
    plan = core.next_plan(1.0)
    assert plan is not None
    core.advance(StepResult(plan.step, (sampled,)), 2.0)
    events = [numbered.event for numbered in core.take_events()]
    (end,) = (event for event in events if isinstance(event, TurnEnded))
    assert end.outcome is AbortReason.FORWARD_FAILED
    num_valid = sum(0 <= token < 100 for token in sampled)
    due = 1 if prompt_len == 3 else 0
    assert end.detail == f"rid 1: {len(sampled)} ids, {num_valid} below 100, where {due} were due"
    assert not end.is_committed
    assert not any(isinstance(event, TokensSampled) for event in events)
    full = next(books for books in core.snapshot().pools if books.pool is PoolKind.FULL)
    assert full.available + full.evictable == full.total
    assert core.check(CheckLevel.FULL).is_clean


def test_advance_when_no_plan_is_in_flight_or_another_step_is_answered_then_raises() -> None:
    core = make_core()
    with pytest.raises(InvariantViolation, match="no plan is in flight"):
        core.advance(StepResult(StepNo(1), ((5,),)), 0.0)
    assert core.next_plan(0.0) is not None
    with pytest.raises(InvariantViolation, match="before step 1"):
        core.advance(StepResult(StepNo(2), ((5,),)), 0.0)


def test_next_plan_when_as_many_are_out_as_may_be_then_none() -> None:
    core = make_core()
    assert core.next_plan(0.0) is not None
    assert core.next_plan(0.0) is None


def test_clock_when_it_goes_back_then_asserts() -> None:
    core = make_core()
    core.expire(5.0)
    with pytest.raises(AssertionError, match="went back"):
        core.expire(4.0)


@pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "ordinary"])
def test_apply_when_it_forks_or_truncates_then_it_answers_lengths_and_else_nothing(streaming: bool) -> None:
    rig = CoreRig(CONFIG)
    session, fork = SessionId("s"), SessionId("f")
    assert rig.apply(Open(session, streaming)) is None
    assert rig.apply(rig.command("t", range(8), "s")) is None
    rig.run()
    assert rig.apply(Fork(session, fork)) == Lengths(history_len=10, kv_len=8)
    assert rig.apply(Truncate(fork, 7)) == Lengths(history_len=7, kv_len=4)
    assert rig.apply(Close(session)) is None
    assert rig.apply(Close(session)) is None


def test_has_work_when_a_turn_settles_then_it_is_busy_until_its_plan_is_answered() -> None:
    rig = CoreRig(CONFIG)
    assert not rig.core.has_work
    rid = rig.submit(rig.command("t", [1, 2, 3]))
    assert rig.plan() is not None
    rig.cancel(rid)
    assert (rig.core.has_work, rig.core.num_in_flight) == (True, 1)
    rig.answer()
    assert (rig.core.has_work, rig.core.num_in_flight) == (False, 0)
