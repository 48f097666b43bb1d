"""Free stacks, all-or-nothing grants, and pages that drain."""

from engine.core.events import Draining, KvMoved
from engine.core.ids import StepNo
from engine.core.ownership import Move, Owner, OwnerKind, PoolKind
from tests.kit.core_parts import make_parts

REQUEST = Owner(OwnerKind.REQUEST, 1)


def test_grant_when_one_kind_is_short_then_nothing_is_taken() -> None:
    parts = make_parts(pool_pages=9, num_rows=2)
    assert parts.pools.grant(REQUEST, pages=3, rows=2) is None
    assert parts.pools.free(PoolKind.FULL) == 8
    assert parts.pools.free(PoolKind.ROWS) == 1
    assert parts.events() == []


def test_grant_when_pages_came_back_then_the_last_ones_go_out_first() -> None:
    pools = make_parts().pools
    first = pools.grant(REQUEST, pages=3)
    assert first == ([1, 2, 3], [])
    pools.free_up(Move.RELEASE, PoolKind.FULL, [1, 2], REQUEST)
    assert pools.grant(REQUEST, pages=3) == ([1, 2, 4], [])


def test_release_after_when_the_plan_is_not_answered_then_pages_stay_with_their_owner_until_it_is() -> None:
    parts = make_parts()
    pools = parts.pools
    pools.grant(REQUEST, pages=2)
    pools.answered(StepNo(4))
    parts.events()
    pools.release_after(StepNo(5), [1, 2], REQUEST)
    assert pools.ledger.owner(PoolKind.FULL, 1) == REQUEST
    assert pools.draining_pages == 2
    assert parts.events() == [Draining(REQUEST, (1, 2), StepNo(5))]
    pools.answered(StepNo(5))
    assert pools.draining_pages == 0
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
    assert pools.draining_pages == 0
    assert pools.free(PoolKind.FULL) == 16


def test_books_when_pages_are_protected_then_the_terms_add_up() -> None:
    parts = make_parts()
    request = parts.request(1, list(range(8)))
    pages, _ = parts.pools.grant(request.owner, pages=3) or ([], [])
    parts.tree.donate(Move.DONATE, request.owner, "", None, bytes(request.ids), pages[:2])
    books = parts.pools.books(PoolKind.FULL, draining=0)
    assert (books.available, books.evictable, books.protected, books.uncached) == (13, 0, 2, 1)
    assert books.is_balanced
