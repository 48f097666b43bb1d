"""Each law of the full check fires when its books are wrong, and only then."""

from dataclasses import replace

import pytest

from engine.core.errors import InvariantViolation
from engine.core.events import SlotState
from engine.core.findings import PIECE_UNITS, FindingKind
from engine.core.invariants import CheckLevel, check_books
from engine.core.ledger import Ledger
from engine.core.ownership import QUARANTINED, OwnerKind, PoolKind
from engine.core.quarantine import quarantine_leaks
from engine.core.request import Phase
from engine.core.session_cache import IdleSlots
from tests.kit.broken_books import DEFECTS, LEAKS, Defect, bypass_stack, lose_free_page, running_parts, stack_held_page
from tests.kit.core_parts import CoreParts, make_parts

OWN_UNITS = {PoolKind.FULL: 1, PoolKind.ROWS: 1}


class Miscounting(Ledger):
    """Tells of one free unit less than none."""

    @property
    def tallies(self) -> tuple[tuple[PoolKind, int, dict[OwnerKind, int]], ...]:
        return tuple((pool, size, {**counts, OwnerKind.FREE: -1}) for pool, size, counts in super().tallies)


def laws(parts: CoreParts) -> set[str]:
    return {finding.law for finding in check_books(parts.books, CheckLevel.FULL).findings}


def test_check_when_the_books_are_right_then_it_finds_nothing() -> None:
    parts, _ = running_parts()
    assert check_books(parts.books, CheckLevel.FULL).is_clean
    assert check_books(parts.books, CheckLevel.BUSY).is_clean


@pytest.mark.parametrize(("defect", "law"), DEFECTS, ids=lambda value: getattr(value, "__name__", value))
def test_check_when_a_defect_is_planted_then_its_law_fires(defect: Defect, law: str) -> None:
    parts, request = running_parts()
    defect(parts, request)
    assert law in laws(parts)


@pytest.mark.parametrize("leak", LEAKS)
def test_check_when_nobody_has_a_unit_any_more_then_all_it_finds_are_leaks(
    leak: Defect,
) -> None:
    parts, request = running_parts()
    leak(parts, request)
    report = check_books(parts.books, CheckLevel.FULL)
    assert report.leaks == report.findings
    assert report.leaks


@pytest.mark.parametrize("leak", LEAKS)
def test_quarantine_when_leaks_were_found_then_the_books_are_clean_again_and_smaller(
    leak: Defect,
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


def idle_slot_parts() -> CoreParts:
    """A slot between turns, uid 1, that holds a page of its own and a row."""
    parts, request = running_parts()
    (slot,) = parts.slots.slots()
    request.session = slot.session
    slot.state, slot.lessee, slot.session.history = SlotState.COMMITTING, request.rid, bytes(request.ids)
    request.go(Phase.COMMITTING)
    parts.queues.running.remove(request)
    parts.slots.commit(request)
    return parts


@pytest.mark.parametrize(
    ("idle", "said"),
    [
        (IdleSlots((), (1,), OWN_UNITS), "1 slots are in line to give way or ought to be, not both: [1]"),
        (IdleSlots((1, 2), (1,), OWN_UNITS), "1 slots are in line to give way or ought to be, not both: [2]"),
        (IdleSlots((1, 1), (1,), OWN_UNITS), "1 slots are in line to give way or ought to be, not both: [1]"),
        (IdleSlots((1,), (), OWN_UNITS), "1 slots are in line to give a row or ought to be, not both: [1]"),
        (IdleSlots((1,), (1, *range(2, 22)), OWN_UNITS), "20 slots are in line to give a row"),
        (IdleSlots((1,), (1,), {**OWN_UNITS, PoolKind.FULL: 4}), "idle slots hold 1 of full, 4 are counted"),
        (IdleSlots((1,), (1,), {**OWN_UNITS, PoolKind.ROWS: 0}), "idle slots hold 1 of rows, 0 are counted"),
    ],
)
def test_check_when_idle_slots_are_not_those_in_line_then_it_names_them(idle: IdleSlots, said: str) -> None:
    parts = idle_slot_parts()
    assert parts.slots.idle() == IdleSlots((1,), (1,), OWN_UNITS)
    assert check_books(parts.books, CheckLevel.FULL).is_clean
    (found,) = check_books(replace(parts.books, idle=lambda: idle), CheckLevel.FULL).findings
    assert found.law == "reclaimable"
    assert said in found.message


@pytest.mark.parametrize("entry", [0, 1, PIECE_UNITS, 2 * PIECE_UNITS + 3, 2999])
def test_check_when_a_row_is_long_then_each_of_its_entries_counts(entry: int) -> None:
    parts = make_parts(page_size=1, pool_pages=3001)
    request = parts.request(1, list(range(3000)))
    parts.queues.run(request)
    request.go(Phase.RUNNING)
    granted = parts.pools.grant(request.owner, 3000, rows=1)
    assert granted is not None
    request.kv.pages, request.kv.req_pool_idx = granted.pages, granted.rows[0]
    parts.table.write(granted.rows[0], 0, granted.pages)
    assert check_books(parts.books, CheckLevel.FULL).is_clean
    parts.table.write(granted.rows[0], entry, [7777])
    (found,) = check_books(parts.books, CheckLevel.FULL).findings
    assert (found.law, found.message) == ("holding", "rid 1 (running): row 1 does not say what it holds")
