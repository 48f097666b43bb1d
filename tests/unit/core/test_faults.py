"""Faults planted on purpose: each is what it says, and the check takes it for that."""

import pytest

from engine.core.errors import Refusal, RefusalReason
from engine.core.faults import Fault, plant_fault
from engine.core.findings import CheckLevel, FindingKind
from engine.core.invariants import check_books
from engine.core.ownership import CACHE, FREE, Move, Owner, OwnerKind, PoolKind
from engine.core.radix_node import Gift
from tests.kit.core_parts import CoreParts, make_parts

REQUEST = Owner(OwnerKind.REQUEST, 1)


def used_parts() -> CoreParts:
    """Two pages in the tree, unlocked, and two that were given back."""
    parts = make_parts()
    request = parts.request(1, list(range(8)))
    granted = parts.pools.grant(request.owner, pages=4)
    assert granted is not None
    gift = Gift(granted.pages[:2])
    donated = parts.tree.donate(Move.DONATE, request.owner, "", None, bytes(request.ids), gift)
    assert donated.lock is not None
    parts.tree.unlock(donated.lock, 1)
    parts.pools.free_up(Move.RELEASE, PoolKind.FULL, granted.pages[2:], request.owner)
    return parts


@pytest.mark.parametrize("fault", Fault)
def test_plant_fault_when_no_page_was_ever_used_then_it_is_refused_and_nothing_changes(fault: Fault) -> None:
    parts = make_parts()
    with pytest.raises(Refusal) as refused:
        plant_fault(parts.books, fault)
    assert (refused.value.reason, refused.value.field) == (RefusalReason.FAULT_IMPOSSIBLE, "fault")
    assert check_books(parts.books, CheckLevel.FULL).is_clean


def test_plant_fault_when_it_is_a_leak_then_a_page_that_had_an_owner_is_nobodys() -> None:
    parts = used_parts()
    history = plant_fault(parts.books, Fault.LEAK)
    assert (history.owner, history.moves[0].source) == (FREE, REQUEST)
    (found,) = check_books(parts.books, CheckLevel.FULL).findings
    assert (found.kind, found.units) == (FindingKind.LEAK, (history.unit,))
    assert not check_books(parts.books, CheckLevel.BUSY).is_clean


def test_plant_fault_when_it_is_a_double_owner_then_a_cached_page_is_free_as_well() -> None:
    parts = used_parts()
    history = plant_fault(parts.books, Fault.DOUBLE_OWNER)
    assert history.owner == CACHE
    report = check_books(parts.books, CheckLevel.FULL)
    assert {finding.units for finding in report.conflicts} == {(history.unit,)}
    assert report.leaks == ()
    assert not check_books(parts.books, CheckLevel.BUSY).is_clean
