"""States of one holder: which slot a step starts from and writes, and which are kept."""

from collections import deque

import pytest

from engine.core.states import STATES_A_TURN, WORKING, States


def empty_slots(num_slots: int) -> States:
    """Slots 1 to `num_slots`, none with a state in it."""
    return States(spare=list(range(num_slots, 0, -1)))


def after_commit() -> States:
    """The last commit's state behind 8 tokens in slot 1, and slots 2 and 3 to work with."""
    return States(read=1, kept={8: 1}, spare=[3, 2], base_len=8)


def with_checkpoint() -> States:
    """A checkpoint behind 4 tokens in slot 1, the newest state behind 9 in slot 3, slot 2 spare."""
    states = empty_slots(3)
    for stop_len in (4, 8, 9):
        states.plan(stop_len)
        states.answer()
        if stop_len == 4:
            states.keep_checkpoint(4)
    return states


# Steps


def test_plan_when_steps_are_answered_one_by_one_then_two_slots_alternate() -> None:
    states = empty_slots(2)
    told = []
    for stop_len in (4, 8, 12, 13):
        told.append(states.plan(stop_len))
        assert states.answer() == stop_len
    assert told == [(0, 1), (1, 2), (2, 1), (1, 2)]
    assert (states.kept, states.spare, states.read) == ({13: 2}, [1], 2)


def test_plan_when_two_are_in_flight_then_two_slots_alternate_too() -> None:
    states = empty_slots(2)
    told, answered = [states.plan(4)], []
    for stop_len in (8, 12, 13, 14):
        told.append(states.plan(stop_len))
        answered.append(states.answer())
    assert told == [(0, 1), (1, 2), (2, 1), (1, 2), (2, 1)]
    assert answered == [4, 8, 12, 13]
    assert (states.kept, list(states.writing)) == ({13: 2}, [(14, 1)])


def test_answer_when_a_plan_was_in_flight_then_its_state_is_kept_only_from_now_on() -> None:
    states = empty_slots(2)
    states.plan(4)
    assert (states.kept, list(states.writing), states.num_slots) == ({}, [(4, 1)], 2)
    states.answer()
    assert (states.kept, list(states.writing), states.num_slots) == ({4: 1}, [], 2)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_plan_when_there_is_a_last_commit_then_its_state_stays_whatever_is_computed(in_flight: int) -> None:
    states = after_commit()
    told = []
    for stop_len in range(10, 20):
        told.append(states.plan(stop_len))
        if len(states.writing) == in_flight:
            states.answer()
    assert told[:4] == [(1, 2), (2, 3), (3, 2), (2, 3)]
    assert states.kept[8] == 1
    assert sorted(states.slots()) == [1, 2, 3]


def test_plan_when_it_has_no_slots_then_it_is_an_error() -> None:
    with pytest.raises(AssertionError, match="no slot to write to"):
        States().plan(4)


def test_plan_when_its_only_slot_is_the_one_that_it_starts_from_then_it_is_an_error_and_nothing_is_lost() -> None:
    states = empty_slots(1)
    states.plan(4)
    states.answer()
    with pytest.raises(AssertionError, match="would start from what it writes"):
        states.plan(8)
    assert states.kept == {4: 1}


def test_plan_when_only_the_commit_and_the_checkpoint_are_left_then_neither_is_written() -> None:
    states = States(read=2, kept={4: 1, 8: 2}, base_len=4, checkpoint_len=8)
    with pytest.raises(AssertionError, match="no slot to write to"):
        states.plan(9)


# The checkpoint


def test_keep_checkpoint_when_steps_go_on_then_its_state_stays_and_the_other_two_alternate() -> None:
    states = with_checkpoint()
    assert (states.kept, states.spare, states.checkpoint_len) == ({4: 1, 9: 3}, [2], 4)
    assert states.plan(10) == (3, 2)


def test_keep_checkpoint_when_there_is_an_older_one_then_that_slot_is_spare() -> None:
    states = with_checkpoint()
    states.keep_checkpoint(9)
    assert (states.kept, states.spare, states.checkpoint_len) == ({9: 3}, [2, 1], 9)


@pytest.mark.parametrize("length", [4, 9])
def test_keep_checkpoint_when_the_older_one_is_needed_then_its_slot_is_not_spare(length: int) -> None:
    """Because it is the same one, or the last commit's."""
    states = with_checkpoint()
    states.base_len = 4 if length == 9 else None
    states.keep_checkpoint(length)
    assert (states.kept, states.spare, states.checkpoint_len) == ({4: 1, 9: 3}, [2], length)


def test_give_checkpoint_when_asked_then_the_slot_is_anothers_and_the_next_step_still_starts_from_it() -> None:
    states = empty_slots(3)
    states.plan(4)
    states.answer()
    states.keep_checkpoint(4)
    assert states.give_checkpoint() == 1
    assert (states.kept, states.checkpoint_len, states.num_slots) == ({}, None, 2)
    assert states.plan(5) == (1, 2)


@pytest.mark.parametrize(("base_len", "left"), [(9, 9), (4, None), (None, None)])
def test_give_checkpoint_when_it_is_the_last_commits_state_then_that_is_another_s_from_now_on(
    base_len: int | None, left: int | None
) -> None:
    states = with_checkpoint()
    states.base_len = base_len
    states.give_checkpoint()
    assert states.base_len == left


def test_give_checkpoint_when_there_is_none_then_it_is_an_error() -> None:
    with pytest.raises(AssertionError, match="no checkpoint to give"):
        after_commit().give_checkpoint()


def test_forget_checkpoint_when_the_next_step_is_answered_then_its_slot_is_spare() -> None:
    states = with_checkpoint()
    states.forget_checkpoint()
    assert states.kept == {4: 1, 9: 3}
    states.plan(10)
    states.answer()
    assert (states.kept, sorted(states.spare)) == ({10: 2}, [1, 3])


@pytest.mark.parametrize(("num_slots", "base_len", "can_keep"), [(2, None, False), (3, None, True), (3, 4, False)])
def test_can_keep_checkpoint_when_asked_then_two_slots_to_work_with_are_left_beside_it_and_the_last_commits(
    num_slots: int, base_len: int | None, *, can_keep: bool
) -> None:
    states = empty_slots(num_slots)
    states.plan(4)
    states.answer()
    states.base_len = base_len
    assert states.can_keep_checkpoint() is can_keep


@pytest.mark.parametrize(
    ("num_slots", "base_len", "missing"),
    [(0, None, 3), (2, None, 1), (3, None, 0), (1, 8, 3), (3, 8, 1), (4, 8, 0), (9, 8, 0)],
)
def test_num_missing_when_asked_then_two_to_work_with_a_checkpoint_and_the_last_commits_are_due(
    num_slots: int, base_len: int | None, missing: int
) -> None:
    states = empty_slots(num_slots)
    states.base_len = base_len
    assert states.num_missing == missing


def test_states_a_turn_when_a_turn_of_a_session_runs_then_it_has_all_that_it_may_miss_and_the_caches() -> None:
    """Beside its own base and checkpoint of the last commit it works with two, and locks one of the cache."""
    states = States(kept={4: 1, 8: 2}, base_len=8, checkpoint_len=4)
    cache = 1
    assert states.num_slots + states.num_missing + cache == WORKING + 2 + cache == STATES_A_TURN


# Cuts


def full_states() -> States:
    """Checkpoint behind 4 in slot 1, the last commit behind 6 in 2, an answered step behind 9 in 3, 10 in flight in
    slot 4, and 5 spare."""
    return States(read=4, kept={4: 1, 6: 2, 9: 3}, spare=[5], writing=deque([(10, 4)]), base_len=6, checkpoint_len=4)


@pytest.mark.parametrize(
    ("length", "kept", "read", "over"),
    [
        (9, {4: 1, 9: 3}, 3, [2, 5, 4]),
        (6, {4: 1, 6: 2}, 2, [3, 5, 4]),
        (4, {4: 1}, 1, [2, 3, 5, 4]),
        (5, {4: 1}, 0, [2, 3, 5, 4]),
        (3, {}, 0, [1, 2, 3, 5, 4]),
        (0, {}, 0, [1, 2, 3, 5, 4]),
        (10, {4: 1}, 0, [2, 3, 5, 4]),
    ],
)
def test_cut_when_made_at_a_length_then_its_state_and_the_checkpoint_before_it_are_left_and_the_others_returned(
    length: int, kept: dict[int, int], read: int, over: list[int]
) -> None:
    states = full_states()
    assert states.cut(length) == over
    assert (states.kept, states.read) == (kept, read)
    assert (states.spare, list(states.writing)) == ([], [])
    assert states.checkpoint_len == (4 if 4 in kept else None)
    assert states.base_len == (length if length in kept else None)
    assert sorted([*states.slots(), *over]) == [1, 2, 3, 4, 5]
