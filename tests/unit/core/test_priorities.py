"""Ranks: how far a priority reaches, and that nobody is overtaken without end."""

from dataclasses import replace

import pytest

from engine.core.commands import Open
from engine.core.config import CoreConfig
from engine.core.errors import RefusalReason
from engine.core.ids import Rid, SessionId
from engine.core.priorities import PRIORITY_MAX, check_priority, rank_of
from tests.kit.core_parts import CoreRig

CONFIG = CoreConfig(
    page_size=4, pool_pages=33, num_rows=9, context_len=64, vocab_size=100, running_max=1, priority_arrivals=3
)


@pytest.mark.parametrize("arrivals", [1, 3, 64])
@pytest.mark.parametrize("levels", [1, 2, 5])
def test_rank_when_others_of_higher_priority_keep_coming_then_so_many_overtake_and_no_more(
    arrivals: int, levels: int
) -> None:
    own = rank_of(100, 0, arrivals)
    later = [rank_of(arrival, levels, arrivals) for arrival in range(101, 1000)]
    overtaking = sum(rank < own for rank in later)
    assert levels * arrivals - 1 == overtaking


def test_rank_when_priorities_are_alike_then_it_is_the_order_of_arrival_whatever_the_priority() -> None:
    for priority in (-PRIORITY_MAX, -1, 0, 1, PRIORITY_MAX):
        ranks = [rank_of(arrival, priority, 64) for arrival in range(1, 200)]
        assert ranks == sorted(ranks)


@pytest.mark.parametrize("priority", [-PRIORITY_MAX - 1, PRIORITY_MAX + 1, 2**40])
def test_priority_when_out_of_range_then_open_and_submit_refuse_it(priority: int) -> None:
    rig = CoreRig(CONFIG)
    for refusal in (
        rig.refusal(Open(SessionId("s"), streaming=True, priority=priority)),
        rig.refusal(replace(rig.command("t", [1]), priority=priority)),
    ):
        assert (refusal.reason, refusal.field) == (RefusalReason.PRIORITY_INVALID, "priority")
        assert (refusal.value, refusal.limit) == (priority, PRIORITY_MAX)


def test_priority_when_at_its_limits_then_it_is_taken() -> None:
    check_priority(PRIORITY_MAX)
    check_priority(-PRIORITY_MAX)


def flood(rig: CoreRig, old_priority: int, priority: int) -> list[Rid]:
    """One turn, then ten of `priority`; one at a time runs. Returns the order in which they came in."""
    rig.submit(replace(rig.command("old", [1]), priority=old_priority))
    for number in range(10):
        rig.submit(replace(rig.command(f"t{number}", [number + 2]), priority=priority))
    rig.run()
    return rig.admissions()


@pytest.mark.parametrize(
    ("old_priority", "priority", "overtaking"),
    [(0, 0, 0), (0, 1, 2), (0, 2, 5), (-1, 1, 5), (5, 6, 2), (0, 1000, 10), (1, 0, 0), (0, -1000, 0)],
)
def test_turns_when_they_differ_in_priority_then_as_many_overtake_as_their_levels_allow(
    old_priority: int, priority: int, overtaking: int
) -> None:
    order = flood(CoreRig(CONFIG), old_priority, priority)
    assert order.index(Rid(1)) == overtaking
    assert [rid for rid in order if rid != 1] == list(range(2, 12)), "of one priority the earlier goes first"


def test_priority_when_a_turn_names_none_then_it_has_its_sessions_and_its_own_goes_before_that() -> None:
    rig = CoreRig(CONFIG)
    rig.open("high", priority=1)
    rig.open("low", priority=-1)
    rig.submit(rig.command("blocks", [1], "low"))
    assert rig.plan() is not None
    names = {
        rig.submit(rig.command("low", [2], "low")): "low",
        rig.submit(rig.command("high", [3], "high")): "high",
        rig.submit(replace(rig.command("zero", [4], "high"), priority=0)): "zero",
        rig.submit(replace(rig.command("raised", [5], "low"), priority=2)): "raised",
    }
    rig.answer()
    rig.run()
    assert [names[rid] for rid in rig.admissions()[1:]] == ["raised", "high", "zero", "low"]


def test_retraction_when_room_is_short_then_the_turn_of_highest_rank_gives_way_be_it_the_oldest() -> None:
    config = replace(CONFIG, running_max=3, pool_pages=8, new_token_ratio=0.0)
    rig = CoreRig(config)
    for turn, priority in (("low", -5), ("high", 5)):
        rig.submit(replace(rig.command(turn, [priority + 10] * 9), priority=priority, max_tokens=12))
    rig.run()
    assert rig.ending(Rid(1)).usage.retractions > 0
    assert rig.ending(Rid(2)).usage.retractions == 0
    assert [len(rig.output(rid)) for rid in (Rid(1), Rid(2))] == [12, 12]
