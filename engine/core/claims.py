"""Who lists each unit, against whom the ledger says it belongs to: one pass over a pool, unit by unit."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from engine.core.findings import PIECE_UNITS, Finding, FindingKind, Work
from engine.core.ledger import Claim, Ledger
from engine.core.ownership import Owner, OwnerKind, PoolKind

EXPLAINED_MAX = 3
"""Units of a finding whose history its message tells."""

LISTING_UNITS = 16
RUN_UNITS = 4
"""What a listing and a run of it cost beside its units: about as much as so many pages."""

_MORE = bytes((1, 2, 2))
"""Marks of a unit: in nobody's list, in one, in more. What a further listing makes of each."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Somebody lists the units of `runs` as `owner`'s. `law` is the check that a contradiction breaks."""

    law: str
    name: str
    owner: Owner
    runs: Iterable[Sequence[int]]
    """Looked at once."""


def cut(runs: Iterable[Sequence[int]]) -> Iterator[tuple[list[int], int]]:
    """The same units in pieces, small runs joined and none empty; with each its cost, at most two PIECE_UNITS."""
    piece: list[int] = []
    cost = 0
    for run in runs:
        for start in range(0, len(run), PIECE_UNITS):
            part = run[start : start + PIECE_UNITS]
            piece += part
            cost += len(part) + RUN_UNITS
            if cost >= PIECE_UNITS:
                yield piece, cost
                piece, cost = [], 0
    if piece:
        yield piece, cost


def check_claims(ledger: Ledger, pool: PoolKind, listings: Callable[[], Iterable[Listing]]) -> Iterator[Work]:
    """Every unit in circulation is in exactly one listing, and that is its owner's by the ledger.

    A unit in no listing is a leak, all else a conflict; padding and quarantined units are nobody's to list. `listings`
    gives all there are for this pool, each time that it is asked. O(units), at a few list accesses each.
    """
    marks = bytearray(ledger.size(pool))
    marks[0] = 1  # padding: nobody has to list it
    for listing in listings():
        yield from _check_listing(ledger, pool, listing, marks)
    yield from _check_marks(ledger, pool, listings, marks)


def _check_listing(ledger: Ledger, pool: PoolKind, listing: Listing, marks: bytearray) -> Iterator[Work]:
    """Whose the units are; and marks them as listed once more."""
    outside: list[int] = []
    wrong: list[int] = []
    claim = ledger.claims(pool).get(listing.owner)
    yield LISTING_UNITS
    for piece, cost in cut(listing.runs):
        units, beyond = within(piece, len(marks))
        outside += beyond
        wrong += not_of(ledger, pool, units, listing.owner, claim)
        for unit in units:
            marks[unit] = _MORE[marks[unit]]
        yield cost
    if outside:
        yield tell_outside(listing.law, listing.name, pool, outside)
    if wrong:
        yield tell_wrong(ledger, listing.law, listing.name, pool, listing.owner, wrong)


def within(units: list[int], size: int) -> tuple[list[int], list[int]]:
    """Those that a pool of `size` has and may give to somebody, and the others."""
    if not units or (min(units) > 0 and max(units) < size):
        return units, []
    return [unit for unit in units if 0 < unit < size], [unit for unit in units if not 0 < unit < size]


def not_of(ledger: Ledger, pool: PoolKind, units: list[int], owner: Owner, claim: Claim | None) -> list[int]:
    """Units that belong to another. First by the owner's `claim`, if it has one: as a rule that is theirs, each."""
    claims = ledger.claims_on(pool, units)
    if claim is not None and claim.owner == owner and claims.count(claim) == len(units):
        return []
    return [unit for unit, other in zip(units, claims, strict=True) if other.owner != owner]


def _check_marks(
    ledger: Ledger, pool: PoolKind, listings: Callable[[], Iterable[Listing]], marks: bytearray
) -> Iterator[Work]:
    """Units that were listed more than once, or never; and the ledger's counters, against its units one by one."""
    twice: list[int] = []
    lost: dict[Claim, list[int]] = {}
    counted: Counter[Claim] = Counter()
    for start in range(0, len(marks), PIECE_UNITS):
        piece = marks[start : start + PIECE_UNITS]
        claims = ledger.claims_in(pool, start, start + PIECE_UNITS)
        counted.update(claims)
        if 2 in piece:
            twice += (start + at for at, mark in enumerate(piece) if mark > 1)
        if 0 in piece:
            for at, mark in enumerate(piece):
                if not mark:
                    lost.setdefault(claims[at], []).append(start + at)
        yield len(piece)
    if twice:
        yield from _tell_double(ledger, pool, listings, twice)
    for claim, units in lost.items():
        if claim.owner.kind is not OwnerKind.QUARANTINED:
            yield tell_leak(ledger, pool, claim.owner, units)
    counted[ledger.claims_in(pool, 0, 1)[0]] -= 1  # padding
    yield from _recount(ledger, pool, counted)


def _tell_double(
    ledger: Ledger, pool: PoolKind, listings: Callable[[], Iterable[Listing]], twice: list[int]
) -> Iterator[Work]:
    names: dict[str, None] = {}
    doubled = frozenset(twice)
    for listing in listings():
        yield LISTING_UNITS
        for piece, cost in cut(listing.runs):
            if not doubled.isdisjoint(piece):
                names[listing.name] = None
            yield cost
    what = f"{len(twice)} units of {pool} are listed more than once, by {', '.join(names)}"
    yield Finding("holders", _tell(ledger, pool, what, twice), pool=pool, units=tuple(twice))


def _recount(ledger: Ledger, pool: PoolKind, counted: Counter[Claim]) -> Iterator[Work]:
    """The running counters, of each kind of owner and of each owner, against the units `counted` one by one."""
    kinds: Counter[OwnerKind] = Counter()
    claims = ledger.claims(pool)
    for claim, num_units in counted.items():
        kinds[claim.owner.kind] += num_units
        if num_units > 0 and claims.get(claim.owner) is not claim:
            yield Finding(
                "equation", f"{pool}: {num_units} units are in a claim of {claim.owner} that is void", pool=pool
            )
        yield LISTING_UNITS
    for owner, claim in claims.items():
        if claim.owner != owner or counted[claim] != claim.num_units:
            message = (
                f"{pool}: {counted[claim]} units belong to {claim.owner}, the claim of {owner} is of {claim.num_units}"
            )
            yield Finding("equation", message, pool=pool)
        yield LISTING_UNITS
    for kind, told in ledger.counts(pool).items():
        if kinds[kind] != told:
            message = f"{pool}: {kinds[kind]} units belong to {kind}, {told} are counted"
            yield Finding("equation", message, pool=pool)


def tell_outside(law: str, name: str, pool: PoolKind, units: Sequence[int]) -> Finding:
    told = tuple(units)
    return Finding(law, f"{name} lists {pool} {told}: padding, or no such", pool=pool, units=told)


def tell_wrong(ledger: Ledger, law: str, name: str, pool: PoolKind, owner: Owner, units: Sequence[int]) -> Finding:
    what = f"{name} lists {len(units)} of pool {pool}, as {owner}, that the ledger has as another's"
    return Finding(law, _tell(ledger, pool, what, units), pool=pool, units=tuple(units))


def tell_leak(ledger: Ledger, pool: PoolKind, owner: Owner, units: Sequence[int]) -> Finding:
    """`units`: all that nobody lists of those that the ledger has as this owner's."""
    law = "holders" if owner.kind in (OwnerKind.REQUEST, OwnerKind.SESSION) else "census"
    what = f"nobody lists {len(units)} of pool {pool} that the ledger has as {owner}"
    return Finding(law, _tell(ledger, pool, what, units), FindingKind.LEAK, pool, tuple(units))


def _tell(ledger: Ledger, pool: PoolKind, what: str, units: Sequence[int]) -> str:
    histories = " | ".join(str(ledger.explain(pool, unit)) for unit in units[:EXPLAINED_MAX])
    more = f" | and {len(units) - EXPLAINED_MAX} more" if len(units) > EXPLAINED_MAX else ""
    return f"{what}: {histories}{more}"
