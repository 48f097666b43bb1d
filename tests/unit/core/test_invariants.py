"""Each law of the full check fires when its books are wrong, and only then."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.core.events import SlotState
from engine.core.ids import TOKEN_BYTES, Rid, TurnId
from engine.core.invariants import CheckLevel, check_books
from engine.core.ownership import CACHE, FREE, Move, PoolKind
from engine.core.pools import Pools
from engine.core.request import Phase, Request
from engine.core.snapshot import PoolBooks
from tests.kit.core_parts import CoreParts, make_parts


class Miscounts(Pools):
    """Tells of one free unit less than none."""

    def books(self, pool: PoolKind, draining: int = 0) -> PoolBooks:
        return replace(super().books(pool, draining), available=-1)


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
    parts.slots.slots()[0].session.live[TurnId("gone")] = Rid(99)


def wait_with_pages(parts: CoreParts, request: Request) -> None:
    parts.request(2, [1]).kv.pages = [9]


def leave_waiting(parts: CoreParts, request: Request) -> None:
    parts.queues.waiting.remove(parts.request(2, [1]))


DEFECTS: list[tuple[Callable[[CoreParts, Request], None], str]] = [
    (drop_page, "holders"),
    (claim_page, "holders"),
    (bypass_stack, "equation"),
    (bypass_stack, "holders"),
    (leak_lock, "tree"),
    (forget_protection, "census"),
    (overstate_commit, "holding"),
    (shift_row, "holding"),
    (cut_key, "tree"),
    (mark_idle, "tree"),
    (lend_to_nobody, "slot"),
    (leave_queue, "session"),
    (claim_twice, "holders"),
    (donate_past_the_tree, "census"),
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


def test_check_when_counters_do_not_add_up_then_the_equation_says_so_and_names_the_negative_term() -> None:
    parts = make_parts()
    miscounting = Miscounts(pool_pages=17, num_rows=5, log=parts.log)
    findings = check_books(replace(parts.books, pools=miscounting), CheckLevel.BUSY).findings
    assert {finding.law for finding in findings} == {"equation"}
    for said in ("is not 16", "below zero", "16 stacked"):
        assert any(said in finding.message for finding in findings), said


def test_busy_check_when_the_counters_part_from_the_stacks_then_the_equation_fires() -> None:
    parts, request = running_parts()
    bypass_stack(parts, request)
    assert [finding.law for finding in check_books(parts.books, CheckLevel.BUSY).findings] == ["equation"]
