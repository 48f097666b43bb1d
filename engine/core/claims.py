"""Who lists each unit, against whom the ledger says it belongs to: one pass over a pool, unit by unit."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from engine.core.findings import Finding, FindingKind
from engine.core.ledger import Ledger
from engine.core.ownership import Owner, OwnerKind, PoolKind

EXPLAINED_MAX = 3
"""Units of a finding whose history its message tells."""

_MORE = bytes((1, 2, 2))
"""Marks of a unit: in nobody's list, in one, in more. What a further claim makes of each."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Somebody lists `units` as `owner`'s. `law` is the check that a contradiction breaks."""

    law: str
    name: str
    owner: Owner
    units: Sequence[int]


def check_claims(ledger: Ledger, pool: PoolKind, claims: Sequence[Claim]) -> Iterator[Finding]:
    """Every unit in circulation is in exactly one claim, and that is its owner's by the ledger.

    A unit in no claim is a leak, all else a conflict; padding and quarantined units are nobody's to claim. `claims` are
    all there are for this pool. O(units), at a few list accesses each.
    """
    owners = ledger.owners(pool)
    marks = bytearray(len(owners))
    marks[0] = 1  # padding: nobody has to list it
    for claim in claims:
        units = claim.units
        if units and (min(units) <= 0 or max(units) >= len(owners)):
            outside = tuple(unit for unit in units if not 0 < unit < len(owners))
            yield Finding(
                claim.law, f"{claim.name} lists {pool} {outside}: padding, or no such", pool=pool, units=outside
            )
            units = [unit for unit in units if 0 < unit < len(owners)]
        if wrong := _not_of(owners, units, claim.owner):
            what = f"{claim.name} lists {len(wrong)} of pool {pool}, as {claim.owner}, that the ledger has as another's"
            yield Finding(claim.law, _tell(ledger, pool, what, wrong), pool=pool, units=wrong)
        for unit in units:
            marks[unit] = _MORE[marks[unit]]
    if marks.count(2):
        yield _find_double(ledger, pool, claims, marks)
    if marks.count(0) != ledger.count(pool, OwnerKind.QUARANTINED):
        yield from _find_leaks(ledger, pool, owners, marks)
    yield from _recount(ledger, pool, owners)


def _not_of(owners: tuple[Owner, ...], units: Sequence[int], owner: Owner) -> tuple[int, ...]:
    """Units that belong to another. By identity first: equal owners are mostly one object."""
    if not units:
        return ()
    known = owners[units[0]] if owners[units[0]] == owner else owner
    others = [unit for unit in units if owners[unit] is not known]
    return tuple(unit for unit in others if owners[unit] != owner)


def _find_double(ledger: Ledger, pool: PoolKind, claims: Sequence[Claim], marks: bytearray) -> Finding:
    twice = tuple(unit for unit, mark in enumerate(marks) if mark > 1)
    names = [claim.name for claim in claims if not set(twice).isdisjoint(claim.units)]
    what = f"{len(twice)} units of {pool} are listed more than once, by {', '.join(names)}"
    return Finding("holders", _tell(ledger, pool, what, twice), pool=pool, units=twice)


def _find_leaks(ledger: Ledger, pool: PoolKind, owners: tuple[Owner, ...], marks: bytearray) -> Iterator[Finding]:
    lost: defaultdict[Owner, list[int]] = defaultdict(list)
    for unit, mark in enumerate(marks):
        if not mark:
            lost[owners[unit]].append(unit)
    for owner, units in lost.items():
        if owner.kind is not OwnerKind.QUARANTINED:
            law = "holders" if owner.kind in (OwnerKind.REQUEST, OwnerKind.SESSION) else "census"
            what = f"nobody lists {len(units)} of pool {pool} that the ledger has as {owner}"
            yield Finding(law, _tell(ledger, pool, what, units), FindingKind.LEAK, pool, tuple(units))


def _recount(ledger: Ledger, pool: PoolKind, owners: tuple[Owner, ...]) -> Iterator[Finding]:
    """The running counters, against the owners one by one."""
    counted = Counter(map(attrgetter("kind"), owners))
    counted[owners[0].kind] -= 1  # padding
    for kind, told in ledger.counts(pool).items():
        if counted[kind] != told:
            message = f"{pool}: {counted[kind]} units belong to {kind}, {told} are counted"
            yield Finding("equation", message, pool=pool)


def _tell(ledger: Ledger, pool: PoolKind, what: str, units: Sequence[int]) -> str:
    histories = " | ".join(str(ledger.explain(pool, unit)) for unit in units[:EXPLAINED_MAX])
    more = f" | and {len(units) - EXPLAINED_MAX} more" if len(units) > EXPLAINED_MAX else ""
    return f"{what}: {histories}{more}"
