"""Each finding of the check of one holding is provoked once, and told for nothing else."""

from collections.abc import Callable

import pytest

from engine.core.findings import CheckLevel, findings_of
from engine.core.holding import Holding
from engine.core.holding_checks import check_holding
from engine.core.invariants import check_books
from engine.core.radix_node import Match
from engine.core.request import Request
from engine.core.rows import PageTable
from engine.core.states import States
from tests.kit.broken_books import hybrid_parts, running_parts
from tests.kit.core_parts import CoreParts

Change = Callable[[Holding, PageTable], None]


def messages(parts: CoreParts, kv: Holding) -> list[str]:
    found = findings_of(check_holding(parts.books, "it", kv))
    assert {finding.law for finding in found} <= {"holding"}
    return [finding.message.removeprefix("it: ") for finding in found]


def test_check_when_the_holding_is_right_then_it_finds_nothing() -> None:
    parts, request = hybrid_parts()
    kv = request.kv
    assert (kv.cache_protected_len, len(kv.pages), list(kv.swa)) == (16, 2, [4, 5])
    assert kv.lock is not None
    assert (kv.lock.window_from, kv.lock.has_state) == (2, True)
    assert messages(parts, kv) == []
    assert check_books(parts.books, CheckLevel.FULL).is_clean


def overstate_commit(kv: Holding, table: PageTable) -> None:
    kv.kv_committed_len = 23


def overstate_allocation(kv: Holding, table: PageTable) -> None:
    kv.kv_allocated_len = 25


def understate_protection(kv: Holding, table: PageTable) -> None:
    kv.cache_protected_len = 12


def lengthen_lock(kv: Holding, table: PageTable) -> None:
    assert kv.lock is not None
    kv.lock.num_pages = 5


def misplace_window(kv: Holding, table: PageTable) -> None:
    kv.swa[6] = 9


def turn_windows_round(kv: Holding, table: PageTable) -> None:
    kv.swa = dict(reversed(kv.swa.items()))


def lose_window(kv: Holding, table: PageTable) -> None:
    del kv.swa[5]


def pin_what_is_gone(kv: Holding, table: PageTable) -> None:
    kv.pin_len = 8


def shift_row(kv: Holding, table: PageTable) -> None:
    assert kv.req_pool_idx is not None
    table.write(kv.req_pool_idx, 5, [9])


def shift_own_windows(kv: Holding, table: PageTable) -> None:
    assert kv.req_pool_idx is not None
    table.write_swa(kv.req_pool_idx, 5, [9])


def shift_locked_windows(kv: Holding, table: PageTable) -> None:
    assert kv.req_pool_idx is not None
    table.write_swa(kv.req_pool_idx, 2, [9])


def states_of(kv: Holding) -> States:
    assert kv.states is not None
    return kv.states


def lose_states(kv: Holding, table: PageTable) -> None:
    kv.states = None


def share_slot(kv: Holding, table: PageTable) -> None:
    states = states_of(kv)
    states.kept, states.spare, states.read = {20: 7, 22: 7}, [], 7


def use_padding_slot(kv: Holding, table: PageTable) -> None:
    states_of(kv).spare = [0]


def lose_base(kv: Holding, table: PageTable) -> None:
    states_of(kv).base_len = 12


def lose_checkpoint(kv: Holding, table: PageTable) -> None:
    states_of(kv).checkpoint_len = 20


def run_ahead(kv: Holding, table: PageTable) -> None:
    states_of(kv).kept[23] = 8


def start_from_elsewhere(kv: Holding, table: PageTable) -> None:
    states_of(kv).read = 8


def lose_newest(kv: Holding, table: PageTable) -> None:
    states_of(kv).kept = {21: states_of(kv).kept[22]}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (overstate_commit, "protected, committed, allocated = (16, 23, 22)"),
        (overstate_allocation, "6 pages for 25 tokens"),
        (understate_protection, "locks 4 pages for 12 protected tokens"),
        (lengthen_lock, "locks 4 pages, its lock says 5"),
        (misplace_window, "SWA pages at [4, 5, 6], its own pages are 4 to 6"),
        (turn_windows_round, "SWA pages at [5, 4], its own pages are 4 to 6"),
        (lose_window, "no SWA pages at [5], which token 22 sees or writes"),
        (pin_what_is_gone, "no SWA pages at [0, 1], which token 8 sees or writes"),
        (shift_row, "row 1 does not say what it holds"),
        (shift_own_windows, "row 1 does not say what SWA pages it holds"),
        (shift_locked_windows, "row 1 does not say what SWA pages it holds"),
        (lose_states, "22 tokens and no states"),
        (share_slot, "states in slots [7, 7]"),
        (use_padding_slot, "states in slots [2, 0]"),
        (lose_base, "the state of its last commit, behind 12 tokens, is not kept"),
        (lose_checkpoint, "the state of its checkpoint, behind 20 tokens, is not kept"),
        (run_ahead, "states behind [22, 23] of 22 tokens"),
        (start_from_elsewhere, "starts from state 8, 2 is behind 22"),
        (lose_newest, "starts from state 2, None is behind 22"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_check_when_one_thing_is_wrong_then_it_is_told(change: Change, told: str) -> None:
    parts, request = hybrid_parts()
    change(request.kv, parts.table)
    assert told in messages(parts, request.kv)
    law = {finding.law for finding in check_books(parts.books, CheckLevel.FULL).findings}
    assert "holding" in law


@pytest.mark.parametrize("change", [start_from_elsewhere, lose_newest])
def test_check_when_plans_are_in_flight_then_the_newest_state_is_not_looked_at(change: Change) -> None:
    parts, request = hybrid_parts()
    kv = request.kv
    states_of(kv).plan(24)
    kv.kv_allocated_len = 24
    assert messages(parts, kv) == []
    change(kv, parts.table)
    assert messages(parts, kv) == []


def cut_to_the_lock(parts: CoreParts, request: Request) -> Holding:
    """All that it computed itself is gone: it starts from the tree's state."""
    kv = request.kv
    parts.radix.cut(request.owner, kv, 18)
    assert (kv.kv_committed_len, kv.pages) == (16, [])
    assert messages(parts, kv) == []
    return kv


def test_check_when_it_starts_from_a_state_of_the_tree_without_a_right_to_it_then_it_is_told() -> None:
    parts, request = hybrid_parts()
    kv = cut_to_the_lock(parts, request)
    assert kv.lock is not None
    parts.tree.leave_state(kv.lock)
    assert messages(parts, kv) == ["starts from a state of the cache that it has no right to"]


def test_check_when_the_tree_has_no_state_there_then_it_is_told() -> None:
    parts, request = hybrid_parts()
    kv = cut_to_the_lock(parts, request)
    assert kv.lock is not None
    kv.lock.node.state = states_of(kv).read = 0
    assert messages(parts, kv) == ["starts from a state of the cache that it has no right to"]


def test_check_when_it_starts_from_another_state_than_its_paths_then_it_is_told() -> None:
    parts, request = hybrid_parts()
    kv = cut_to_the_lock(parts, request)
    states_of(kv).read = 0
    assert messages(parts, kv) == ["starts from state 0, 3 is behind 16"]


def test_check_when_the_right_to_windows_was_left_too_early_then_it_is_told() -> None:
    parts, request = hybrid_parts()
    kv = cut_to_the_lock(parts, request)
    assert kv.lock is not None
    parts.tree.leave_window(kv.lock, kv.lock.num_pages)
    assert messages(parts, kv) == ["no SWA pages at [2, 3], which token 16 sees or writes"]


def have_windows(kv: Holding, table: PageTable) -> None:
    kv.swa = {2: 9}


def lock_windows(kv: Holding, table: PageTable) -> None:
    assert kv.lock is not None
    kv.lock.window_from = 0


def have_states(kv: Holding, table: PageTable) -> None:
    kv.states = States()


def lock_state(kv: Holding, table: PageTable) -> None:
    assert kv.lock is not None
    kv.lock.has_state = True


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (have_windows, "windows in a model without"),
        (lock_windows, "windows in a model without"),
        (have_states, "states in a model without"),
        (lock_state, "states in a model without"),
    ],
)
def test_check_when_a_plain_model_has_more_than_pages_then_it_is_told(change: Change, told: str) -> None:
    parts, request = running_parts()
    assert messages(parts, request.kv) == []
    change(request.kv, parts.table)
    assert messages(parts, request.kv) == [told]


def test_check_when_the_hands_are_empty_then_there_is_nothing_to_find() -> None:
    parts, _ = hybrid_parts()
    assert messages(parts, Holding()) == []
    assert messages(parts, Holding(states=States())) == []


def test_hybrid_parts_when_probed_then_another_finds_what_is_the_trees() -> None:
    """The rig of these tests is what a core would make."""
    parts, _ = hybrid_parts()
    stranger = parts.request(2, list(range(22)))
    match = parts.slots.probe(stranger).match
    assert isinstance(match, Match)
    assert match.num_pages == 4
