"""Free stacks, all-or-nothing grants, and pages that drain."""

from collections.abc import Callable

import pytest

from engine.core.errors import InvariantViolation
from engine.core.events import Draining, KvMoved
from engine.core.ids import StepNo
from engine.core.ownership import CACHED_KINDS, Move, Owner, OwnerKind, PoolKind
from engine.core.pools import Grant, Pools
from engine.core.radix_node import Gift
from tests.kit.core_parts import CoreParts, make_parts

REQUEST = Owner(OwnerKind.REQUEST, 1)
ROWS = PoolKind.ROWS


def test_grant_when_one_kind_is_short_then_nothing_is_taken() -> None:
    parts = make_parts(pool_pages=9, num_rows=2)
    assert parts.pools.grant(REQUEST, pages=3, rows=2) is None
    assert parts.pools.free(PoolKind.FULL) == 8
    assert parts.pools.free(PoolKind.ROWS) == 1
    assert parts.events() == []


def test_grant_when_pages_came_back_then_the_last_ones_go_out_first() -> None:
    pools = make_parts().pools
    first = pools.grant(REQUEST, pages=3)
    assert first == Grant([1, 2, 3], [], [], [])
    pools.free_up(Move.RELEASE, PoolKind.FULL, [1, 2], REQUEST)
    assert pools.grant(REQUEST, pages=3) == Grant([1, 2, 4], [], [], [])


def test_release_after_when_the_plan_is_not_answered_then_pages_stay_with_their_owner_until_it_is() -> None:
    parts = make_parts()
    pools = parts.pools
    pools.grant(REQUEST, pages=2)
    pools.answered(StepNo(4))
    parts.events()
    pools.release_after(StepNo(5), [1, 2], REQUEST)
    assert pools.ledger.owner(PoolKind.FULL, 1) == REQUEST
    assert pools.num_draining(PoolKind.FULL) == 2
    assert parts.events() == [Draining(REQUEST, (1, 2), StepNo(5))]
    pools.answered(StepNo(5))
    assert pools.num_draining(PoolKind.FULL) == 0
    assert [event.move for event in parts.events(KvMoved) if isinstance(event, KvMoved)] == [Move.RELEASE]
    assert pools.free(PoolKind.FULL) == 16


def test_answered_when_a_later_plan_has_pages_too_then_only_those_of_the_answered_one_are_free() -> None:
    pools = make_parts().pools
    pools.grant(REQUEST, pages=2)
    pools.release_after(StepNo(1), [1], REQUEST)
    pools.release_after(StepNo(2), [2], REQUEST)
    pools.answered(StepNo(1))
    assert [drain.pages for drain in pools.draining] == [(2,)]
    pools.answered(StepNo(2))
    assert pools.free(PoolKind.FULL) == 16


def test_release_after_when_the_plan_was_answered_then_pages_are_free_at_once() -> None:
    pools = make_parts().pools
    pools.grant(REQUEST, pages=2)
    pools.answered(StepNo(5))
    pools.release_after(StepNo(5), [1, 2], REQUEST)
    assert pools.num_draining(PoolKind.FULL) == 0
    assert pools.free(PoolKind.FULL) == 16


def test_books_when_pages_are_protected_then_the_terms_add_up() -> None:
    parts = make_parts()
    request = parts.request(1, list(range(8)))
    granted = parts.pools.grant(request.owner, pages=3)
    assert granted is not None
    parts.tree.donate(Move.DONATE, request.owner, "", None, bytes(request.ids), Gift(granted.pages[:2]))
    books = parts.pools.books(PoolKind.FULL)
    assert (books.available, books.evictable, books.protected, books.uncached) == (13, 0, 2, 1)
    assert books.is_balanced


def test_drain_when_the_plan_is_not_answered_then_pages_are_told_once_and_stay_in_the_holders_hands() -> None:
    parts = make_parts()
    pools = parts.pools
    pools.grant(REQUEST, pages=3)
    pools.answered(StepNo(4))
    parts.events()
    pools.drain(REQUEST, [1, 2], StepNo(5))
    pools.drain(REQUEST, [1, 2, 3], StepNo(6))
    pools.drain(REQUEST, [1, 2, 3], StepNo(6))
    assert parts.events() == [Draining(REQUEST, (1, 2), StepNo(5)), Draining(REQUEST, (3,), StepNo(6))]
    assert pools.books(PoolKind.FULL).draining == 3
    pools.answered(StepNo(6))
    assert pools.draining == ()
    assert pools.books(PoolKind.FULL).uncached == 3


def test_drain_when_the_plan_was_answered_or_there_is_no_page_then_nothing_is_told() -> None:
    parts = make_parts()
    pools = parts.pools
    pools.grant(REQUEST, pages=1)
    pools.answered(StepNo(5))
    parts.events()
    pools.drain(REQUEST, [1], StepNo(5))
    pools.drain(REQUEST, [], StepNo(6))
    assert parts.events() == []
    assert pools.num_draining(PoolKind.FULL) == 0


def test_drain_when_a_page_is_anothers_then_it_is_a_violation_and_nothing_is_told() -> None:
    parts = make_parts()
    parts.pools.grant(REQUEST, pages=1)
    parts.events()
    with pytest.raises(InvariantViolation, match="page 2, which belongs to free"):
        parts.pools.drain(REQUEST, [1, 2], StepNo(1))
    assert parts.events() == []
    assert parts.pools.num_draining(PoolKind.FULL) == 0


def move_on(pools: Pools) -> None:
    pools.move(Move.PARK, PoolKind.FULL, [1], REQUEST, Owner(OwnerKind.SESSION, 1))


def free_up(pools: Pools) -> None:
    pools.free_up(Move.RELEASE, PoolKind.FULL, [1], REQUEST)


def quarantine(pools: Pools) -> None:
    pools.quarantine(PoolKind.FULL, [1])


@pytest.mark.parametrize("leave", [move_on, free_up, quarantine])
def test_num_draining_when_they_move_then_they_drain_no_longer(leave: Callable[[Pools], None]) -> None:
    pools = make_parts().pools
    pools.grant(REQUEST, pages=2)
    pools.drain(REQUEST, [1, 2], StepNo(1))
    leave(pools)
    assert pools.num_draining(PoolKind.FULL) == 1


def test_num_draining_when_a_row_of_the_same_number_moves_then_they_drain_on() -> None:
    pools = make_parts().pools
    pools.grant(REQUEST, pages=1, rows=1)
    pools.drain(REQUEST, [1], StepNo(1))
    pools.free_up(Move.RELEASE, PoolKind.ROWS, [1], REQUEST)
    assert pools.num_draining(PoolKind.FULL) == 1


def test_quarantine_when_units_had_several_owners_then_each_leaves_circulation_and_the_terms_still_add_up() -> None:
    parts = make_parts()
    pools = parts.pools
    pools.grant(REQUEST, pages=2)
    pools.grant(Owner(OwnerKind.REQUEST, 2), pages=1)
    parts.events()
    pools.quarantine(PoolKind.FULL, [3, 2, 1])
    books = pools.books(PoolKind.FULL)
    assert (books.total, books.quarantined, books.uncached, books.available) == (13, 3, 0, 13)
    assert books.is_balanced
    assert pools.in_circulation(PoolKind.FULL) == 13
    moved = [(event.source, event.pages) for event in parts.events(KvMoved) if isinstance(event, KvMoved)]
    assert moved == [(REQUEST, (1, 2)), (Owner(OwnerKind.REQUEST, 2), (3,))]


def test_grant_when_a_free_unit_is_held_then_it_is_a_violation_and_the_stack_stays_as_it_is() -> None:
    pools = make_parts(pool_pages=3).pools
    pools.grant(REQUEST, pages=2)
    pools.stack_held_unit(PoolKind.FULL, 2)
    with pytest.raises(InvariantViolation, match="page 2 belongs to request:1, not to free"):
        pools.grant(REQUEST, pages=1)
    assert pools.free(PoolKind.FULL) == 1


def test_stack_held_unit_when_the_unit_is_free_then_it_is_a_violation() -> None:
    with pytest.raises(InvariantViolation, match="is free"):
        make_parts().pools.stack_held_unit(PoolKind.FULL, 2)


def test_lose_free_unit_when_units_came_back_then_it_is_the_one_freed_last() -> None:
    pools = make_parts().pools
    assert pools.lose_free_unit(PoolKind.FULL) is None
    pools.grant(REQUEST, pages=3)
    pools.free_up(Move.RELEASE, PoolKind.FULL, [3], REQUEST)
    pools.free_up(Move.RELEASE, PoolKind.FULL, [1], REQUEST)
    assert pools.lose_free_unit(PoolKind.FULL) == 1
    assert pools.free(PoolKind.FULL) == 14


def make_hybrid(pool_pages: int = 9, swa_pages: int = 9, state_slots: int = 5) -> CoreParts:
    return make_parts(pool_pages=pool_pages, window=6, swa_pages=swa_pages, state_slots=state_slots)


def test_grant_when_there_are_all_pools_then_windows_come_with_pages_and_states_are_asked_for() -> None:
    pools = make_hybrid().pools
    assert pools.grant(REQUEST, 2, 1, 3) == Grant([1, 2], [1], [1, 2], [1, 2, 3])
    assert pools.grant(REQUEST, 1) == Grant([3], [], [3], [])
    assert pools.grant(REQUEST, 0, states=1) == Grant([], [], [], [4])
    assert [pools.free(pool) for pool in pools.ledger.pools] == [5, 5, 0, 3]


@pytest.mark.parametrize(
    ("parts", "rows", "states"),
    [
        (make_hybrid(pool_pages=4), 1, 1),
        (make_hybrid(swa_pages=4), 1, 1),
        (make_hybrid(), 5, 1),
        (make_hybrid(), 1, 5),
    ],
    ids=["full", "swa", "rows", "mamba"],
)
def test_grant_when_one_of_four_pools_is_short_then_nothing_is_taken_of_any(
    parts: CoreParts, rows: int, states: int
) -> None:
    before = [parts.pools.free(pool) for pool in parts.pools.ledger.pools]
    assert parts.pools.grant(REQUEST, 4, rows, states) is None
    assert [parts.pools.free(pool) for pool in parts.pools.ledger.pools] == before
    assert parts.events() == []


@pytest.mark.parametrize("pool", [PoolKind.SWA, PoolKind.MAMBA])
def test_release_after_when_units_are_of_another_pool_then_they_drain_and_go_free_there(pool: PoolKind) -> None:
    parts = make_hybrid()
    pools = parts.pools
    pools.grant(REQUEST, 2, states=2)
    parts.events()
    pools.release_after(StepNo(1), [1, 2], REQUEST, pool)
    assert parts.events() == [Draining(REQUEST, (1, 2), StepNo(1), pool)]
    assert [pools.num_draining(kind) for kind in pools.ledger.pools] == [
        2 * (kind is pool) for kind in (*CACHED_KINDS, ROWS)
    ]
    before = {kind: pools.free(kind) for kind in pools.ledger.pools}
    pools.answered(StepNo(1))
    assert {kind: pools.free(kind) - before[kind] for kind in before} == {kind: 2 * (kind is pool) for kind in before}
    assert pools.num_draining(pool) == 0


def test_drain_when_pages_of_two_pools_have_the_same_numbers_then_each_drains_for_itself() -> None:
    parts = make_hybrid()
    pools = parts.pools
    pools.grant(REQUEST, 2)
    pools.drain(REQUEST, [1], StepNo(1))
    pools.drain(REQUEST, [1, 2], StepNo(2), PoolKind.SWA)
    assert (pools.num_draining(PoolKind.FULL), pools.num_draining(PoolKind.SWA)) == (1, 2)
    pools.free_up(Move.RELEASE, PoolKind.SWA, [1], REQUEST)
    assert (pools.num_draining(PoolKind.FULL), pools.num_draining(PoolKind.SWA)) == (1, 1)
