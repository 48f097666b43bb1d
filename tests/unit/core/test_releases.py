"""What a holding gives up, and what of it could still be used: windows, states, lengths. Pages are of 4 tokens."""

from dataclasses import dataclass

import pytest

from engine.core.holding import Holding
from engine.core.matcher import Matcher
from engine.core.ownership import Owner, OwnerKind, PoolKind
from engine.core.radix_node import Lock, Node
from engine.core.releases import (
    cacheable_len,
    has_window,
    leave_windows,
    own_units,
    release_all,
    release_behind,
    release_states,
    unpin_windows,
    usable_lens,
    write_table,
)
from engine.core.states import States
from tests.kit.core_parts import CoreParts, make_parts
from tests.kit.hybrid_tree import HybridTree

OWNER = Owner(OwnerKind.REQUEST, 1)
SIX = Matcher(4, 6, has_states=False)
"""The token behind n whole pages sees the last two of them."""
PLAIN = Matcher(4, None, has_states=False)


@dataclass(frozen=True, slots=True)
class Case:
    parts: CoreParts
    kv: Holding

    def free(self) -> tuple[int, ...]:
        return tuple(self.parts.pools.free(pool) for pool in self.parts.pools.ledger.pools)

    def leave(self, length: int) -> list[int]:
        """Leaves the windows behind so many tokens. Returns the places that are left."""
        leave_windows(self.parts.pools, OWNER, self.kv, length, self.parts.tree.matcher)
        assert self.free()[1] == 40 - len(self.kv.swa), "what is not there any more is free"
        return list(self.kv.swa)


def holding(num_pages: int, *, window: int = 6, states: int = 0, committed_len: int | None = None) -> Case:
    """All its own: pages, SWA pages, state slots in no use yet, and a row."""
    parts = make_parts(pool_pages=41, window=window, swa_pages=41, state_slots=9)
    granted = parts.pools.grant(OWNER, num_pages, 1, states)
    assert granted is not None
    length = committed_len if committed_len is not None else 4 * num_pages
    kv = Holding(
        req_pool_idx=granted.rows[0],
        pages=granted.pages,
        kv_committed_len=length,
        kv_allocated_len=length,
        swa=dict(enumerate(granted.swa_pages)),
        states=States(spare=granted.states),
    )
    write_table(parts.table, kv)
    return Case(parts, kv)


def with_places(*places: int, lock: Lock | None = None, states: States | None = None) -> Holding:
    """It has SWA pages at these places only. Ids of units don't matter."""
    protected_len = 4 * lock.num_pages if lock is not None else 0
    length = 4 * (max(places) + 1) if places else protected_len
    return Holding(
        lock=lock,
        cache_protected_len=protected_len,
        kv_committed_len=length,
        kv_allocated_len=length,
        swa={place: place + 1 for place in places},
        states=states,
    )


def lock_of(num_pages: int, window_from: int | None) -> Lock:
    root = Node(0, b"", [], None, namespace="")
    pages = list(range(1, num_pages + 1))
    return Lock(Node(1, b"", pages, root, swa=pages), num_pages, window_from=window_from)


# Leaving


@pytest.mark.parametrize(
    ("length", "places"),
    [
        (0, [0, 1, 2, 3, 4, 5]),
        (8, [0, 1, 2, 3, 4, 5]),
        (11, [0, 1, 2, 3, 4, 5]),
        (12, [1, 2, 3, 4, 5]),
        (15, [1, 2, 3, 4, 5]),
        (16, [2, 3, 4, 5]),
        (24, [4, 5]),
    ],
)
def test_leave_windows_when_a_length_is_answered_then_pages_before_its_last_borders_window_go(
    length: int, places: list[int]
) -> None:
    """Behind 12 to 15 tokens it may be cut to 12, whose next token sees 7 to 12."""
    assert holding(6).leave(length) == places


def test_leave_windows_when_called_for_each_token_then_each_page_goes_once() -> None:
    case = holding(10)
    left = [len(case.leave(length)) for length in range(41)]
    assert left == [10] * 12 + [10 - count for count in range(1, 8) for _ in range(4)] + [2]
    assert case.kv.swa_from == 8


def test_leave_windows_when_the_last_commit_is_pinned_then_its_window_stays_and_the_others_go() -> None:
    case = holding(10)
    case.kv.pin_len = 14
    assert case.leave(40) == [1, 2, 3, 8, 9], "a token behind 14 sees 9 to 14, one behind 12 sees 7 to 12"


def test_leave_windows_when_pins_are_over_then_they_go_only_once_the_holding_is_looked_at_again() -> None:
    case = holding(10)
    case.kv.pin_len = 14
    case.leave(40)
    case.kv.pin_len = 0
    assert case.leave(40) == [1, 2, 3, 8, 9]
    unpin_windows(case.kv, 4)
    assert case.kv.swa_from == 1
    assert case.leave(40) == [8, 9]


def test_unpin_windows_when_there_are_none_then_nothing_is_looked_at_again() -> None:
    kv = Holding(kv_committed_len=9, kv_allocated_len=9)
    unpin_windows(kv, 4)
    assert kv.swa_from == 3


def test_leave_windows_when_there_is_a_checkpoint_then_its_window_stays() -> None:
    case = holding(10, states=3)
    states = case.kv.states
    assert states is not None
    states.plan(16)
    states.answer()
    states.keep_checkpoint(16)
    assert case.leave(40) == [2, 3, 8, 9]


def test_leave_windows_when_places_before_were_the_trees_then_they_are_passed_over() -> None:
    case = holding(10)
    for place in range(4):
        del case.kv.swa[place]
    leave_windows(case.parts.pools, OWNER, case.kv, 40, case.parts.tree.matcher)
    assert list(case.kv.swa) == [8, 9]


def test_leave_windows_when_the_model_has_none_then_nothing_happens() -> None:
    parts = make_parts()
    kv = Holding()
    leave_windows(parts.pools, OWNER, kv, 40, parts.tree.matcher)
    assert (kv.swa_from, parts.events()) == (0, [])


# Releasing


def test_release_behind_when_cut_inside_a_page_then_all_pools_keep_the_same_places() -> None:
    case = holding(6)
    case.leave(20)
    release_behind(case.parts.pools, OWNER, case.kv, 18, 4)
    assert (len(case.kv.pages), list(case.kv.swa)) == (5, [3, 4])
    assert (case.kv.kv_committed_len, case.kv.kv_allocated_len) == (18, 18)
    assert case.free()[:2] == (35, 38)


def test_release_all_when_it_ends_then_every_pool_has_all_of_it_back() -> None:
    case = holding(6, states=3)
    case.leave(24)
    assert [(pool, len(units)) for pool, units in own_units(case.kv)] == [
        (PoolKind.FULL, 6),
        (PoolKind.SWA, 2),
        (PoolKind.MAMBA, 3),
        (PoolKind.ROWS, 1),
    ]
    release_all(case.parts.pools, case.parts.table, OWNER, case.kv)
    assert case.free() == (40, 40, 8, 4)


def test_release_states_when_cut_then_all_but_the_state_there_and_the_checkpoint_go_free() -> None:
    case = holding(6, states=4)
    states = case.kv.states
    assert states is not None
    for stop_len in (8, 16, 20):
        states.plan(stop_len)
        states.answer()
        if stop_len == 8:
            states.keep_checkpoint(8)
    kept = dict(states.kept)
    release_states(case.parts.pools, OWNER, case.kv, 20)
    assert (states.kept, states.read, states.num_slots) == (kept, kept[20], 2)
    assert case.free()[2] == 6


def test_release_states_when_its_own_are_too_long_then_the_next_step_starts_from_the_caches() -> None:
    hybrid = HybridTree(None, has_states=True)
    hybrid.insert(range(8))
    lock = hybrid.lock(range(8))
    granted = hybrid.pools.grant(OWNER, 1, states=1)
    assert granted is not None
    states = States(read=granted.states[0], kept={12: granted.states[0]})
    kv = Holding(None, lock, 8, granted.pages, 12, 12, states=states)
    release_states(hybrid.pools, OWNER, kv, 8)
    assert (states.read, states.num_slots) == (lock.node.state, 0)
    assert states.read > 0


# What could be used


@pytest.mark.parametrize(
    ("places", "length", "told"),
    [
        ((0, 1, 2, 3), 16, True),
        ((2, 3), 16, True),
        ((3,), 16, False),
        ((2, 3), 15, True),
        ((2, 3), 14, True),
        ((2, 3), 13, True),
        ((2, 3), 12, False),
        ((0, 1, 3), 16, False),
        ((0, 1, 3), 8, True),
        ((), 0, True),
        ((), 4, False),
    ],
)
def test_has_window_when_some_places_are_gone_then_all_that_the_next_token_sees_counts(
    places: tuple[int, ...], length: int, *, told: bool
) -> None:
    """Behind 13 tokens it sees 8 to 13: all from page 2 on."""
    assert has_window(with_places(*places), length, SIX) is told


@pytest.mark.parametrize(
    ("window_from", "places", "length", "told"),
    [
        (2, (4,), 20, True),
        (2, (), 16, True),
        (3, (), 16, False),
        (None, (), 16, False),
        (None, (4,), 20, False),
        (None, (4, 5), 24, True),
        (3, (4,), 20, True),
        (2, (5,), 24, False),
    ],
)
def test_has_window_when_the_path_is_the_trees_then_what_it_has_locked_of_windows_counts_too(
    window_from: int | None, places: tuple[int, ...], length: int, *, told: bool
) -> None:
    """A lock on four pages."""
    assert has_window(with_places(*places, lock=lock_of(4, window_from)), length, SIX) is told


def test_has_window_when_the_model_has_none_then_it_has_all() -> None:
    assert has_window(Holding(), 99, PLAIN)


@pytest.mark.parametrize(
    ("places", "limit", "lens"),
    [
        ((0, 1, 2, 3), 14, [14, 12]),
        ((2, 3), 16, [16]),
        ((2, 3), 11, []),
        ((1, 2, 5, 6), 28, [28, 12]),
        ((1, 2, 5, 6), 27, [27, 12]),
        ((1, 2, 5, 6), 23, [12]),
        ((0, 5, 6), 24, [4]),
        ((0, 5, 6), 3, [3]),
        ((5,), 24, []),
    ],
)
def test_usable_lens_when_windows_are_gone_then_the_limit_and_the_ends_of_what_is_left_are_tried(
    places: tuple[int, ...], limit: int, lens: list[int]
) -> None:
    assert list(usable_lens(with_places(*places), limit, SIX)) == lens


def test_usable_lens_when_there_are_states_then_only_where_one_is_kept() -> None:
    states = States(kept={4: 1, 9: 2, 13: 3})
    matcher = Matcher(4, None, has_states=True)
    assert list(usable_lens(with_places(states=states), 12, matcher)) == [9, 4]
    assert list(usable_lens(with_places(states=states), 13, matcher)) == [13, 9, 4]


def test_usable_lens_when_there_are_states_and_windows_then_both_have_to_be_there() -> None:
    states = States(kept={4: 1, 9: 2, 16: 3})
    matcher = Matcher(4, 6, has_states=True)
    assert list(usable_lens(with_places(2, 3, states=states), 16, matcher)) == [16]


def test_usable_lens_when_the_lock_covers_a_length_then_it_is_not_told() -> None:
    assert list(usable_lens(with_places(lock=lock_of(4, 2)), 16, SIX)) == []
    assert list(usable_lens(with_places(4, lock=lock_of(4, 2)), 18, SIX)) == [18]


@pytest.mark.parametrize(
    ("places", "limit", "length"),
    [((0, 1, 2, 3), 15, 12), ((0, 1, 2, 3), 16, 16), ((2, 3), 16, 16), ((2, 3), 15, 0), ((3,), 16, 0), ((0,), 3, 0)],
)
def test_cacheable_len_when_asked_then_it_is_in_whole_pages_with_a_window_or_none(
    places: tuple[int, ...], limit: int, length: int
) -> None:
    assert cacheable_len(with_places(*places), limit, SIX) == length


def test_cacheable_len_when_no_more_can_be_used_then_it_is_what_is_cached_already() -> None:
    assert cacheable_len(with_places(5, lock=lock_of(4, 2)), 24, SIX) == 16
    assert cacheable_len(with_places(lock=lock_of(4, 2)), 9, SIX) == 16


@pytest.mark.parametrize(("checkpoint_len", "limit", "length"), [(8, 15, 8), (8, 8, 8), (8, 7, 0), (None, 15, 0)])
def test_cacheable_len_when_there_are_states_then_it_is_the_checkpoint(
    checkpoint_len: int | None, limit: int, length: int
) -> None:
    states = States(kept={8: 1, 12: 2}, checkpoint_len=checkpoint_len)
    kv = with_places(states=states)
    assert cacheable_len(kv, limit, Matcher(4, None, has_states=True)) == length


def test_write_table_when_windows_have_gaps_then_the_row_has_padding_there() -> None:
    case = holding(6)
    case.kv.pin_len = 8
    assert case.leave(24) == [0, 1, 4, 5]
    assert case.kv.req_pool_idx is not None
    case.parts.table.clear(case.kv.req_pool_idx)
    write_table(case.parts.table, case.kv)
    swa, row = case.kv.swa, case.parts.table.swa_row(case.kv.req_pool_idx)
    assert row is not None
    assert list(row[:7]) == [swa[0], swa[1], 0, 0, swa[4], swa[5], 0]
    assert list(case.parts.table.row(case.kv.req_pool_idx)[:6]) == case.kv.pages
