"""The ledger: who owns each unit of each pool, and the only code that changes it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from engine.core.errors import InvariantViolation, require
from engine.core.events import EventLog, KvMoved, PrefixStored, Protected, Unprotected
from engine.core.ids import StepNo
from engine.core.ownership import CIRCULATING_KINDS, FREE, MOVES, Move, MoveRule, Owner, OwnerKind, PoolKind
from engine.core.provenance import HandOvers, Provenance, UnitHistory

_NAMED = (OwnerKind.REQUEST, OwnerKind.SESSION)


@dataclass(slots=True, eq=False)
class Claim:
    """All that one owner has of one pool. Each unit points to its claim, which changes hands as a whole in O(1)."""

    owner: Owner
    num_units: int = 0
    handed_over: HandOvers = ()


class Ledger:
    """Owner of every unit, where it was before, and one counter per (pool, owner kind).

    Unit 0 of each pool is padding: it belongs to nobody and is in no counter. Cost of a move: O(units moved), but
    O(1) for one of everything that an owner has to one that has nothing: the claim of these units changes its name.
    """

    def __init__(self, sizes: Mapping[PoolKind, int], log: EventLog) -> None:
        """`sizes`: units of each pool, padding included."""
        self._log = log
        self._claims: dict[PoolKind, dict[Owner, Claim]] = {
            pool: {FREE: Claim(FREE, size - 1)} for pool, size in sizes.items()
        }
        self._held: dict[PoolKind, list[Claim]] = {
            pool: [self._claims[pool][FREE]] * size for pool, size in sizes.items()
        }
        self._counts: dict[PoolKind, dict[OwnerKind, int]] = {
            pool: {kind: size - 1 if kind is OwnerKind.FREE else 0 for kind in OwnerKind}
            for pool, size in sizes.items()
        }
        self._tallies = tuple((pool, size, self._counts[pool]) for pool, size in sizes.items())
        self._protected = dict.fromkeys(sizes, 0)
        self._provenance = Provenance(sizes)

    def protected(self, pool: PoolKind) -> int:
        """Units of the cache whose lock count is above 0."""
        return self._protected[pool]

    @property
    def pools(self) -> tuple[PoolKind, ...]:
        return tuple(self._held)

    @property
    def num_moves(self) -> int:
        """How often units changed owner so far. Nothing moved between two readings that are equal."""
        return self._provenance.num_moves

    def size(self, pool: PoolKind) -> int:
        """Units of the pool, padding included."""
        return len(self._held[pool])

    def owner(self, pool: PoolKind, page: int) -> Owner:
        return self._held[pool][page].owner

    def owners(self, pool: PoolKind) -> tuple[Owner, ...]:
        """The owner of every unit, padding included (which reads FREE, and is nobody's). O(units)."""
        return tuple(map(attrgetter("owner"), self._held[pool]))

    def claims(self, pool: PoolKind) -> Mapping[Owner, Claim]:
        """Everybody who has, or had, something of a pool: a live view, not a copy. For checks, as are the next two."""
        return self._claims[pool]

    def claims_in(self, pool: PoolKind, start: int, stop: int) -> list[Claim]:
        """The claims that the units from `start` to before `stop` belong to, padding included. O(units)."""
        return self._held[pool][start:stop]

    def claims_on(self, pool: PoolKind, units: Iterable[int]) -> list[Claim]:
        """The claims that these units, all of the pool, belong to. O(units)."""
        return list(map(self._held[pool].__getitem__, units))

    def count(self, pool: PoolKind, kind: OwnerKind) -> int:
        """Units that owners of this kind hold, from the running counter."""
        return self._counts[pool][kind]

    def counts(self, pool: PoolKind) -> Mapping[OwnerKind, int]:
        """The running counters of a pool: a live view, not a copy."""
        return self._counts[pool]

    @property
    def tallies(self) -> tuple[tuple[PoolKind, int, Mapping[OwnerKind, int]], ...]:
        """Of each pool its size and its running counters, live and in the order of the kinds: no name is looked up."""
        return self._tallies

    # Provenance

    def set_step(self, step: StepNo) -> None:
        """Moves from now on belong to plan `step`, the newest one."""
        self._provenance.step = step

    def follow(self, owner: Owner, trace_id: str) -> None:
        """Moves to or from `owner` carry this trace id from now on; an empty one is not kept."""
        self._provenance.follow(owner, trace_id)

    def unfollow(self, owner: Owner) -> None:
        """The owner holds nothing any more, and its trace id need not be kept. Idempotent."""
        self._provenance.unfollow(owner)

    def has_moved(self, pool: PoolKind, unit: int) -> bool:
        """Whether somebody ever had the unit."""
        return self._provenance.has_moved(pool, unit)

    def explain(self, pool: PoolKind, unit: int) -> UnitHistory:
        """Who has a unit, and how it got there. Raises IndexError for a unit that does not exist."""
        if not 0 <= unit < self.size(pool):
            raise IndexError(f"{pool} has no unit {unit}: it has {self.size(pool)}")
        claim = self._held[pool][unit]
        return UnitHistory(pool, unit, claim.owner, self._provenance.moves(pool, unit, claim.handed_over))

    # Moves

    def move(self, move: Move, pool: PoolKind, pages: Sequence[int], source: Owner, target: Owner) -> None:
        """Gives `pages` from `source` to `target`, all or none. Emits KvMoved.

        Raises InvariantViolation, moving nothing, when the table forbids the move, a page is not `source`'s or is
        named twice.
        """
        if not pages:
            return
        rule = MOVES[move]
        _require_legal(move, rule, pool, source, target)
        held, claims = self._held[pool], self._claims[pool]
        claim, units = claims.get(source), tuple(pages)
        provenance = self._provenance
        trace_id = provenance.trace_of(source, target)
        if claim is not None and target not in claims and _is_whole(held, units, claim):
            claim.handed_over = provenance.hand_over(rule, source, target, trace_id, claim.handed_over)
            claim.owner = target
            claims[target] = claims.pop(source)
        else:
            if claim is None or not _all_belong(held, units, claim):
                raise InvariantViolation(_name_wrong(held, move, pool, units, source))
            taker = claims.get(target)
            if taker is None:
                taker = claims[target] = Claim(target)
            provenance.record(pool, rule, source, target, units, trace_id, claim.handed_over)
            for unit in units:
                held[unit] = taker
            claim.num_units -= len(units)
            taker.num_units += len(units)
            if claim.num_units == 0 and source.kind in _NAMED:
                del claims[source]
        counts = self._counts[pool]
        counts[source.kind] -= len(units)
        counts[target.kind] += len(units)
        self._log.emit(KvMoved(pool, move, source, target, units, provenance.step, trace_id))

    def tell_stored(self, stored: PrefixStored) -> None:
        """What units that came to the cache stand for."""
        self._log.emit(stored)

    # Locks

    def protect(self, pages: Sequence[int], pool: PoolKind = PoolKind.FULL) -> None:
        """The lock count of these units of the cache went from 0 to 1."""
        self._protected[pool] += len(pages)
        self._log.emit(Protected(tuple(pages), pool))

    def unprotect(self, pages: Sequence[int], pool: PoolKind = PoolKind.FULL) -> None:
        """The lock count of these units of the cache went from 1 to 0."""
        self._protected[pool] = left = self._protected[pool] - len(pages)
        require(left >= 0, f"{-left} more units of {pool} unlocked than locked")
        self._log.emit(Unprotected(tuple(pages), pool))


def _require_legal(move: Move, rule: MoveRule, pool: PoolKind, source: Owner, target: Owner) -> None:
    """No `require` here: it would build its message for every move."""
    if source.kind not in rule.sources:
        raise InvariantViolation(f"{move} of {pool} from {source}: only from {rule.sources}")
    if target.kind is not rule.target:
        raise InvariantViolation(f"{move} of {pool} to {target}: only to {rule.target}")
    if target.kind not in CIRCULATING_KINDS[pool] and target.kind is not OwnerKind.QUARANTINED:
        raise InvariantViolation(f"{move}: a unit of {pool} can not belong to {target.kind}")


def _is_whole(held: list[Claim], units: tuple[int, ...], claim: Claim) -> bool:
    """Whether a claim of a request or session goes as a whole. O(1): its count, and its first and last unit.

    That each unit between them is the claim's is left to the full check.
    """
    if claim.num_units != len(units) or claim.owner.kind not in _NAMED:
        return False
    first, last = units[0], units[-1]
    return 0 < first < len(held) and 0 < last < len(held) and held[first] is claim and held[last] is claim


def _all_belong(held: list[Claim], units: tuple[int, ...], claim: Claim) -> bool:
    """Whether each unit exists, is named once and is the claim's."""
    if min(units) <= 0 or max(units) >= len(held) or len(set(units)) != len(units):
        return False
    return list(map(held.__getitem__, units)).count(claim) == len(units)


def _name_wrong(held: list[Claim], move: Move, pool: PoolKind, units: tuple[int, ...], source: Owner) -> str:
    for unit in units:
        if not 0 < unit < len(held):
            return f"{move}: {pool} has no page {unit}"
        if held[unit].owner != source:
            return f"{move}: {pool} page {unit} belongs to {held[unit].owner}, not to {source}"
    return f"{move}: {pool} pages {units} name one twice"
