"""The radix tree of models with windows and states gives up units of each pool, and what is useless without them.

Pages are of 4 tokens. With a window of 6 the token behind n pages sees the last two of them.
"""

from engine.core.ownership import PoolKind
from tests.kit.hybrid_tree import HybridTree

SWA, MAMBA = PoolKind.SWA, PoolKind.MAMBA


def first(num_pages: int) -> range:
    """Ids of so many pages, of one sequence."""
    return range(4 * num_pages)


def other(num_pages: int, start: int = 100) -> range:
    return range(start, start + 4 * num_pages)


def test_evict_when_a_window_is_wanted_then_a_whole_node_gives_its_windows_least_recently_used_first() -> None:
    hybrid = HybridTree()
    hybrid.insert(first(5), last_use=20)
    hybrid.insert(other(2), last_use=10)
    hybrid.insert([*first(5), *other(1)], last_use=30)
    assert hybrid.tree.lru_use(SWA) == 10
    assert hybrid.tree.evict(1, SWA) == 2
    assert hybrid.hit(other(2)) == 0
    assert hybrid.hit(first(5)) == 20


def test_evict_when_a_leaf_lost_its_windows_then_it_goes_with_all_that_no_prefix_can_end_in() -> None:
    """The tombstone above it is worth nothing without it."""
    hybrid = HybridTree()
    hybrid.insert(first(5), windows_from=3)
    assert hybrid.cached() == (5, 2)
    assert hybrid.tree.evict(1, SWA) == 2
    assert hybrid.cached() == (0, 0)
    assert list(hybrid.tree.nodes()) == list(hybrid.tree.roots()) == []


def test_evict_when_a_node_with_children_lost_its_windows_then_its_pages_stay() -> None:
    hybrid = HybridTree()
    hybrid.insert(first(3), last_use=1)
    hybrid.insert(first(6), last_use=2)
    hybrid.insert([*first(3), *other(3)], last_use=3)
    locks = [hybrid.lock(first(6)), hybrid.lock([*first(3), *other(3)])]
    while hybrid.tree.evict(9, SWA):
        pass
    assert hybrid.cached() == (9, 4), "two windows of two pages are locked"
    assert [hybrid.hit(ids) for ids in (first(3), first(6), [*first(3), *other(3)])] == [0, 24, 24]
    for lock in locks:
        hybrid.tree.unlock(lock, 4)
    assert hybrid.tree.evict(9, SWA) == 2
    assert hybrid.cached() == (6, 2)


def test_evict_when_pages_are_wanted_of_a_hybrid_then_a_whole_leaf_goes_with_its_windows_and_state() -> None:
    hybrid = HybridTree(has_states=True)
    hybrid.insert(first(2), last_use=1)
    hybrid.insert(first(5), last_use=2)
    assert hybrid.shape() == [(2, 2, True), (1, 1, False), (2, 2, True)]
    assert hybrid.tree.evict(1) == 2
    assert hybrid.shape() == [(2, 2, True)], "the node between has no state: no prefix ends there any more"
    assert hybrid.cached() == (2, 2, 1)


def test_evict_when_a_state_is_wanted_then_the_leaf_that_lost_it_goes_up_to_the_next_state() -> None:
    hybrid = HybridTree(window=None, has_states=True)
    hybrid.insert(first(2), last_use=3)
    hybrid.insert(first(5), last_use=2)
    assert hybrid.tree.evict(1, MAMBA) == 1
    assert hybrid.cached() == (2, 1)
    assert hybrid.hit(first(5)) == 8


def test_evict_when_the_state_of_an_inner_node_goes_then_its_pages_stay_for_those_below() -> None:
    hybrid = HybridTree(window=None, has_states=True)
    hybrid.insert(first(2), last_use=1)
    lock = hybrid.donate(first(5)).lock
    assert lock is not None
    assert hybrid.tree.evict(1, MAMBA) == 1
    assert hybrid.tree.evict(1, MAMBA) == 0
    assert hybrid.cached() == (5, 1)
    assert [hybrid.hit(first(num_pages)) for num_pages in (2, 5)] == [0, 20]


def test_evict_when_a_leaf_becomes_useless_while_it_is_locked_then_it_goes_with_its_lock() -> None:
    hybrid = HybridTree()
    hybrid.insert(first(2))
    lock = hybrid.lock(first(2))
    hybrid.tree.leave_window(lock, lock.num_pages)
    assert hybrid.tree.evict(1, SWA) == 2
    assert hybrid.cached() == (2, 0)
    hybrid.tree.unlock(lock, 2)
    assert hybrid.cached() == (0, 0)
    assert hybrid.tree.evict(1) == 0


def test_evict_when_an_unlocked_node_was_used_again_then_its_windows_move_back_in_line() -> None:
    hybrid = HybridTree()
    hybrid.insert(first(6), last_use=1)
    hybrid.insert(other(2), last_use=2)
    hybrid.tree.unlock(hybrid.lock(first(6)), 3)
    assert hybrid.tree.evict(1, SWA) == 2
    assert (hybrid.hit(other(2)), hybrid.hit(first(6))) == (0, 24)


def test_evict_when_a_turn_runs_then_what_it_stored_is_not_older_than_what_others_left() -> None:
    hybrid = HybridTree(None, has_states=True)
    for _ in range(3):
        hybrid.insert(other(2), last_use=hybrid.tree.next_use())
    lock = hybrid.donate(first(2)).lock
    assert lock is not None
    hybrid.tree.leave_state(lock)
    assert hybrid.tree.evict(1, MAMBA) == 1
    assert (hybrid.hit(other(2)), hybrid.hit(first(2))) == (0, 8)


def test_evict_when_windows_of_one_use_lie_behind_each_other_then_those_in_front_go_first() -> None:
    """What is cut off for a lock is what no prefix can end in."""
    hybrid = HybridTree()
    hybrid.insert(first(6), last_use=1)
    assert hybrid.shape() == [(4, 4, False), (2, 2, False)]
    assert hybrid.tree.evict(1, SWA) == 4
    assert hybrid.hit(first(6)) == 24
