"""The full check over the pools of windows and states: each way to break them is told, and by its law."""

from collections.abc import Callable

import pytest

from engine.core.findings import CheckLevel, FindingKind
from engine.core.ids import StepNo
from engine.core.invariants import check_books
from engine.core.owners_check import OwnersCheck
from engine.core.ownership import CACHE, FREE, Move, PoolKind
from engine.core.quarantine import quarantine_leaks
from engine.core.radix_node import Node
from engine.core.request import Request
from tests.kit.broken_books import hybrid_parts
from tests.kit.core_parts import CoreParts

FULL, SWA, MAMBA = PoolKind.FULL, PoolKind.SWA, PoolKind.MAMBA
Defect = Callable[[CoreParts, Request], None]
WHOLE = 10**6


def last_node(parts: CoreParts) -> Node:
    """Of two pages, with windows and state under the lock of the request."""
    return list(parts.tree.nodes())[-1]


def first_node(parts: CoreParts) -> Node:
    """Of two pages with windows that nobody needs, and without a state."""
    return next(parts.tree.nodes())


def lose_own_window(parts: CoreParts, request: Request) -> None:
    del request.kv.swa[4]


def lose_own_state(parts: CoreParts, request: Request) -> None:
    assert request.kv.states is not None
    request.kv.states.spare.clear()


def lose_cached_windows(parts: CoreParts, request: Request) -> None:
    first_node(parts).swa = []


def lose_cached_state(parts: CoreParts, request: Request) -> None:
    last_node(parts).state = 0


def claim_window_twice(parts: CoreParts, request: Request) -> None:
    request.kv.swa[5] = request.kv.swa[4]


def claim_cached_window(parts: CoreParts, request: Request) -> None:
    request.kv.swa[5] = last_node(parts).swa[0]


def claim_cached_state(parts: CoreParts, request: Request) -> None:
    assert request.kv.states is not None
    request.kv.states.spare = [last_node(parts).state]


def stack_cached_window(parts: CoreParts, request: Request) -> None:
    parts.pools.stack_held_unit(SWA, last_node(parts).swa[0])


def lose_free_state(parts: CoreParts, request: Request) -> None:
    assert request.kv.states is not None
    parts.pools.free_up(Move.RELEASE, MAMBA, [request.kv.states.spare.pop()], request.owner)
    assert parts.pools.lose_free_unit(MAMBA) is not None


def drop_part_of_windows(parts: CoreParts, request: Request) -> None:
    last_node(parts).swa.pop()


def leak_window_lock(parts: CoreParts, request: Request) -> None:
    last_node(parts).swa_uses.locks += 1


def leak_state_lock(parts: CoreParts, request: Request) -> None:
    last_node(parts).state_uses.locks += 1


def mark_windows_idle(parts: CoreParts, request: Request) -> None:
    last_node(parts).swa_uses.idles += 1


def mark_state_idle(parts: CoreParts, request: Request) -> None:
    last_node(parts).state_uses.idles += 1


def forget_window_protection(parts: CoreParts, request: Request) -> None:
    parts.pools.ledger.unprotect([1], SWA)


def forget_state_protection(parts: CoreParts, request: Request) -> None:
    parts.pools.ledger.unprotect([1], MAMBA)


def use_windows_past_the_line(parts: CoreParts, request: Request) -> None:
    first_node(parts).last_use += 1


def free_state_past_the_line(parts: CoreParts, request: Request) -> None:
    node = last_node(parts)
    node.state_uses.locks = 0
    node.last_use += 1


DEFECTS: list[tuple[Defect, str]] = [
    (lose_own_window, "holders"),
    (lose_own_state, "holders"),
    (lose_cached_windows, "census"),
    (lose_cached_state, "census"),
    (claim_window_twice, "holders"),
    (claim_cached_window, "holders"),
    (claim_cached_state, "holders"),
    (stack_cached_window, "census"),
    (lose_free_state, "census"),
    (drop_part_of_windows, "tree"),
    (leak_window_lock, "tree"),
    (leak_state_lock, "tree"),
    (mark_windows_idle, "tree"),
    (mark_state_idle, "tree"),
    (forget_window_protection, "census"),
    (forget_state_protection, "census"),
    (use_windows_past_the_line, "reclaimable"),
    (free_state_past_the_line, "reclaimable"),
]


def test_check_when_the_books_are_right_then_it_finds_nothing_at_any_level() -> None:
    parts, _ = hybrid_parts()
    assert [node.swa_uses.locks for node in parts.tree.nodes()] == [0, 1]
    assert check_books(parts.books, CheckLevel.FULL).is_clean
    assert check_books(parts.books, CheckLevel.BUSY).is_clean
    assert OwnersCheck(parts.books).run_slice(WHOLE).is_clean


@pytest.mark.parametrize(("defect", "law"), DEFECTS, ids=lambda value: getattr(value, "__name__", value))
def test_check_when_a_defect_is_planted_then_its_law_fires(defect: Defect, law: str) -> None:
    parts, request = hybrid_parts()
    defect(parts, request)
    assert law in {finding.law for finding in check_books(parts.books, CheckLevel.FULL).findings}


@pytest.mark.parametrize(
    "defect",
    [
        lose_own_window,
        lose_own_state,
        claim_window_twice,
        claim_cached_window,
        claim_cached_state,
        stack_cached_window,
        drop_part_of_windows,
    ],
)
def test_owners_check_when_a_defect_is_of_one_owner_then_a_round_finds_it(defect: Defect) -> None:
    parts, request = hybrid_parts()
    defect(parts, request)
    assert not OwnersCheck(parts.books).run_slice(WHOLE).is_clean


@pytest.mark.parametrize(("pool", "pages"), [(SWA, [4]), (MAMBA, [1])])
def test_check_when_units_drain_then_they_are_nobody_elses_and_nothing_is_found(
    pool: PoolKind, pages: list[int]
) -> None:
    parts, request = hybrid_parts()
    assert request.kv.states is not None
    units = [request.kv.swa.pop(4)] if pool is SWA else request.kv.states.spare[:1]
    if pool is MAMBA:
        del request.kv.states.spare[0]
    parts.pools.release_after(StepNo(1), units, request.owner, pool)
    found = {finding.law for finding in check_books(parts.books, CheckLevel.FULL).findings}
    assert found == ({"holding"} if pool is SWA else set()), "it is still due where it was"
    assert parts.pools.num_draining(pool) == 1
    assert parts.pools.num_draining(FULL) == 0
    before = parts.pools.free(pool)
    parts.pools.answered(StepNo(1))
    assert (parts.pools.num_draining(pool), parts.pools.free(pool)) == (0, before + 1)


def test_check_when_units_drain_that_somebody_lists_as_well_then_it_is_told() -> None:
    parts, request = hybrid_parts()
    parts.pools.release_after(StepNo(1), [request.kv.swa[4]], request.owner, SWA)
    assert "holders" in {finding.law for finding in check_books(parts.books, CheckLevel.FULL).findings}


def test_quarantine_when_a_window_and_a_state_leaked_then_the_books_are_clean_again_and_smaller() -> None:
    parts, request = hybrid_parts()
    states = request.kv.states
    assert states is not None
    lost = states.spare.pop()
    granted = parts.pools.grant(request.owner, 1)
    assert granted is not None
    parts.pools.free_up(Move.RELEASE, FULL, granted.pages, request.owner)
    report = check_books(parts.books, CheckLevel.FULL)
    assert {(finding.kind, finding.pool, finding.units) for finding in report.findings} == {
        (FindingKind.LEAK, SWA, tuple(granted.swa_pages)),
        (FindingKind.LEAK, MAMBA, (lost,)),
    }
    quarantine_leaks(parts.pools, report)
    assert check_books(parts.books, CheckLevel.FULL).is_clean
    assert [parts.pools.in_circulation(pool) for pool in (FULL, SWA, MAMBA)] == [16, 15, 7]
    assert all(parts.pools.books(pool).is_balanced for pool in parts.pools.ledger.pools)


@pytest.mark.parametrize("pool", [SWA, MAMBA])
def test_busy_check_when_the_counters_part_from_the_stacks_then_the_equation_names_the_pool(pool: PoolKind) -> None:
    parts, request = hybrid_parts()
    assert request.kv.states is not None
    units = {SWA: list(request.kv.swa.values()), MAMBA: request.kv.states.spare}[pool]
    parts.pools.ledger.move(Move.RELEASE, pool, units, request.owner, FREE)
    (found,) = check_books(parts.books, CheckLevel.BUSY).findings
    assert (found.law, found.pool) == ("equation", pool)


@pytest.mark.parametrize("pool", [SWA, MAMBA])
def test_busy_check_when_less_is_cached_than_protected_then_the_equation_says_so(pool: PoolKind) -> None:
    parts, _ = hybrid_parts()
    units = last_node(parts).units(pool)
    before = parts.pools.ledger.count(pool, CACHE.kind)
    for _ in range(before + 1):
        parts.pools.ledger.protect(units[:1], pool)
    findings = check_books(parts.books, CheckLevel.BUSY).findings
    assert {(finding.law, finding.pool) for finding in findings} == {("equation", pool)}
