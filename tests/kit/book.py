"""A second set of books: rebuilds who owns what from the event stream alone."""

from collections.abc import Iterable

from engine.core.config import CoreConfig
from engine.core.events import CoreEvent, Draining, KvMoved, Protected, StepAnswered, Unprotected
from engine.core.ids import StepNo
from engine.core.ownership import CACHE, CIRCULATING_KINDS, FREE, MOVES, Move, Owner, OwnerKind, PoolKind
from engine.core.snapshot import PoolBooks


class BookError(AssertionError):
    """The event stream contradicts itself."""


class Book:
    """Replays KvMoved, Protected, Unprotected and Draining, and shares no code with the ledger that emits them.

    Raises BookError where an event does not follow from those before it.
    """

    def __init__(self, pool_pages: int, num_rows: int, swa_pages: int = 0, state_slots: int = 0) -> None:
        """Sizes with the padding unit 0, as in `CoreConfig`."""
        sizes = {
            PoolKind.FULL: pool_pages,
            PoolKind.SWA: swa_pages,
            PoolKind.MAMBA: state_slots,
            PoolKind.ROWS: num_rows,
        }
        self._owners = {pool: [FREE] * size for pool, size in sizes.items() if size > 0}
        self._is_protected = {pool: [False] * size for pool, size in sizes.items()}
        self._drains: dict[PoolKind, dict[int, StepNo]] = {pool: {} for pool in sizes}
        self._answered = StepNo(0)

    @classmethod
    def of(cls, config: CoreConfig) -> "Book":
        """An empty book of a core's pools."""
        return cls(config.pool_pages, config.num_rows, config.swa_pages, config.state_slots)

    @property
    def pools(self) -> tuple[PoolKind, ...]:
        return tuple(self._owners)

    def owner(self, pool: PoolKind, unit: int) -> Owner:
        return self._owners[pool][unit]

    def owners(self, pool: PoolKind) -> tuple[Owner, ...]:
        """Of every unit, the padding one included, which is always free."""
        return tuple(self._owners[pool])

    def draining(self) -> set[Owner]:
        """Who has units that only a plan in flight keeps where they are."""
        return {
            self._owners[pool][unit]
            for pool, drains in self._drains.items()
            for unit, until in drains.items()
            if until > self._answered
        }

    def is_protected(self, unit: int, pool: PoolKind = PoolKind.FULL) -> bool:
        """Whether a unit of the cache is locked by some holder."""
        return self._is_protected[pool][unit]

    def owned(self, pool: PoolKind, owner: Owner) -> list[int]:
        """Units of one owner, ascending."""
        return [unit for unit, held_by in enumerate(self._owners[pool]) if unit > 0 and held_by == owner]

    def unused(self, pool: PoolKind) -> list[int]:
        """Units of the cache that nobody has locked, ascending."""
        is_protected = self._is_protected[pool]
        return [unit for unit in self.owned(pool, CACHE) if not is_protected[unit]]

    def replay(self, events: Iterable[CoreEvent]) -> None:
        """Takes events in the order of their numbers."""
        for event in events:
            match event:
                case KvMoved():
                    self._move(event)
                case Protected(pages, pool):
                    self._set_protected(pool, pages, protected=True)
                case Unprotected(pages, pool):
                    self._set_protected(pool, pages, protected=False)
                case Draining():
                    self._drain(event)
                case StepAnswered(step):
                    self._expect(step == self._answered + 1, f"step {step} answered after {self._answered}")
                    self._answered = step
                case _:
                    pass

    def terms(self, pool: PoolKind) -> PoolBooks:
        """The terms of the equation, counted unit by unit. O(units)."""
        owners = self._owners[pool][1:]
        kinds = [owner.kind for owner in owners]
        protected = sum(self._is_protected[pool])
        quarantined = kinds.count(OwnerKind.QUARANTINED)
        return PoolBooks(
            pool=pool,
            total=len(owners) - quarantined,
            available=kinds.count(OwnerKind.FREE),
            evictable=kinds.count(OwnerKind.CACHE) - protected,
            protected=protected,
            session_held=kinds.count(OwnerKind.SESSION),
            uncached=kinds.count(OwnerKind.REQUEST),
            draining=len(self._drains[pool]),
            quarantined=quarantined,
        )

    def _move(self, event: KvMoved) -> None:
        rule = MOVES[event.move]
        what = f"{event.move} of {event.pool} {event.pages} {event.source} → {event.target}"
        self._expect(event.source.kind in rule.sources, f"{what}: no such source")
        self._expect(event.target.kind is rule.target, f"{what}: no such target")
        may_have = (*CIRCULATING_KINDS[event.pool], OwnerKind.QUARANTINED)
        self._expect(event.target.kind in may_have, f"{what}: this pool has no such owner")
        self._expect(len(event.pages) > 0, f"{what}: nothing moved")
        owners = self._owners[event.pool]
        for unit in event.pages:
            self._expect(0 < unit < len(owners), f"{what}: no unit {unit}")
            self._expect(owners[unit] == event.source, f"{what}: {unit} belongs to {owners[unit]}")
            self._leave(unit, event, what)
            owners[unit] = event.target

    def _leave(self, unit: int, event: KvMoved, what: str) -> None:
        self._expect(not self._is_protected[event.pool][unit], f"{what}: page {unit} is locked")
        until = self._drains[event.pool].pop(unit, None)
        if event.move is not Move.QUARANTINE:
            self._expect(until is None or until <= self._answered, f"{what}: page {unit} drains until step {until}")

    def _set_protected(self, pool: PoolKind, units: tuple[int, ...], *, protected: bool) -> None:
        for unit in units:
            where = f"{pool} page {unit}"
            self._expect(self._owners[pool][unit].kind is OwnerKind.CACHE, f"lock of {where}: not cached")
            self._expect(self._is_protected[pool][unit] is not protected, f"{where}: protected={protected} told twice")
            self._is_protected[pool][unit] = protected

    def _drain(self, event: Draining) -> None:
        drains = self._drains[event.pool]
        for unit in event.pages:
            where, owner = f"{event.pool} page {unit}", self._owners[event.pool][unit]
            self._expect(owner == event.owner, f"{where} drains from {event.owner}, but belongs to {owner}")
            self._expect(unit not in drains, f"{where} told twice as draining")
            self._expect(event.until > self._answered, f"{where} drains until step {event.until}: answered already")
            drains[unit] = event.until

    @staticmethod
    def _expect(holds: bool, message: str) -> None:
        if not holds:
            raise BookError(message)
