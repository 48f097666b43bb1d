"""Free stacks of each pool, all-or-nothing grants, and pages that drain until a plan in flight is answered."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from engine.core.errors import InvariantViolation, require
from engine.core.events import Draining, EventLog
from engine.core.ids import StepNo
from engine.core.ledger import Ledger
from engine.core.ownership import FREE, QUARANTINED, Move, Owner, OwnerKind, PoolKind
from engine.core.snapshot import PoolBooks

FULL, SWA, MAMBA, ROWS, GRANT = PoolKind.FULL, PoolKind.SWA, PoolKind.MAMBA, PoolKind.ROWS, Move.GRANT
"""Looked up once: asking an enum for a member costs as much as a call."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Units that `owner` gave up while plan `until`, not answered yet, may still touch them."""

    owner: Owner
    pages: tuple[int, ...]
    until: StepNo
    pool: PoolKind = FULL


class Grant(NamedTuple):
    """What was granted at once, from each pool."""

    pages: list[int]
    rows: list[int]
    swa_pages: list[int]
    """As many as `pages`, where there is such a pool."""
    states: list[int]


class Pools:
    """The pools of one engine. Every change of owner passes through here, so that stacks and ledger can't part.

    Free units are handed out last-in first-out: deterministic, and warm in the device's cache.
    """

    def __init__(
        self, pool_pages: int, num_rows: int, log: EventLog, *, swa_pages: int = 0, state_slots: int = 0
    ) -> None:
        """Units of each pool, padding included; 0 where there is no such pool."""
        sizes = {FULL: pool_pages, SWA: swa_pages, MAMBA: state_slots, ROWS: num_rows}
        sizes = {kind: size for kind, size in sizes.items() if size > 0}
        self.ledger = Ledger(sizes, log)
        self.has_swa = swa_pages > 0
        self.has_states = state_slots > 0
        self._log = log
        self._stacks: dict[PoolKind, list[int]] = {kind: list(range(size - 1, 0, -1)) for kind, size in sizes.items()}
        self._to_release: deque[Drain] = deque()
        self._draining: dict[PoolKind, set[int]] = {kind: set() for kind in sizes}
        self._num_draining = 0
        self._answered = StepNo(0)

    def free(self, pool: PoolKind) -> int:
        return len(self._stacks[pool])

    def free_units(self, pool: PoolKind) -> Sequence[int]:
        """The free stack itself, bottom first: one of the tellings that the check compares. Not to be changed."""
        return self._stacks[pool]

    @property
    def stacks(self) -> Iterable[Sequence[int]]:
        """All free stacks, in the order of the ledger's pools. Not to be changed."""
        return self._stacks.values()

    def in_circulation(self, pool: PoolKind) -> int:
        """Units that can be granted at all: without padding, and without those in quarantine."""
        return self.ledger.size(pool) - 1 - self.ledger.count(pool, OwnerKind.QUARANTINED)

    @property
    def draining(self) -> tuple[Drain, ...]:
        """Pages that nobody but these lists holds: they are released when their plan is answered."""
        return tuple(self._to_release)

    def num_draining(self, pool: PoolKind) -> int:
        """Units told to be draining and not moved since, whoever holds them. O(1)."""
        return len(self._draining[pool])

    def draining_units(self, pool: PoolKind) -> frozenset[int]:
        """The units that `num_draining` counts."""
        return frozenset(self._draining[pool])

    def grant(self, owner: Owner, pages: int, rows: int = 0, states: int = 0) -> Grant | None:
        """Takes units from the free stacks for a request: all of them, or None and nothing moved.

        `pages` are taken from each pool of pages: the SWA pool grows with the full one, and shrinks by itself.
        """
        stacks = self._stacks
        if pages > len(stacks[FULL]) or rows > len(stacks[ROWS]):
            return None
        if (self.has_swa and pages > len(stacks[SWA])) or (states and states > len(stacks[MAMBA])):
            return None
        return Grant(
            self._take(owner, FULL, pages),
            self._take(owner, ROWS, rows) if rows else [],
            self._take(owner, SWA, pages) if self.has_swa else [],
            self._take(owner, MAMBA, states) if states else [],
        )

    def _take(self, owner: Owner, pool: PoolKind, count: int) -> list[int]:
        if not count:
            return []
        stack = self._stacks[pool]
        taken = stack[-count:][::-1]
        self.ledger.move(GRANT, pool, taken, FREE, owner)
        del stack[-count:]
        return taken

    def move(self, move: Move, pool: PoolKind, pages: Sequence[int], source: Owner, target: Owner) -> None:
        """A move between two holders. Raises InvariantViolation as `Ledger.move` does."""
        if target.kind is OwnerKind.FREE:
            raise InvariantViolation(f"{move}: free units go back through release or evict")
        self.ledger.move(move, pool, pages, source, target)
        self._end_draining(pool, pages)

    def free_up(self, move: Move, pool: PoolKind, pages: Sequence[int], source: Owner) -> None:
        """A move to FREE: release or evict."""
        if not pages:
            return  # maybe there is no such pool
        self.ledger.move(move, pool, pages, source, FREE)
        self._stacks[pool].extend(reversed(pages))
        self._end_draining(pool, pages)

    # Draining

    def drain(self, owner: Owner, pages: Sequence[int], until: StepNo, pool: PoolKind = FULL) -> None:
        """Tells that the holder gave up these units of a pool, and keeps them until plan `until` is answered.

        The holder still lists them, and moves them itself. Tells nothing of units that were told before and have not
        moved since, nor when `until` is answered already. Raises InvariantViolation when a unit is not `owner`'s.
        """
        if until <= self._answered or not pages:
            return
        told = self._draining[pool]
        fresh = tuple(page for page in pages if page not in told) if told else tuple(pages)
        if not fresh:
            return
        for page in fresh:
            held = self.ledger.owner(pool, page)
            if held is not owner and held != owner:
                raise InvariantViolation(f"{owner} drains {pool} page {page}, which belongs to {held}")
        told.update(fresh)
        self._num_draining += len(fresh)
        self._log.emit(Draining(owner, fresh, until, pool))

    def release_after(self, until: StepNo, pages: Sequence[int], owner: Owner, pool: PoolKind = FULL) -> None:
        """Releases units of a pool once plan `until` is answered; at once when it already is.

        The caller lists them no longer.
        """
        if until <= self._answered:
            self.free_up(Move.RELEASE, pool, pages, owner)
        elif pages:
            self._to_release.append(Drain(owner, tuple(pages), until, pool))
            self.drain(owner, pages, until, pool)

    def answered(self, step: StepNo) -> None:
        """Plan `step` was answered: what drained for it in these lists is released."""
        self._answered = step
        still: deque[Drain] = deque()
        for drain in self._to_release:
            if drain.until <= step:
                self.free_up(Move.RELEASE, drain.pool, drain.pages, drain.owner)
            else:
                still.append(drain)
        self._to_release = still

    def _end_draining(self, pool: PoolKind, pages: Iterable[int]) -> None:
        if self._num_draining:
            told = self._draining[pool]
            before = len(told)
            told.difference_update(pages)
            self._num_draining -= before - len(told)

    # What went wrong

    def quarantine(self, pool: PoolKind, units: Iterable[int]) -> None:
        """Takes units out of circulation, whoever the ledger says they belong to.

        Only for units that neither a free stack nor a holder nor the tree lists: nothing else is changed here.
        """
        owners = self.ledger.owners(pool)
        for owner, group in _by_owner(units, owners):
            self.ledger.move(Move.QUARANTINE, pool, group, owner, QUARANTINED)
            self._end_draining(pool, group)

    def lose_free_unit(self, pool: PoolKind) -> int | None:
        """For fault injection only: takes a FREE unit that somebody had before off its stack, and gives it to nobody.

        Returns the unit, the one freed last; None, and nothing changed, when there is none.
        """
        stack = self._stacks[pool]
        for at in reversed(range(len(stack))):
            if self.ledger.has_moved(pool, stack[at]):
                return stack.pop(at)
        return None

    def stack_held_unit(self, pool: PoolKind, unit: int) -> None:
        """For fault injection only: puts a unit that somebody has under the free stack, so that two claim it."""
        require(self.ledger.owner(pool, unit).kind is not OwnerKind.FREE, f"{pool} {unit} is free: one claims it")
        self._stacks[pool].insert(0, unit)

    # Terms

    def books(self, pool: PoolKind) -> PoolBooks:
        """The terms of the equation, from counters alone: O(1)."""
        ledger = self.ledger
        in_cache, protected = ledger.count(pool, OwnerKind.CACHE), ledger.protected(pool)
        return PoolBooks(
            pool=pool,
            total=self.in_circulation(pool),
            available=ledger.count(pool, OwnerKind.FREE),
            evictable=in_cache - protected,
            protected=protected,
            session_held=ledger.count(pool, OwnerKind.SESSION),
            uncached=ledger.count(pool, OwnerKind.REQUEST),
            draining=self.num_draining(pool),
            quarantined=ledger.count(pool, OwnerKind.QUARANTINED),
        )


def _by_owner(units: Iterable[int], owners: Sequence[Owner]) -> Iterator[tuple[Owner, list[int]]]:
    """Units grouped by their owner, in the order of kinds and names, ascending inside."""
    ordered = sorted(set(units), key=lambda unit: (owners[unit].kind, owners[unit].name, unit))
    for owner, group in groupby(ordered, key=lambda unit: owners[unit]):
        yield owner, list(group)
