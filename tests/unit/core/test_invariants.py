"""Each law of the full check fires when its books are wrong, and only then."""

from collections.abc import Callable

import pytest

from engine.core.errors import InvariantViolation
from engine.core.events import SlotState
from engine.core.findings import FindingKind
from engine.core.ids import TOKEN_BYTES, Rid, StepNo, TurnId
from engine.core.invariants import CheckLevel, check_books
from engine.core.ledger import Ledger
from engine.core.ownership import CACHE, FREE, QUARANTINED, Move, OwnerKind, PoolKind
from engine.core.quarantine import quarantine_leaks
from engine.core.request import Phase, Request
from engine.core.turn_tree import LiveTurn, Place
from tests.kit.core_parts import CoreParts, make_parts


class Miscounting(Ledger):
    """Tells of one free unit less than none."""

    def counts(self, pool: PoolKind) -> dict[OwnerKind, int]:
        return dict(super().counts(pool)) | {OwnerKind.FREE: -1}


def running_parts() -> tuple[CoreParts, Request]:
    """One request that runs on a donated prompt of two pages and a page of its own, and a slot that holds nothing."""
    parts = make_parts()
    parts.open_session()
    request = parts.request(1, list(range(10)))
    parts.queues.run(request)
    request.go(Phase.RUNNING)
    granted = parts.pools.grant(request.owner, 3, rows=1)
    assert granted is not None
    kv = request.kv
    kv.pages, kv.req_pool_idx = granted[0], granted[1][0]
    kv.kv_committed_len = kv.kv_allocated_len = 10
    parts.table.write(kv.req_pool_idx, 0, kv.pages)
    parts.radix.cache_prompt(request)
    return parts, request


def laws(parts: CoreParts) -> set[str]:
    return {finding.law for finding in check_books(parts.books, CheckLevel.FULL).findings}


def drop_page(parts: CoreParts, request: Request) -> None:
    request.kv.pages.pop()


def claim_page(parts: CoreParts, request: Request) -> None:
    request.kv.pages[0] = 9


def bypass_stack(parts: CoreParts, request: Request) -> None:
    parts.pools.ledger.move(Move.RELEASE, PoolKind.FULL, request.kv.pages, request.owner, FREE)


def lose_free_page(parts: CoreParts, request: Request) -> None:
    parts.pools.free_up(Move.RELEASE, PoolKind.FULL, [request.kv.pages.pop()], request.owner)
    request.kv.kv_allocated_len = request.kv.kv_committed_len = 8
    assert parts.pools.lose_free_unit(PoolKind.FULL) is not None


def stack_held_page(parts: CoreParts, request: Request) -> None:
    parts.pools.stack_held_unit(PoolKind.FULL, next(parts.tree.nodes()).pages[0])


def forget_request(parts: CoreParts, request: Request) -> None:
    """It ends without giving anything back; its lock is void, as if it had been given back."""
    parts.queues.leave(request)
    del parts.queues.live[request.rid]
    assert request.kv.lock is not None
    parts.tree.unlock(request.kv.lock, 0)


def orphan_draining(parts: CoreParts, request: Request) -> None:
    """Told as draining, and dropped by its holder at once."""
    parts.pools.drain(request.owner, request.kv.pages, StepNo(1))
    request.kv.pages = []
    request.kv.kv_allocated_len = request.kv.kv_committed_len = 8


def leak_lock(parts: CoreParts, request: Request) -> None:
    match = parts.tree.probe("", bytes(request.ids))
    assert match is not None
    parts.tree.lock(match)


def forget_protection(parts: CoreParts, request: Request) -> None:
    parts.pools.ledger.unprotect([1])


def overstate_commit(parts: CoreParts, request: Request) -> None:
    request.kv.kv_committed_len = 13


def shift_row(parts: CoreParts, request: Request) -> None:
    assert request.kv.req_pool_idx is not None
    parts.table.write(request.kv.req_pool_idx, 2, [9])


def cut_key(parts: CoreParts, request: Request) -> None:
    next(parts.tree.nodes()).key += b"four"


def mark_idle(parts: CoreParts, request: Request) -> None:
    next(parts.tree.nodes()).idle_count += 1


def lend_to_nobody(parts: CoreParts, request: Request) -> None:
    parts.slots.slots()[0].lessee = request.rid


def leave_queue(parts: CoreParts, request: Request) -> None:
    parts.queues.running.remove(request)


def claim_twice(parts: CoreParts, request: Request) -> None:
    request.kv.pages.append(request.kv.pages[0])


def donate_past_the_tree(parts: CoreParts, request: Request) -> None:
    parts.pools.move(Move.DONATE, PoolKind.FULL, request.kv.pages, request.owner, CACHE)


def orphan_node(parts: CoreParts, request: Request) -> None:
    node = next(parts.tree.nodes())
    assert node.parent is not None
    node.parent.children[b"other"] = node
    del node.parent.children[node.key[: parts.page_size * TOKEN_BYTES]]


def overstate_protection(parts: CoreParts, request: Request) -> None:
    request.kv.cache_protected_len = 4


def overstate_allocation(parts: CoreParts, request: Request) -> None:
    request.kv.kv_allocated_len = 99


def slot_outgrows_history(parts: CoreParts, request: Request) -> None:
    slot = parts.slots.slots()[0]
    slot.state, slot.kv.kv_committed_len, slot.kv.kv_allocated_len = SlotState.HELD, 1, 2


def empty_slot_holds(parts: CoreParts, request: Request) -> None:
    parts.slots.slots()[0].kv.pages = [9]


def dead_turn_has_the_lease(parts: CoreParts, request: Request) -> None:
    turn = LiveTurn(Rid(99), Place(), b"")
    parts.slots.slots()[0].session.live[TurnId("gone")] = turn


def wait_with_pages(parts: CoreParts, request: Request) -> None:
    parts.request(2, [1]).kv.pages = [9]


def leave_waiting(parts: CoreParts, request: Request) -> None:
    parts.queues.leave(parts.request(2, [1]))


DEFECTS: list[tuple[Callable[[CoreParts, Request], None], str]] = [
    (drop_page, "holders"),
    (claim_page, "holders"),
    (bypass_stack, "holders"),
    (lose_free_page, "census"),
    (stack_held_page, "census"),
    (stack_held_page, "holders"),
    (forget_request, "holders"),
    (orphan_draining, "holders"),
    (leak_lock, "tree"),
    (forget_protection, "census"),
    (overstate_commit, "holding"),
    (shift_row, "holding"),
    (cut_key, "tree"),
    (mark_idle, "tree"),
    (lend_to_nobody, "slot"),
    (leave_queue, "session"),
    (claim_twice, "holders"),
    (donate_past_the_tree, "holders"),
    (orphan_node, "tree"),
    (overstate_protection, "holding"),
    (overstate_allocation, "holding"),
    (slot_outgrows_history, "slot"),
    (empty_slot_holds, "slot"),
    (dead_turn_has_the_lease, "session"),
    (wait_with_pages, "session"),
    (leave_waiting, "session"),
]


def test_check_when_the_books_are_right_then_it_finds_nothing() -> None:
    parts, _ = running_parts()
    assert check_books(parts.books, CheckLevel.FULL).is_clean
    assert check_books(parts.books, CheckLevel.BUSY).is_clean


@pytest.mark.parametrize(("defect", "law"), DEFECTS, ids=lambda value: getattr(value, "__name__", value))
def test_check_when_a_defect_is_planted_then_its_law_fires(
    defect: Callable[[CoreParts, Request], None], law: str
) -> None:
    parts, request = running_parts()
    defect(parts, request)
    assert law in laws(parts)


@pytest.mark.parametrize("leak", [lose_free_page, forget_request, orphan_draining])
def test_check_when_nobody_has_a_unit_any_more_then_all_it_finds_are_leaks(
    leak: Callable[[CoreParts, Request], None],
) -> None:
    parts, request = running_parts()
    leak(parts, request)
    report = check_books(parts.books, CheckLevel.FULL)
    assert report.leaks == report.findings
    assert report.leaks


@pytest.mark.parametrize("leak", [lose_free_page, forget_request, orphan_draining])
def test_quarantine_when_leaks_were_found_then_the_books_are_clean_again_and_smaller(
    leak: Callable[[CoreParts, Request], None],
) -> None:
    parts, request = running_parts()
    leak(parts, request)
    report = check_books(parts.books, CheckLevel.FULL)
    histories = quarantine_leaks(parts.pools, report)
    assert {(history.pool, history.unit) for history in histories} == {
        (finding.pool, unit) for finding in report.leaks for unit in finding.units
    }
    assert all(history.owner == QUARANTINED for history in histories)
    assert check_books(parts.books, CheckLevel.FULL).is_clean
    assert check_books(parts.books, CheckLevel.BUSY).is_clean
    books = parts.pools.books(PoolKind.FULL)
    assert books.quarantined == sum(len(finding.units) for finding in report.leaks if finding.pool is PoolKind.FULL)
    assert books.total == 16 - books.quarantined
    assert books.draining == 0


def test_quarantine_when_something_moved_since_the_check_then_it_is_a_violation_and_nothing_moves() -> None:
    parts, request = running_parts()
    lose_free_page(parts, request)
    report = check_books(parts.books, CheckLevel.FULL)
    parts.pools.grant(request.owner, 1)
    with pytest.raises(InvariantViolation, match="1 moves since the check"):
        quarantine_leaks(parts.pools, report)
    assert parts.pools.books(PoolKind.FULL).quarantined == 0


def test_check_when_a_page_has_two_owners_then_it_is_a_conflict_and_no_leak() -> None:
    parts, request = running_parts()
    stack_held_page(parts, request)
    report = check_books(parts.books, CheckLevel.FULL)
    assert report.conflicts == report.findings
    assert {finding.units for finding in report.findings} == {(1,)}


def test_check_when_the_counters_do_not_add_up_then_the_equation_says_so_and_names_the_negative_term() -> None:
    parts = make_parts()
    parts.pools.ledger = Miscounting({PoolKind.FULL: 17, PoolKind.ROWS: 5}, parts.log)
    findings = check_books(parts.books, CheckLevel.BUSY).findings
    assert {(finding.law, finding.kind) for finding in findings} == {("equation", FindingKind.CONFLICT)}
    for said in ("is not 16", "below zero"):
        assert any(said in finding.message for finding in findings), said


def test_busy_check_when_the_counters_part_from_the_stacks_then_the_equation_fires() -> None:
    parts, request = running_parts()
    bypass_stack(parts, request)
    (found,) = check_books(parts.books, CheckLevel.BUSY).findings
    assert (found.law, found.message) == ("equation", "full: 14 free by the ledger, 13 stacked")
