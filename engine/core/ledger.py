"""The ledger: who owns each unit of each pool, and the only code that changes it."""

from collections.abc import Mapping, Sequence

from engine.core.errors import InvariantViolation, require
from engine.core.events import EventLog, KvMoved, Protected, Unprotected
from engine.core.ownership import CIRCULATING_KINDS, FREE, MOVES, Move, Owner, OwnerKind, PoolKind


class Ledger:
    """Owner of every unit, and one counter per (pool, owner kind).

    Unit 0 of each pool is padding: it belongs to nobody and is in no counter. Cost of a move: O(units moved).
    """

    def __init__(self, sizes: Mapping[PoolKind, int], log: EventLog) -> None:
        """`sizes`: units of each pool, padding included."""
        self._log = log
        self._owners: dict[PoolKind, list[Owner]] = {pool: [FREE] * size for pool, size in sizes.items()}
        self._counts: dict[PoolKind, dict[OwnerKind, int]] = {
            pool: {kind: size - 1 if kind is OwnerKind.FREE else 0 for kind in OwnerKind}
            for pool, size in sizes.items()
        }
        self._protected_pages = 0

    @property
    def protected_pages(self) -> int:
        """Cache pages of the full pool whose lock count is above 0."""
        return self._protected_pages

    @property
    def pools(self) -> tuple[PoolKind, ...]:
        return tuple(self._owners)

    def size(self, pool: PoolKind) -> int:
        """Units of the pool, padding included."""
        return len(self._owners[pool])

    def owner(self, pool: PoolKind, page: int) -> Owner:
        return self._owners[pool][page]

    def count(self, pool: PoolKind, kind: OwnerKind) -> int:
        """Units that owners of this kind hold, from the running counter."""
        return self._counts[pool][kind]

    def move(self, move: Move, pool: PoolKind, pages: Sequence[int], source: Owner, target: Owner) -> None:
        """Gives `pages` from `source` to `target`, all or none. Emits KvMoved.

        Raises InvariantViolation, moving nothing, when the table forbids the move or a page is not `source`'s.
        """
        if not pages:
            return
        rule = MOVES[move]
        require(source.kind in rule.sources, f"{move} of {pool} from {source}: only from {rule.sources}")
        require(target.kind is rule.target, f"{move} of {pool} to {target}: only to {rule.target}")
        circulates = target.kind is OwnerKind.QUARANTINED or target.kind in CIRCULATING_KINDS[pool]
        require(circulates, f"{move}: a unit of {pool} can not belong to {target.kind}")
        owners = self._owners[pool]
        kind, name, size = source.kind, source.name, len(owners)
        for page in pages:  # no `require` here: it would build its message for every page of a long session
            if not 0 < page < size:
                raise InvariantViolation(f"{move}: {pool} has no page {page}")
            held = owners[page]
            if held.kind is not kind or held.name != name:
                raise InvariantViolation(f"{move}: {pool} page {page} belongs to {held}, not to {source}")
        for page in pages:
            owners[page] = target
        counts = self._counts[pool]
        counts[source.kind] -= len(pages)
        counts[target.kind] += len(pages)
        self._log.emit(KvMoved(pool, move, source, target, tuple(pages)))

    def protect(self, pages: Sequence[int]) -> None:
        """The lock count of these cache pages went from 0 to 1."""
        self._protected_pages += len(pages)
        self._log.emit(Protected(tuple(pages)))

    def unprotect(self, pages: Sequence[int]) -> None:
        """The lock count of these cache pages went from 1 to 0."""
        self._protected_pages -= len(pages)
        require(self._protected_pages >= 0, f"{-self._protected_pages} more pages unlocked than locked")
        self._log.emit(Unprotected(tuple(pages)))
