"""The scheduler through the facade: who is planned, who gives way, and what answers are worth."""

from dataclasses import replace

import pytest

from engine.core.commands import AbortReason, CommitAck, FinishReason, Submit
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.events import CommitRequested, CoreEvent, StepAnswered, TokensSampled, TurnEnded, TurnRetracted
from engine.core.ids import Rid, TurnId, pack_ids
from engine.core.invariants import CheckLevel
from engine.core.plan import StepFailure, StepPlan, StepResult

CONFIG = CoreConfig(
    page_size=4, pool_pages=33, num_rows=9, context_len=128, vocab_size=100, chunk_tokens=8, step_tokens=16
)


@pytest.fixture(params=[True, False], ids=["slots", "undecorated"])
def config(request: pytest.FixtureRequest) -> CoreConfig:
    """The scheduler knows its cache by Protocol only: with slots around it and without, it does the same."""
    return replace(CONFIG, streaming_sessions=bool(request.param))


def submit(core: Core, rid: int, length: int, max_tokens: int) -> None:
    ids = pack_ids([rid] * length)
    core.apply(Submit(Rid(rid), TurnId(f"t{rid}"), ids, max_tokens=max_tokens, ignore_eos=True), 0.0)


def answer(core: Core, plan: StepPlan) -> list[CoreEvent]:
    """Every sampling row yields 7; finished turns are acknowledged."""
    core.advance(StepResult(plan.step, tuple(7 if row.samples else None for row in plan.rows)), 0.0)
    return take(core)


def take(core: Core) -> list[CoreEvent]:
    events = [numbered.event for numbered in core.take_events()]
    for event in tuple(events):
        if isinstance(event, CommitRequested):
            core.apply(CommitAck(event.rid), 0.0)
            events += take(core)
    assert core.check(CheckLevel.FULL).is_clean
    return events


def run(core: Core) -> list[CoreEvent]:
    """Plans as many steps ahead as the core allows, and answers the oldest, until nothing is left to do."""
    events: list[CoreEvent] = []
    in_flight: list[StepPlan] = []
    while core.has_work:
        plan = core.next_plan(0.0)
        events += take(core)
        if plan is not None:
            in_flight.append(plan)
        else:
            events += answer(core, in_flight.pop(0))
    return events


def outcomes(events: list[CoreEvent]) -> dict[int, FinishReason | AbortReason]:
    return {event.rid: event.outcome for event in events if isinstance(event, TurnEnded)}


@pytest.mark.parametrize("depth", [1, 2])
def test_retraction_when_one_victim_is_enough_then_no_second_is_picked_while_its_pages_drain(
    config: CoreConfig, depth: int
) -> None:
    # Seven turns of 16 + 1 tokens fill 28 of 32 pages and grow together: the oldest runs out of room first.
    core = Core(replace(config, in_flight_max=depth, new_token_ratio=0.0))
    for rid in range(1, 8):
        submit(core, rid, 16, 12)
    events: list[CoreEvent] = []
    in_flight: list[StepPlan] = []
    retracted_at_once: list[int] = []
    while core.has_work:
        plan = core.next_plan(0.0)
        told = take(core)
        retracted_at_once.append(sum(isinstance(event, TurnRetracted) for event in told))
        events += told
        if plan is not None:
            in_flight.append(plan)
        else:
            events += answer(core, in_flight.pop(0))
    assert max(retracted_at_once) == 1
    assert outcomes(events) == dict.fromkeys(range(1, 8), FinishReason.LENGTH)


def test_budget_when_an_old_prompt_could_take_it_all_then_younger_ones_still_decode_in_every_step(
    config: CoreConfig,
) -> None:
    core = Core(replace(config, chunk_tokens=16))
    submit(core, 1, 1, 20)
    plan = core.next_plan(0.0)
    assert plan is not None
    answer(core, plan)
    submit(core, 2, 64, 1)
    plan = core.next_plan(0.0)
    assert plan is not None
    answer(core, plan)
    while (plan := core.next_plan(0.0)) is not None and len(plan.rows) > 1:
        assert {row.rid for row in plan.rows} == {1, 2}
        assert plan.num_tokens <= 16
        answer(core, plan)


def test_new_token_ratio_when_higher_then_fewer_turns_run_at_once_and_fewer_are_retracted(config: CoreConfig) -> None:
    retractions = []
    for ratio in (0.0, 1.0):
        core = Core(replace(config, new_token_ratio=ratio))
        for rid in range(1, 9):
            submit(core, rid, 8, 40)
        retractions.append(sum(isinstance(event, TurnRetracted) for event in run(core)))
    assert retractions[0] > 0
    assert retractions[1] == 0


@pytest.mark.parametrize("sampled", [(), (7, 7), (None,), (-1,), (100,)])
def test_answers_when_they_do_not_fit_the_plan_then_only_the_turns_of_that_step_end(
    config: CoreConfig, sampled: tuple[int | None, ...]
) -> None:
    core = Core(config)
    submit(core, 1, 3, 5)
    plan = core.next_plan(0.0)
    assert plan is not None
    core.advance(StepResult(plan.step, sampled), 0.0)
    assert outcomes(take(core)) == {1: AbortReason.FORWARD_FAILED}
    submit(core, 2, 3, 1)
    assert outcomes(run(core)) == {2: FinishReason.LENGTH}


@pytest.mark.parametrize("placeholder", [-1, 0, 7, 100])
def test_answers_when_a_row_that_samples_nothing_yields_an_id_then_the_turn_ends(
    config: CoreConfig, placeholder: int
) -> None:
    core = Core(config)
    submit(core, 1, 12, 5)
    plan = core.next_plan(0.0)
    assert plan is not None
    assert not plan.rows[0].samples
    core.advance(StepResult(plan.step, (placeholder,)), 0.0)
    events = take(core)
    assert outcomes(events) == {1: AbortReason.FORWARD_FAILED}
    assert not any(isinstance(event, TokensSampled) for event in events)


def test_failure_when_a_forward_fails_then_its_reason_reaches_the_turn_and_the_step(config: CoreConfig) -> None:
    core = Core(config)
    submit(core, 1, 3, 5)
    plan = core.next_plan(0.0)
    assert plan is not None
    core.advance(StepFailure(plan.step, "out of memory"), 0.0)
    events = take(core)
    assert [event.detail for event in events if isinstance(event, TurnEnded)] == ["out of memory"]
    assert [event.failure for event in events if isinstance(event, StepAnswered)] == ["out of memory"]
