"""The radix tree of models with windows and states: locks and gifts, and what they pin.

Pages are of 4 tokens. With a window of 6 the token behind n pages sees the last two of them.
"""

import pytest

from engine.core.errors import InvariantViolation
from engine.core.events import KvMoved, Protected, Unprotected
from engine.core.ids import pack_ids
from engine.core.ownership import Move, PoolKind
from engine.core.radix_node import Pinned
from tests.kit.hybrid_tree import HybridTree

FULL, SWA, MAMBA = PoolKind.FULL, PoolKind.SWA, PoolKind.MAMBA


def first(num_pages: int) -> range:
    """Ids of so many pages, of one sequence."""
    return range(4 * num_pages)


def other(num_pages: int, start: int = 100) -> range:
    return range(start, start + 4 * num_pages)


# Locks


def test_lock_when_its_window_begins_inside_a_node_then_the_node_is_split_there() -> None:
    hybrid = HybridTree()
    donated = hybrid.donate(first(5))
    assert donated.lock is not None
    assert hybrid.shape() == [(3, 3, False), (2, 2, False)]
    assert (donated.lock.num_pages, donated.lock.window_from) == (5, 3)
    assert hybrid.protected() == (5, 2)
    assert [place for place, _ in donated.lock.swa_places()] == [3, 4]
    assert [page for _, page in donated.lock.swa_places()] == [p for n in list(hybrid.tree.nodes())[1:] for p in n.swa]


def test_lock_when_match_and_window_both_end_inside_nodes_then_only_the_window_is_protected_of_the_swa_pool() -> None:
    hybrid = HybridTree()
    hybrid.insert(first(5))
    lock = hybrid.lock(first(4))
    assert hybrid.shape() == [(2, 2, False), (1, 1, False), (1, 1, False), (1, 1, False)]
    assert (lock.num_pages, lock.window_from) == (4, 2)
    assert hybrid.protected() == (4, 2)
    assert [node.swa_uses.locks for node in hybrid.tree.nodes()] == [0, 1, 1, 0]
    assert [node.lock_count for node in hybrid.tree.nodes()] == [1, 1, 1, 0]


def test_lock_when_the_path_is_shorter_than_the_window_then_all_of_it_is_locked() -> None:
    hybrid = HybridTree(window=100)
    hybrid.insert(first(3))
    assert hybrid.lock(first(3)).window_from == 0
    assert hybrid.shape() == [(3, 3, False)]
    assert hybrid.protected() == (3, 3)


def test_lock_when_the_window_is_one_token_then_none_of_the_windows_are_locked() -> None:
    hybrid = HybridTree(window=1)
    hybrid.insert(first(3))
    lock = hybrid.lock(first(3))
    assert (lock.window_from, lock.swa_places()) == (3, [])
    assert hybrid.protected() == (3, 0)


def test_lock_when_there_are_states_then_only_that_at_its_end_is_locked() -> None:
    hybrid = HybridTree(window=None, has_states=True)
    hybrid.insert(first(2))
    hybrid.insert(first(4))
    assert hybrid.shape() == [(2, 0, True), (2, 0, True)]
    lock = hybrid.lock(first(4))
    assert lock.has_state
    assert (lock.window_from, hybrid.protected()) == (None, (4, 1))
    assert [node.state_uses.locks for node in hybrid.tree.nodes()] == [0, 1]


def test_lock_when_two_holders_need_the_same_windows_then_they_are_protected_until_both_gave_them_back() -> None:
    hybrid = HybridTree()
    hybrid.insert(first(5))
    whole, part = hybrid.lock(first(5)), hybrid.lock(first(4))
    assert hybrid.protected() == (5, 3), "of pages 2 and 3, and 3 and 4"
    hybrid.tree.unlock(whole, 2)
    assert hybrid.protected() == (4, 2)
    hybrid.tree.unlock(part, 3)
    assert hybrid.protected() == (0, 0)


def test_leave_window_when_asked_then_windows_are_free_and_the_path_stays_locked() -> None:
    hybrid = HybridTree(has_states=True)
    hybrid.insert(first(5))
    lock = hybrid.lock(first(5))
    hybrid.tree.leave_window(lock, lock.num_pages)
    assert (lock.window_from, hybrid.protected()) == (None, (5, 0, 1))
    hybrid.tree.leave_window(lock, lock.num_pages)
    assert hybrid.protected() == (5, 0, 1)
    hybrid.tree.leave_state(lock)
    hybrid.tree.leave_state(lock)
    assert (lock.has_state, hybrid.protected()) == (False, (5, 0, 0))
    hybrid.tree.unlock(lock, 2)
    assert hybrid.protected() == (0, 0, 0)


def test_leave_window_when_it_is_left_then_it_can_be_evicted_though_the_path_is_locked() -> None:
    hybrid = HybridTree()
    hybrid.insert(first(5))
    lock = hybrid.lock(first(5))
    assert hybrid.tree.evict(9, SWA) == 3
    assert hybrid.tree.evict(9, SWA) == 0
    hybrid.tree.leave_window(lock, lock.num_pages)
    assert hybrid.tree.evict(9, SWA) == 2
    assert hybrid.shape() == [(3, 0, False), (2, 0, False)]
    assert hybrid.cached() == (5, 0)
    assert hybrid.hit(first(5)) == 0


def test_set_idle_when_a_holder_gives_way_then_its_path_window_and_state_count_until_another_has_them() -> None:
    hybrid = HybridTree(has_states=True)
    hybrid.insert(first(5))
    lock = hybrid.lock(first(5))
    assert hybrid.idle() == (0, 0, 0)
    hybrid.tree.set_idle(lock, True)
    assert hybrid.idle() == (5, 2, 1)
    hybrid.tree.set_idle(lock, True)
    assert hybrid.idle() == (5, 2, 1)
    other_lock = hybrid.lock(first(5))
    assert hybrid.idle() == (0, 0, 0)
    hybrid.tree.unlock(other_lock, 2)
    hybrid.tree.set_idle(lock, False)
    assert (hybrid.idle(), hybrid.protected()) == ((0, 0, 0), (5, 2, 1))


def test_leave_window_when_the_holder_is_idle_then_no_idle_window_is_left_behind() -> None:
    hybrid = HybridTree(has_states=True)
    hybrid.insert(first(5))
    lock = hybrid.lock(first(5))
    hybrid.tree.set_idle(lock, True)
    hybrid.tree.leave_window(lock, lock.num_pages)
    assert hybrid.idle() == (5, 0, 1)
    hybrid.tree.leave_state(lock)
    assert hybrid.idle() == (5, 0, 0)
    hybrid.tree.unlock(lock, 2)
    assert hybrid.idle() == hybrid.protected() == (0, 0, 0)


def test_shorten_when_a_lock_is_cut_then_the_window_of_its_new_end_is_locked_in_its_place() -> None:
    hybrid = HybridTree()
    hybrid.insert(first(6))
    lock = hybrid.lock(first(6))
    match = hybrid.tree.probe_path(lock, 4)
    assert match is not None
    shorter = hybrid.tree.shorten(lock, match, 7)
    assert (lock.is_live, shorter.num_pages, shorter.window_from) == (False, 4, 2)
    assert hybrid.protected() == (4, 2)
    assert [place for place, _ in shorter.swa_places()] == [2, 3]


def test_shorten_when_the_old_lock_was_given_back_then_it_is_a_violation() -> None:
    hybrid = HybridTree()
    hybrid.insert(first(2))
    lock, match = hybrid.lock(first(2)), hybrid.match(first(1))
    hybrid.tree.unlock(lock, 1)
    with pytest.raises(InvariantViolation, match="given back before"):
        hybrid.tree.shorten(lock, match, 1)


@pytest.mark.parametrize(("num_pages", "found"), [(6, 6), (5, 0), (4, 0), (2, 0), (0, 0)])
def test_probe_path_when_windows_before_its_own_are_gone_then_only_its_end_is_usable(
    num_pages: int, found: int
) -> None:
    hybrid = HybridTree()
    hybrid.insert(first(6), windows_from=4)
    match = hybrid.tree.probe_path(hybrid.lock(first(6)), num_pages)
    assert (match.num_pages if match is not None else 0) == found


# Gifts


def test_donate_when_the_first_windows_were_left_behind_then_a_tombstone_and_a_live_node_are_attached() -> None:
    hybrid = HybridTree()
    hybrid.insert(first(5), windows_from=3)
    assert hybrid.shape() == [(3, 0, False), (2, 2, False)]
    assert [hybrid.hit(first(num_pages)) for num_pages in range(1, 6)] == [0, 0, 0, 0, 20]
    assert hybrid.cached() == (5, 2)


def test_donate_when_the_window_of_the_whole_key_is_not_there_then_it_is_an_error() -> None:
    with pytest.raises(AssertionError, match="locked as a window, has no SWA pages"):
        HybridTree().donate(first(5), windows_from=4)


def test_donate_when_the_tree_lost_the_windows_then_it_takes_them_up_again() -> None:
    hybrid = HybridTree()
    hybrid.insert(first(5))
    lock = hybrid.lock(first(5))
    hybrid.tree.leave_window(lock, lock.num_pages)
    while hybrid.tree.evict(9, SWA):
        pass
    assert (hybrid.cached(), hybrid.hit(first(5))) == ((5, 0), 0)
    donated = hybrid.donate(first(5))
    assert (len(donated.duplicates), donated.swa_duplicates) == (5, [])
    assert hybrid.cached() == (5, 5)
    assert [hybrid.hit(first(num_pages)) for num_pages in range(1, 6)] == [4, 8, 12, 16, 20]


def test_donate_when_it_has_only_the_last_windows_of_a_tombstone_then_that_is_split_and_revived_from_there() -> None:
    hybrid = HybridTree()
    hybrid.insert(first(5))
    lock = hybrid.lock(first(5))
    hybrid.tree.leave_window(lock, lock.num_pages)
    while hybrid.tree.evict(9, SWA):
        pass
    hybrid.donate(first(5), windows_from=2)
    assert hybrid.shape() == [(2, 0, False), (1, 1, False), (2, 2, False)]
    assert [hybrid.hit(first(num_pages)) for num_pages in range(1, 6)] == [0, 0, 0, 16, 20]


def test_donate_when_the_tree_has_all_then_everything_is_a_duplicate_and_stays_its_owners() -> None:
    hybrid = HybridTree(has_states=True)
    hybrid.insert(first(5))
    before = hybrid.cached()
    donated = hybrid.donate(first(5))
    assert (len(donated.duplicates), len(donated.swa_duplicates), donated.is_state_taken) == (5, 5, False)
    assert hybrid.cached() == before == (5, 5, 1)


def test_donate_when_the_key_ends_inside_a_node_then_the_state_is_that_of_the_upper_part() -> None:
    hybrid = HybridTree(window=None, has_states=True)
    hybrid.insert(first(5))
    donated = hybrid.donate(first(3))
    assert donated.is_state_taken
    assert hybrid.shape() == [(3, 0, True), (2, 0, True)]
    assert [hybrid.hit(first(num_pages)) for num_pages in range(1, 6)] == [0, 0, 12, 12, 20]


def test_donate_when_it_goes_on_from_a_lock_then_places_count_from_the_begin_of_the_path() -> None:
    hybrid = HybridTree(has_states=True)
    donated = hybrid.donate(first(3))
    longer = hybrid.donate(first(6), windows_from=4, lock=donated.lock)
    assert longer.lock is not None
    assert hybrid.shape() == [(1, 1, False), (2, 2, True), (1, 0, False), (2, 2, True)]
    assert (longer.lock.num_pages, longer.lock.window_from, hybrid.protected()) == (6, 4, (6, 2, 1))


def test_donate_when_it_moves_then_what_each_pool_got_is_told() -> None:
    hybrid = HybridTree(has_states=True)
    hybrid.parts.events()
    donated = hybrid.donate(first(3), windows_from=1)
    told = hybrid.parts.events(KvMoved, Protected, Unprotected)
    moved = {(e.pool, e.pages) for e in told if isinstance(e, KvMoved) and e.move is Move.DONATE}
    nodes = list(hybrid.tree.nodes())
    assert moved == {
        (FULL, tuple(page for node in nodes for page in node.pages)),
        (SWA, tuple(page for node in nodes for page in node.swa)),
        (MAMBA, (nodes[-1].state,)),
    }
    protected = {(e.pool, page) for e in told if isinstance(e, Protected) for page in e.pages}
    assert protected == {
        *((FULL, page) for node in nodes for page in node.pages),
        *((SWA, page) for page in nodes[-1].swa),
        (MAMBA, nodes[-1].state),
    }
    assert donated.lock is not None
    hybrid.tree.unlock(donated.lock, 1)
    told = hybrid.parts.events(Unprotected)
    assert {(e.pool, page) for e in told if isinstance(e, Unprotected) for page in e.pages} == protected


# What would be pinned


def test_pinned_by_when_nobody_has_the_path_then_all_of_it_is_and_of_windows_and_states_only_the_last() -> None:
    hybrid = HybridTree(has_states=True)
    hybrid.insert(first(5))
    assert hybrid.tree.pinned_by(hybrid.match(first(5))) == Pinned(5, 2, 1)


def test_pinned_by_when_the_match_ends_inside_a_node_then_only_its_part_is() -> None:
    hybrid = HybridTree()
    hybrid.insert(first(8))
    match = hybrid.match(first(4))
    assert (match.used_pages, hybrid.tree.pinned_by(match)) == (4, Pinned(4, 2, 0))


def test_pinned_by_when_others_have_a_part_of_it_then_only_the_rest_counts() -> None:
    hybrid = HybridTree(has_states=True)
    hybrid.insert(first(4))
    hybrid.insert(first(5))
    hybrid.lock(first(4))
    assert hybrid.tree.pinned_by(hybrid.match(first(5))) == Pinned(1, 1, 1), "pages 2 and 3 are locked, 3 and 4 due"
    assert hybrid.tree.pinned_by(hybrid.match(first(4))) == Pinned(0, 0, 0)


def test_pinned_by_when_a_holder_left_window_and_state_then_these_are_pinned_though_the_path_is_locked() -> None:
    hybrid = HybridTree(has_states=True)
    hybrid.insert(first(5))
    lock = hybrid.lock(first(5))
    hybrid.tree.leave_window(lock, lock.num_pages)
    hybrid.tree.leave_state(lock)
    assert hybrid.tree.pinned_by(hybrid.match(first(5))) == Pinned(0, 2, 1)


def test_pinned_by_when_the_holder_is_idle_then_all_of_it_is_pinned() -> None:
    hybrid = HybridTree(has_states=True)
    hybrid.insert(first(5))
    lock = hybrid.lock(first(5))
    hybrid.tree.set_idle(lock, True)
    assert hybrid.tree.pinned_by(hybrid.match(first(5))) == Pinned(5, 2, 1)
    assert hybrid.tree.pinned_by_lock(lock) == Pinned(5, 2, 1)


def test_pinned_by_lock_when_it_left_its_window_and_state_then_only_pages_are() -> None:
    hybrid = HybridTree(has_states=True)
    hybrid.insert(first(5))
    lock = hybrid.lock(first(5))
    hybrid.tree.leave_window(lock, lock.num_pages)
    hybrid.tree.leave_state(lock)
    hybrid.tree.set_idle(lock, True)
    assert hybrid.tree.pinned_by_lock(lock) == Pinned(5, 0, 0)


def test_pinned_by_lock_when_another_runs_on_a_part_then_that_is_no_longer_reclaimable_anyway() -> None:
    hybrid = HybridTree()
    hybrid.insert(first(5))
    lock = hybrid.lock(first(5))
    hybrid.tree.set_idle(lock, True)
    hybrid.lock(first(4))
    assert hybrid.tree.pinned_by_lock(lock) == Pinned(1, 1, 0)


def test_probe_when_asked_then_no_window_is_split_off() -> None:
    hybrid = HybridTree()
    hybrid.insert(first(5))
    before = hybrid.shape()
    match = hybrid.tree.probe("", pack_ids(first(4)))
    assert match is not None
    assert (match.num_pages, hybrid.shape()) == (4, before)
