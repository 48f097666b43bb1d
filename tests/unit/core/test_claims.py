"""Who lists what: one pass tells leaks from conflicts, unit by unit."""

from dataclasses import dataclass

import pytest

from engine.core.claims import Listing, check_claims, cut
from engine.core.events import EventLog
from engine.core.findings import PIECE_UNITS, Finding, FindingKind, findings_of
from engine.core.ledger import Ledger
from engine.core.ownership import CACHE, FREE, QUARANTINED, Move, Owner, OwnerKind, PoolKind

FULL = PoolKind.FULL
ONE = Owner(OwnerKind.REQUEST, 1)
TWO = Owner(OwnerKind.REQUEST, 2)


def make_ledger() -> Ledger:
    """Pages 1 and 2 are request 1's, 3 request 2's, 4 and 5 the cache's, 6 and 7 free."""
    ledger = Ledger({FULL: 8}, EventLog())
    ledger.follow(ONE, "trace-one")
    ledger.move(Move.GRANT, FULL, [1, 2], FREE, ONE)
    ledger.move(Move.GRANT, FULL, [3, 4, 5], FREE, TWO)
    ledger.move(Move.DONATE, FULL, [4, 5], TWO, CACHE)
    return ledger


def claims(
    stack: list[int] | None = None, tree: list[int] | None = None, one: list[int] | None = None
) -> list[Listing]:
    """What everybody rightly lists, except where something else is given."""
    return [
        Listing("census", "the free stack", FREE, ([6, 7] if stack is None else stack,)),
        Listing("census", "the tree", CACHE, ([4, 5] if tree is None else tree,)),
        Listing("holders", "rid 1", Owner(OwnerKind.REQUEST, 1), ([1, 2] if one is None else one,)),
        Listing("holders", "rid 2", TWO, ((3,),)),
    ]


def check(claimed: list[Listing], ledger: Ledger | None = None) -> list[Finding]:
    return list(findings_of(check_claims(ledger or make_ledger(), FULL, lambda: claimed)))


def test_check_claims_when_each_lists_its_own_then_nothing_is_found() -> None:
    assert check(claims()) == []


@pytest.mark.parametrize(
    ("claimed", "law", "units", "owner"),
    [
        (claims(stack=[6]), "census", (7,), "free"),
        (claims(stack=[]), "census", (6, 7), "free"),
        (claims(tree=[5]), "census", (4,), "cache"),
        (claims(one=[1]), "holders", (2,), "request:1"),
        (claims(one=[]), "holders", (1, 2), "request:1"),
    ],
)
def test_check_claims_when_nobody_lists_units_then_it_is_one_leak_of_their_owner(
    claimed: list[Listing], law: str, units: tuple[int, ...], owner: str
) -> None:
    (found,) = check(claimed)
    assert (found.kind, found.law, found.pool, found.units) == (FindingKind.LEAK, law, FULL, units)
    assert f"has as {owner}" in found.message


def test_check_claims_when_units_of_two_owners_leak_then_there_is_a_finding_for_each() -> None:
    found = check(claims(stack=[6], one=[2]))
    assert {finding.units: finding.kind for finding in found} == {(1,): FindingKind.LEAK, (7,): FindingKind.LEAK}


@dataclass(frozen=True, slots=True)
class Conflict:
    claimed: list[Listing]
    units: tuple[int, ...]
    said: str


CONFLICTS = {
    "held_page_is_stacked": Conflict(
        claims(stack=[6, 7, 2]), (2,), "the free stack lists 1 of pool full, as free, that"
    ),
    "free_page_is_held": Conflict(claims(one=[1, 2, 6]), (6,), "rid 1 lists 1 of pool full, as request:1, that"),
    "anothers_page_is_held": Conflict(claims(one=[1, 2, 3]), (3,), "belongs to request:2: grant free→request:2"),
    "listed_twice_by_one": Conflict(claims(one=[1, 2, 2]), (2,), "listed more than once, by rid 1"),
    "listed_thrice_by_one": Conflict(claims(one=[1, 2, 2, 2]), (2,), "listed more than once, by rid 1"),
    "listed_by_two": Conflict(claims(one=[1, 2, 3]), (3,), "listed more than once, by rid 1, rid 2"),
    "padding": Conflict(claims(stack=[6, 7, 0]), (0,), "padding, or no such"),
    "below_the_pool": Conflict(claims(one=[1, 2, -3]), (-3,), "padding, or no such"),
    "past_the_pool": Conflict(claims(one=[1, 2, 8]), (8,), "padding, or no such"),
}


@pytest.mark.parametrize("conflict", CONFLICTS.values(), ids=CONFLICTS.keys())
def test_check_claims_when_lists_contradict_each_other_then_it_is_a_conflict_that_names_units_and_owners(
    conflict: Conflict,
) -> None:
    found = check(conflict.claimed)
    assert {finding.kind for finding in found} == {FindingKind.CONFLICT}
    assert any(finding.units == conflict.units and conflict.said in finding.message for finding in found)


def test_check_claims_when_an_equal_leak_and_double_claim_cancel_out_then_both_are_found() -> None:
    found = check(claims(stack=[6, 6]))
    assert {finding.kind: finding.units for finding in found} == {FindingKind.CONFLICT: (6,), FindingKind.LEAK: (7,)}


def test_check_claims_when_a_claim_is_wrong_then_the_message_tells_where_the_unit_was_and_on_whose_trace() -> None:
    messages = [finding.message for finding in check(claims(stack=[6, 7, 1]))]
    assert any("full 1 belongs to request:1: grant free→request:1 step=0 trace_id=trace-one" in it for it in messages)


def test_check_claims_when_units_are_quarantined_then_nobody_has_to_list_them_and_nobody_may() -> None:
    ledger = make_ledger()
    ledger.move(Move.QUARANTINE, FULL, [7], FREE, QUARANTINED)
    assert check(claims(stack=[6]), ledger) == []
    found = check(claims(stack=[6, 7]), ledger)
    assert {(finding.kind, finding.units) for finding in found} >= {(FindingKind.CONFLICT, (7,))}
    assert not any(finding.kind is FindingKind.LEAK for finding in found)


class Miscounting(Ledger):
    """Forgets one of the cache's pages in its counters."""

    def counts(self, pool: PoolKind) -> dict[OwnerKind, int]:
        told = dict(super().counts(pool))
        told[OwnerKind.CACHE] -= 1
        return told


def test_check_claims_when_a_counter_is_wrong_then_the_recount_says_so() -> None:
    ledger = Miscounting({FULL: 4}, EventLog())
    ledger.move(Move.GRANT, FULL, [1], FREE, ONE)
    ledger.move(Move.DONATE, FULL, [1], ONE, CACHE)
    (found,) = check(
        [Listing("census", "the free stack", FREE, ([3, 2],)), Listing("census", "the tree", CACHE, ([1],))], ledger
    )
    assert (found.law, found.kind) == ("equation", FindingKind.CONFLICT)
    assert "1 units belong to cache, 0 are counted" in found.message


def test_check_claims_when_a_claim_counts_units_that_it_has_not_then_it_says_whose() -> None:
    ledger = make_ledger()
    ledger.claims(FULL)[ONE].num_units = 5
    (found,) = check(claims(), ledger)
    assert (found.law, found.kind) == ("equation", FindingKind.CONFLICT)
    assert found.message == "full: 2 units belong to request:1, the claim of request:1 is of 5"


def test_check_claims_when_an_owner_has_two_claims_then_one_is_void() -> None:
    ledger = make_ledger()
    (void,) = ledger.claims_on(FULL, [3])
    void.owner = ONE
    found = check([listing for listing in claims(one=[1, 2, 3]) if listing.name != "rid 2"], ledger)
    assert "full: 1 units are in a claim of request:1 that is void" in [finding.message for finding in found]


def test_cut_when_runs_are_of_any_size_then_the_units_are_the_same_and_no_piece_is_large() -> None:
    runs = [range(3), range(3, 3), range(3, 5000), *([unit] for unit in range(5000, 6000))]
    pieces = list(cut(runs))
    assert [unit for piece, _ in pieces for unit in piece] == list(range(6000))
    assert all(0 < len(piece) <= cost < 2 * PIECE_UNITS for piece, cost in pieces)
