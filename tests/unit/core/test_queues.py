"""Two lanes: order inside a lane, the share of each, and that neither shuts the other out."""

from dataclasses import replace

import pytest

from engine.core.commands import Submit
from engine.core.config import CoreConfig
from engine.core.events import TurnEnded
from engine.core.ids import Rid
from engine.core.request import Lane, Phase, Request
from tests.kit.core_parts import CoreParts, CoreRig, ScriptedModel, make_parts

NONE_SKIPPED = dict.fromkeys(Lane, 0)


def make_waiting(parts: CoreParts, *rids: int, in_session: bool = False) -> list[Request]:
    sessions = [parts.open_session(f"s{rid}") if in_session else None for rid in rids]
    return [parts.request(rid, [rid], session) for rid, session in zip(rids, sessions, strict=True)]


def test_lane_when_turns_come_in_any_order_then_they_stand_by_rank() -> None:
    parts = make_parts()
    make_waiting(parts, 5, 2, 9, 1)
    assert [request.rid for request in parts.queues.waiting] == [1, 2, 5, 9]


def test_lanes_when_both_have_turns_then_waiting_tells_each_in_order_and_counts_them_apart() -> None:
    parts = make_parts()
    make_waiting(parts, 3, 1)
    make_waiting(parts, 4, 2, in_session=True)
    assert [request.rid for request in parts.queues.waiting] == [2, 4, 1, 3]
    assert {lane: parts.queues.num_new_waiting(lane) for lane in Lane} == {Lane.SESSIONS: 2, Lane.PLAIN: 2}


def test_lane_when_a_turn_was_retracted_then_it_does_not_count_as_a_new_one() -> None:
    parts = make_parts()
    first, _ = make_waiting(parts, 1, 2)
    first.retractions = 1
    assert parts.queues.num_new_waiting(Lane.PLAIN) == 1


def test_next_waiting_when_lanes_were_served_alike_then_the_lower_rank_goes_first() -> None:
    parts = make_parts()
    (plain,) = make_waiting(parts, 2)
    (session,) = make_waiting(parts, 1, in_session=True)
    assert parts.queues.next_waiting(NONE_SKIPPED) is session
    parts.queues.serve(session, 1)
    assert parts.queues.next_waiting(NONE_SKIPPED) is plain
    parts.queues.serve(plain, 2)
    assert parts.queues.next_waiting(NONE_SKIPPED) is session


def test_next_waiting_when_the_first_are_skipped_then_the_next_of_that_lane_and_none_behind_the_last() -> None:
    parts = make_parts()
    first, second = make_waiting(parts, 1, 2)
    (session,) = make_waiting(parts, 3, in_session=True)
    assert parts.queues.next_waiting(NONE_SKIPPED) is first
    assert parts.queues.next_waiting({Lane.PLAIN: 1, Lane.SESSIONS: 0}) is second
    assert parts.queues.next_waiting({Lane.PLAIN: 2, Lane.SESSIONS: 0}) is session
    assert parts.queues.next_waiting({Lane.PLAIN: 2, Lane.SESSIONS: 1}) is None


def test_lane_when_it_was_empty_then_it_starts_level_and_has_saved_up_nothing() -> None:
    parts = make_parts()
    (plain, *_) = make_waiting(parts, 1, 2)
    parts.queues.serve(plain, 1000)
    (session, *_) = make_waiting(parts, 3, 4, in_session=True)
    assert parts.queues.next_waiting(NONE_SKIPPED) is plain, "alike, and the plain one came first"
    parts.queues.serve(plain, 1)
    assert parts.queues.next_waiting(NONE_SKIPPED) is session
    parts.queues.serve(session, 2)
    assert parts.queues.next_waiting(NONE_SKIPPED) is plain, "no debt of a thousand tokens is paid back"


def test_lane_when_it_was_served_more_and_ran_empty_then_coming_back_does_not_wash_that_away() -> None:
    parts = make_parts()
    (session,) = make_waiting(parts, 1, in_session=True)
    (plain,) = make_waiting(parts, 2)
    parts.queues.serve(session, 10)
    parts.queues.run(session)
    session.go(Phase.RUNNING)
    make_waiting(parts, 0, in_session=True)
    assert parts.queues.next_waiting(NONE_SKIPPED) is plain


def test_leave_when_a_turn_waits_or_runs_then_it_is_gone_from_where_it_stood() -> None:
    parts = make_parts()
    first, second = make_waiting(parts, 1, 2)
    parts.queues.run(second)
    second.go(Phase.RUNNING)
    assert (parts.queues.waiting, parts.queues.running) == ((first,), [second])
    parts.queues.leave(first)
    parts.queues.leave(second)
    assert (parts.queues.waiting, parts.queues.running) == ((), [])


# Through the core

CONFIG = CoreConfig(
    page_size=4, pool_pages=41, num_rows=9, context_len=64, vocab_size=100, running_max=1, prefix_cache=False
)
FLOOD = 12


def flooding(rig: CoreRig, name: str, *, of_sessions: bool, prompt_len: int = 4, priority: int = 0) -> Submit:
    """A turn of the flood, in a session of its own or in none."""
    if of_sessions:
        rig.open(name)
    return replace(rig.command(name, [1] * prompt_len, name if of_sessions else None), priority=priority)


@pytest.mark.parametrize("of_sessions", [True, False], ids=["sessions flood", "plain turns flood"])
@pytest.mark.parametrize("priority", [0, 1000])
def test_flood_when_one_kind_keeps_coming_then_a_turn_of_the_other_is_served_next_but_one(
    of_sessions: bool, priority: int
) -> None:
    rig = CoreRig(CONFIG)
    for number in range(FLOOD):
        rig.submit(flooding(rig, f"f{number}", of_sessions=of_sessions, priority=priority))
    rig.step(2)
    lone = rig.submit(flooding(rig, "lone", of_sessions=not of_sessions))
    before = len(rig.admissions())
    for number in range(FLOOD, 2 * FLOOD):
        rig.submit(flooding(rig, f"f{number}", of_sessions=of_sessions, priority=priority))
        rig.step(2)
    rig.run()
    assert rig.admissions()[before:].index(lone) <= 1
    assert len(rig.of(TurnEnded)) == 2 * FLOOD + 1


def test_flood_when_both_kinds_wait_then_each_gets_its_half_of_the_tokens_not_of_the_turns() -> None:
    rig = CoreRig(CONFIG)
    short = {rig.submit(flooding(rig, f"p{number}", of_sessions=False, prompt_len=5)) for number in range(30)}
    long = {rig.submit(flooding(rig, f"s{number}", of_sessions=True, prompt_len=17)) for number in range(30)}
    while len(rig.admissions()) < 20:
        rig.step()
    # A short one computes 6 tokens, a long one 18: three for one.
    num_short = sum(rid in short for rid in rig.admissions())
    num_long = sum(rid in long for rid in rig.admissions())
    assert (num_short, num_long) == (15, 5)


def test_lane_when_its_first_turn_does_not_fit_then_nobody_else_comes_in_before_it() -> None:
    config = replace(CONFIG, running_max=8, pool_pages=9, new_token_ratio=1.0)
    rig = CoreRig(config)
    running = rig.submit(replace(rig.command("running", [1] * 8), max_tokens=8))
    rig.step()
    big = rig.submit(replace(rig.command("big", [2] * 20), max_tokens=4))
    small = rig.submit(rig.command("small", [3]))
    rig.run()
    assert rig.admissions() == [running, big, small]


def test_lane_when_a_session_is_still_coming_back_then_its_next_turn_is_skipped_and_blocks_nobody() -> None:
    rig = CoreRig(replace(CONFIG, running_max=8, in_flight_max=2))
    rig.open("s", streaming=True)
    first = rig.submit(replace(rig.command("a", [1, 2], "s"), max_tokens=2))
    assert rig.plan() is not None
    assert rig.plan() is not None
    rig.answer()
    rig.cancel(first)
    second = rig.submit(rig.command("b", [3], "s"))
    other = rig.submit(rig.command("other", [4]))
    assert rig.plan() is not None
    assert rig.admissions() == [first, other]
    rig.run()
    assert rig.admissions() == [first, other, second]
    assert rig.output(Rid(second)) != []


@pytest.mark.parametrize("draft_tokens", [0, 8])
def test_lanes_when_one_kind_guesses_then_its_guesses_count_as_tokens_of_its_lane(draft_tokens: int) -> None:
    rig = CoreRig(replace(CONFIG, context_len=128), ScriptedModel(100, script=(1, 2)))
    guessing = set()
    for number in range(12):
        command = flooding(rig, f"s{number}", of_sessions=True)
        guessing.add(rig.submit(replace(command, max_tokens=41, draft_tokens=draft_tokens)))
        rig.submit(replace(flooding(rig, f"p{number}", of_sessions=False), max_tokens=41))
    while len(rig.admissions()) < 12:
        rig.step()
    assert len(guessing.intersection(rig.admissions())) == 6
