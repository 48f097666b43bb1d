"""The rotating check of a busy server: each owner exactly, everybody once a round, and never what is not there."""

from random import Random

import pytest

from engine.core.books import HOLDER_UNITS
from engine.core.commands import Close
from engine.core.findings import Finding, FindingKind
from engine.core.ids import SessionId, StepNo
from engine.core.ledger import Ledger
from engine.core.owners_check import OwnersCheck
from engine.core.ownership import CACHE, FREE, Move, Owner, OwnerKind, PoolKind
from engine.core.request import Phase, Request
from tests.kit.broken_books import (
    Defect,
    bypass_stack,
    claim_page,
    claim_twice,
    cut_key,
    donate_past_the_tree,
    drop_page,
    empty_slot_holds,
    forget_request,
    lend_to_nobody,
    orphan_draining,
    orphan_node,
    overstate_allocation,
    overstate_commit,
    overstate_protection,
    running_parts,
    shift_row,
    slot_outgrows_history,
    stack_held_page,
    wait_with_pages,
)
from tests.kit.busy_core import make_busy_core
from tests.kit.core_parts import CoreParts, make_parts
from tests.kit.random_traffic import RandomTraffic

FULL = PoolKind.FULL
CALLS_MAX = 1000


def find_all(check: OwnersCheck, calls: int = CALLS_MAX) -> list[Finding]:
    """All that so many calls of the least work each find: many rounds of what is small."""
    return [finding for _ in range(calls) for finding in check.run_slice(1).findings]


def calls_of_round(parts: CoreParts) -> int:
    """How many calls of the least work one round takes, if nothing changes."""
    whole = OwnersCheck(parts.books).run_slice(10**9).units
    check, calls, done = OwnersCheck(parts.books), 0, 0
    while done < whole:
        done += check.run_slice(1).units
        calls += 1
    return calls + 1  # the last one says that it is the end


def test_owners_check_when_the_books_are_right_then_it_finds_nothing_round_after_round() -> None:
    parts, _ = running_parts()
    assert calls_of_round(parts) > 5
    assert find_all(OwnersCheck(parts.books)) == []


@pytest.mark.parametrize(
    ("defect", "law"),
    [
        (drop_page, "holders"),
        (claim_page, "holders"),
        (claim_twice, "holders"),
        (bypass_stack, "holders"),
        (stack_held_page, "census"),
        (forget_request, "holders"),
        (orphan_draining, "holders"),
        (donate_past_the_tree, "holders"),
        (wait_with_pages, "holders"),
        (empty_slot_holds, "holders"),
        (overstate_commit, "holding"),
        (overstate_protection, "holding"),
        (overstate_allocation, "holding"),
        (shift_row, "holding"),
        (lend_to_nobody, "slot"),
        (slot_outgrows_history, "slot"),
        (cut_key, "tree"),
        (orphan_node, "tree"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
@pytest.mark.parametrize("calls_before", [0, 4])
def test_owners_check_when_a_defect_is_planted_then_its_law_fires_within_a_round(
    calls_before: int, defect: Defect, law: str
) -> None:
    parts, request = running_parts()
    check, calls = OwnersCheck(parts.books), calls_of_round(parts)
    assert find_all(check, calls_before) == []
    defect(parts, request)
    assert law in {finding.law for finding in find_all(check, calls + calls_of_round(parts))}


@pytest.mark.parametrize("leak", [drop_page, forget_request, orphan_draining])
def test_owners_check_when_nobody_lists_units_of_an_owner_then_it_is_a_leak_that_names_them_all(leak: Defect) -> None:
    parts, request = running_parts()
    owned = {pool: _units(parts.pools.ledger, pool, request.owner) for pool in (FULL, PoolKind.ROWS)}
    leak(parts, request)
    found = [it for it in OwnersCheck(parts.books).run_slice(10**9).findings if it.kind is FindingKind.LEAK]
    assert (FULL, owned[FULL]) in [(finding.pool, finding.units) for finding in found]
    if leak is forget_request:
        assert (PoolKind.ROWS, owned[PoolKind.ROWS]) in [(finding.pool, finding.units) for finding in found]


def _units(ledger: Ledger, pool: PoolKind, owner: Owner) -> tuple[int, ...]:
    return tuple(unit for unit, held_by in enumerate(ledger.owners(pool)) if held_by == owner)


def add_runner(parts: CoreParts, rid: int, num_pages: int) -> Request:
    """A request that runs, of whose prompt nothing is computed yet. No other one's prompt begins like it."""
    request = parts.request(rid, [rid, *range(4 * num_pages - 1)])
    parts.queues.run(request)
    request.go(Phase.RUNNING)
    granted = parts.pools.grant(request.owner, num_pages, rows=1)
    assert granted is not None
    request.kv.pages, request.kv.req_pool_idx = granted.pages, granted.rows[0]
    parts.table.write(granted.rows[0], 0, granted.pages)
    return request


def test_owners_check_when_a_page_is_listed_by_two_then_it_is_a_conflict_of_the_one_whose_it_is_not() -> None:
    parts = make_parts()
    first, second = add_runner(parts, 1, 2), add_runner(parts, 2, 3)
    second.kv.pages.append(first.kv.pages[0])
    found = OwnersCheck(parts.books).run_slice(10**9).findings
    assert [(it.kind, it.units) for it in found if it.law == "holders"] == [
        (FindingKind.CONFLICT, (first.kv.pages[0],))
    ]
    assert any("rid 2 (running) lists 1 of pool full" in it.message for it in found)


def test_owners_check_when_a_leak_and_a_double_listing_cancel_out_in_the_sums_then_both_are_found() -> None:
    parts = make_parts()
    request = add_runner(parts, 1, 3)
    kept, lost = request.kv.pages[0], request.kv.pages[2]
    request.kv.pages[2] = kept
    found = [it for it in OwnersCheck(parts.books).run_slice(10**9).findings if it.law == "holders"]
    assert {(it.kind, it.units) for it in found} == {(FindingKind.CONFLICT, (kept,)), (FindingKind.LEAK, (lost,))}


def test_owners_check_when_a_request_lists_what_does_not_exist_then_it_is_a_conflict() -> None:
    parts = make_parts()
    request = add_runner(parts, 1, 2)
    request.kv.pages += [0, 99]
    found = OwnersCheck(parts.books).run_slice(10**9).findings
    assert (FindingKind.CONFLICT, (0, 99)) in [(it.kind, it.units) for it in found]


def test_owners_check_when_a_claim_counts_more_than_the_owner_has_then_it_is_a_conflict() -> None:
    parts = make_parts()
    request = add_runner(parts, 1, 2)
    parts.pools.ledger.claims(FULL)[request.owner].num_units += 1
    (found,) = OwnersCheck(parts.books).run_slice(10**9).findings
    assert (found.kind, found.law, found.units) == (FindingKind.CONFLICT, "equation", ())


def test_owners_check_when_an_idle_slot_lost_a_page_then_it_is_a_leak_of_its_session() -> None:
    parts = make_parts()
    session = parts.open_session()
    (slot,) = parts.slots.slots()
    request = add_runner(parts, 1, 2)
    parts.pools.move(Move.PARK, FULL, request.kv.pages, request.owner, slot.owner)
    slot.kv.pages, request.kv.pages = request.kv.pages[:1], []
    lost = next(unit for unit in _units(parts.pools.ledger, FULL, slot.owner) if unit not in slot.kv.pages)
    found = OwnersCheck(parts.books).run_slice(10**9).findings
    assert (FindingKind.LEAK, (lost,)) in [(it.kind, it.units) for it in found]
    assert any(f"session:{session.uid}" in it.message for it in found)


def test_owners_check_when_pages_drain_after_their_owner_let_go_then_they_are_its_still() -> None:
    parts = make_parts()
    request = add_runner(parts, 1, 3)
    parts.pools.release_after(StepNo(1), request.kv.pages[1:], request.owner)
    del request.kv.pages[1:]
    assert OwnersCheck(parts.books).run_slice(10**9).is_clean
    parts.pools.answered(StepNo(1))
    assert OwnersCheck(parts.books).run_slice(10**9).is_clean


def test_owners_check_when_a_request_has_ended_before_its_turn_comes_then_what_its_record_says_does_not_count() -> None:
    parts = make_parts()
    add_runner(parts, 1, 2)
    second = add_runner(parts, 2, 3)
    check = OwnersCheck(parts.books)
    assert check.run_slice(1).is_clean
    parts.queues.leave(second)
    del parts.queues.live[second.rid]
    parts.pools.free_up(Move.RELEASE, FULL, second.kv.pages, second.owner)
    parts.pools.free_up(Move.RELEASE, PoolKind.ROWS, [2], second.owner)
    assert check.run_slice(10**9).is_clean


def test_owners_check_when_a_node_is_split_while_it_waits_then_both_halves_are_looked_at() -> None:
    parts = make_parts()
    requests = [add_runner(parts, rid, 4) for rid in (1, 2)]
    for request in requests:
        request.kv.kv_committed_len = request.kv.kv_allocated_len = 16
        parts.radix.cache_prompt(request)
    last, first = parts.tree.nodes()
    check = OwnersCheck(parts.books)
    whole = check.run_slice(10**9).units
    last.pages[0] = 9
    assert not check.run_slice(whole - HOLDER_UNITS - 4).is_clean, "all but the first node were looked at"
    last.pages[0] = 5
    match = parts.tree.probe("", bytes(requests[0].ids[:32]))
    assert match is not None
    parts.tree.lock(match)
    assert first.parent is not None
    assert len(first.parent.pages) == len(first.pages) == 2
    first.parent.pages[0], first.pages[1] = 10, 11
    messages = " ".join(finding.message for finding in check.run_slice(10**9).findings)
    for node in (first, first.parent):
        assert f"node {node.number} lists 1 of pool full, as cache" in messages


def test_owners_check_when_the_core_is_idle_again_then_what_left_meanwhile_is_not_missed() -> None:
    core = make_busy_core()
    assert core.check_owners_slice(1).is_clean
    core.apply(Close(SessionId("s")), 0.0)
    for _ in range(200):
        assert core.check_owners_slice(1).is_clean


@pytest.mark.parametrize("seed", range(12))
def test_owners_check_when_a_core_is_busy_between_slices_then_it_never_finds_what_is_not_there(seed: int) -> None:
    traffic, draw = RandomTraffic(seed), Random(seed)
    for operation in traffic.run(300):
        report = traffic.core.check_owners_slice(draw.choice((1, 10, 60, 300)))
        assert report.is_clean, (operation, report.findings)


@pytest.mark.parametrize("seed", range(6))
def test_owners_check_when_a_free_page_is_with_somebody_as_well_then_a_busy_core_finds_it_within_a_round(
    seed: int,
) -> None:
    parts, _ = running_parts()
    draw = Random(seed)
    check, calls = OwnersCheck(parts.books), calls_of_round(parts)
    find_all(check, draw.randrange(calls))
    held = [unit for unit, owner in enumerate(parts.pools.ledger.owners(FULL)) if owner not in (FREE,)]
    unit = draw.choice(held)
    assert parts.pools.ledger.owner(FULL, unit).kind in (OwnerKind.CACHE, OwnerKind.REQUEST)
    parts.pools.stack_held_unit(FULL, unit)
    assert {finding.units for finding in find_all(check, calls + 2)} == {(unit,)}
    assert CACHE in parts.pools.ledger.claims(FULL)
