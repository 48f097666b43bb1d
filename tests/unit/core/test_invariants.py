"""Each law of the full check fires when its books are wrong, and only then."""

from collections.abc import Callable

import pytest

from engine.core.invariants import CheckLevel, check_books
from engine.core.ownership import FREE, Move, PoolKind
from engine.core.request import Phase, Request
from tests.kit.core_parts import CoreParts, make_parts


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


def test_busy_check_when_the_counters_part_from_the_stacks_then_the_equation_fires() -> None:
    parts, request = running_parts()
    bypass_stack(parts, request)
    assert [finding.law for finding in check_books(parts.books, CheckLevel.BUSY).findings] == ["equation"]
