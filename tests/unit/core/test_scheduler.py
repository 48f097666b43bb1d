"""The scheduler through the facade: who is planned, who gives way, and what answers are worth."""

from dataclasses import replace

import pytest

from engine.core.commands import AbortReason, CommitAck, FinishReason, Submit
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.events import (
    CommitRequested,
    CoreEvent,
    StepAnswered,
    TokensSampled,
    TurnAdmitted,
    TurnEnded,
    TurnRetracted,
)
from engine.core.findings import CheckLevel
from engine.core.ids import Rid, SessionId, TurnId, pack_ids, unpack_ids
from engine.core.plan import StepFailure, StepPlan, StepResult
from engine.core.turns import Point
from tests.kit.core_parts import CoreRig

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
    core.advance(StepResult(plan.step, tuple((7,) * row.num_samples for row in plan.rows)), 0.0)
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


@pytest.mark.parametrize("sampled", [(), ((7,), (7,)), ((),), ((7, 7),), ((-1,),), ((100,),)])
def test_answers_when_they_do_not_fit_the_plan_then_only_the_turns_of_that_step_end(
    config: CoreConfig, sampled: tuple[tuple[int, ...], ...]
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
    assert plan.rows[0].num_samples == 0
    core.advance(StepResult(plan.step, ((placeholder,),)), 0.0)
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


# Waiting for another's prompt

WAITING = replace(CONFIG, chunk_tokens=4, prefix_wait_tokens=8, in_flight_max=1)
PROMPT = list(range(20))


def make_pair(config: CoreConfig, second: Submit | None = None) -> tuple[CoreRig, Rid, Rid]:
    """A turn whose prompt takes five steps, the first of them done, and one that came with the same prompt."""
    rig = CoreRig(config)
    first = rig.submit(rig.command("first", PROMPT))
    command = rig.command("second", PROMPT)
    if second is not None:
        command = replace(second, rid=command.rid, turn_id=command.turn_id)
    rig.submit(command)
    rig.step()
    return rig, first, command.rid


def admission(rig: CoreRig, rid: Rid) -> TurnAdmitted:
    (admitted,) = (event for event in rig.of(TurnAdmitted) if event.rid == rid)
    return admitted


def test_prompt_when_another_computes_the_same_then_the_turn_waits_for_it_and_hits() -> None:
    rig, first, second = make_pair(WAITING)
    for _ in range(4):
        assert rig.admissions() == [first]
        rig.step()
    rig.run()
    assert rig.admissions() == [first, second]
    assert admission(rig, second).tokens_from_tree == 16
    computed = sum(row.query_len for plan in rig.plans for row in plan.rows if row.rid == second)
    assert computed == 4 + 1, "the tail of the prompt, and the first of the two generated ids"
    assert rig.output(first) == rig.output(second)


def test_prompt_when_there_is_no_prefix_cache_then_nobody_waits_for_it() -> None:
    rig, first, second = make_pair(replace(WAITING, prefix_cache=False))
    assert rig.admissions() == [first, second]
    rig.run()
    assert rig.output(first) == rig.output(second)


@pytest.mark.parametrize("in_flight", [False, True])
def test_prompt_when_the_turn_that_computes_it_is_aborted_then_the_one_that_waits_goes_on(in_flight: bool) -> None:
    rig, first, second = make_pair(WAITING)
    chunks = [row for plan in rig.plans for row in plan.rows if row.rid == first]
    if in_flight:
        assert rig.plan() is not None
    rig.cancel(first)
    if in_flight:
        rig.answer()
    rig.step()
    assert rig.admissions() == [first, second]
    rig.run()
    assert rig.ending(second).outcome is FinishReason.LENGTH
    assert admission(rig, second).tokens_from_tree == 4 * len(chunks), "what was answered of the prompt is shared"


@pytest.mark.parametrize(
    ("shared", "wait_tokens", "waits"), [(8, 8, True), (11, 8, True), (7, 8, False), (4, 4, True), (12, 16, False)]
)
def test_prompt_when_less_than_enough_is_shared_then_the_turn_does_not_wait(
    shared: int, wait_tokens: int, waits: bool
) -> None:
    other = Submit(Rid(0), TurnId(""), pack_ids(PROMPT[:shared] + [99] * (20 - shared)), max_tokens=2)
    rig, first, second = make_pair(replace(WAITING, prefix_wait_tokens=wait_tokens), other)
    assert rig.admissions() == ([first] if waits else [first, second])
    rig.run()
    assert rig.ending(second).outcome is FinishReason.LENGTH


def test_prompt_when_the_namespace_is_another_then_the_turn_does_not_wait() -> None:
    other = Submit(Rid(0), TurnId(""), pack_ids(PROMPT), max_tokens=2, namespace="other", ignore_eos=True)
    rig, first, second = make_pair(WAITING, other)
    assert rig.admissions() == [first, second]


def test_prompt_when_most_of_it_is_cached_already_then_the_turn_takes_that_and_does_not_wait() -> None:
    rig = CoreRig(replace(WAITING, prefix_wait_tokens=12))
    rig.submit(rig.command("cached", PROMPT[:9]))
    rig.run()
    rig.take()
    rids = [rig.submit(rig.command(turn, PROMPT)) for turn in ("first", "second")]
    rig.step()
    assert rig.admissions() == rids
    assert admission(rig, rids[1]).tokens_from_tree == 8


def test_prompt_when_a_turn_waits_for_one_then_those_behind_it_come_in() -> None:
    rig, first, second = make_pair(WAITING)
    third = rig.submit(rig.command("third", [77]))
    rig.step()
    assert rig.admissions() == [first, third]
    rig.run()
    assert rig.admissions()[-1] == second


def test_prompt_when_it_is_a_later_one_of_a_streaming_session_then_nobody_waits_for_what_is_not_shared() -> None:
    rig = CoreRig(WAITING)
    rig.open("s", streaming=True)
    rig.submit(rig.command("one", [50], "s"))
    rig.run()
    history = unpack_ids(rig.core.find_base(SessionId("s"), Point()))
    rig.take()
    first = rig.submit(rig.command("two", PROMPT, "s"))
    second = rig.submit(rig.command("plain", [*history, *PROMPT]))
    rig.step()
    assert rig.admissions() == [first, second]


def test_prompt_when_a_crowd_shares_it_then_it_is_computed_once_whoever_comes_in() -> None:
    rig = CoreRig(replace(WAITING, num_rows=9, in_flight_max=2))
    rids = [rig.submit(rig.command(f"t{number}", [*PROMPT, 50 + number])) for number in range(6)]
    rig.run()
    assert [admission(rig, rid).tokens_to_compute for rid in rids] == [21, 1, 1, 1, 1, 1]


def test_answers_when_one_row_of_two_is_out_of_range_then_both_turns_of_the_step_end(config: CoreConfig) -> None:
    core = Core(config)
    submit(core, 1, 3, 5)
    submit(core, 2, 3, 5)
    plan = core.next_plan(0.0)
    assert plan is not None
    assert [row.rid for row in plan.rows] == [1, 2]
    core.advance(StepResult(plan.step, ((7,), (100,))), 0.0)
    events = take(core)
    assert outcomes(events) == {1: AbortReason.FORWARD_FAILED, 2: AbortReason.FORWARD_FAILED}
    (answered,) = (event for event in events if isinstance(event, StepAnswered))
    assert answered.failure == "rid 2: 1 ids, 0 below 100, where 1 were due"
    assert not any(isinstance(event, TokensSampled) for event in events)


def test_answers_when_the_row_that_is_out_of_range_has_ended_by_then_then_the_others_go_on(config: CoreConfig) -> None:
    core = Core(replace(config, in_flight_max=2))
    submit(core, 1, 3, 5)
    first = core.next_plan(0.0)
    submit(core, 2, 3, 1)
    second = core.next_plan(0.0)
    assert first is not None
    assert second is not None
    assert [row.rid for row in second.rows] == [1, 2]
    core.advance(StepFailure(first.step, "out of memory"), 0.0)
    core.advance(StepResult(second.step, ((100,), (7,))), 0.0)
    core.apply(CommitAck(Rid(2)), 0.0)
    assert outcomes(take(core)) == {1: AbortReason.FORWARD_FAILED, 2: FinishReason.LENGTH}
