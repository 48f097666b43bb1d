"""Free stacks of each pool, all-or-nothing grants, and pages that drain until a plan in flight is answered."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine.core.errors import require
from engine.core.events import Draining, EventLog
from engine.core.ids import StepNo
from engine.core.ledger import Ledger
from engine.core.ownership import FREE, Move, Owner, OwnerKind, PoolKind
from engine.core.snapshot import PoolBooks


@dataclass(frozen=True, slots=True)
class Drain:
    """Pages of the full pool that `owner` gave up while plan `until`, not answered yet, may still touch them."""

    owner: Owner
    pages: tuple[int, ...]
    until: StepNo


class Pools:
    """The pools of one engine. Every change of owner passes through here, so that stacks and ledger can't part.

    Free units are handed out last-in first-out: deterministic, and warm in the device's cache.
    """

    def __init__(self, pool_pages: int, num_rows: int, log: EventLog) -> None:
        sizes = {PoolKind.FULL: pool_pages, PoolKind.ROWS: num_rows}
        self.ledger = Ledger(sizes, log)
        self._log = log
        self._stacks: dict[PoolKind, list[int]] = {kind: list(range(size - 1, 0, -1)) for kind, size in sizes.items()}
        self._draining: deque[Drain] = deque()
        self._answered = StepNo(0)

    def free(self, pool: PoolKind) -> int:
        return len(self._stacks[pool])

    def free_units(self, pool: PoolKind) -> tuple[int, ...]:
        """The free stack, bottom first: one of the tellings that the check compares."""
        return tuple(self._stacks[pool])

    @property
    def draining(self) -> tuple[Drain, ...]:
        return tuple(self._draining)

    @property
    def draining_pages(self) -> int:
        return sum(len(drain.pages) for drain in self._draining)

    def grant(self, owner: Owner, pages: int, rows: int = 0) -> tuple[list[int], list[int]] | None:
        """Takes `pages` and `rows` from the free stacks for a request: both in full, or None and nothing moved."""
        if pages > self.free(PoolKind.FULL) or rows > self.free(PoolKind.ROWS):
            return None
        return self._take(owner, PoolKind.FULL, pages), self._take(owner, PoolKind.ROWS, rows)

    def _take(self, owner: Owner, pool: PoolKind, count: int) -> list[int]:
        stack = self._stacks[pool]
        taken = [stack.pop() for _ in range(count)]
        self.ledger.move(Move.GRANT, pool, taken, FREE, owner)
        return taken

    def move(self, move: Move, pool: PoolKind, pages: Sequence[int], source: Owner, target: Owner) -> None:
        """A move between two holders. Raises InvariantViolation as `Ledger.move` does."""
        require(target.kind is not OwnerKind.FREE, f"{move}: free units go back through release or evict")
        self.ledger.move(move, pool, pages, source, target)

    def free_up(self, move: Move, pool: PoolKind, pages: Sequence[int], source: Owner) -> None:
        """A move to FREE: release or evict."""
        self.ledger.move(move, pool, pages, source, FREE)
        self._stacks[pool].extend(reversed(pages))

    def release_after(self, until: StepNo, pages: Sequence[int], owner: Owner) -> None:
        """Releases pages of the full pool once plan `until` is answered; at once when it already is."""
        if until <= self._answered:
            self.free_up(Move.RELEASE, PoolKind.FULL, pages, owner)
        elif pages:
            self._draining.append(Drain(owner, tuple(pages), until))
            self._log.emit(Draining(owner, tuple(pages), until))

    def answered(self, step: StepNo) -> None:
        """Plan `step` was answered: what drained for it is released."""
        self._answered = step
        still: deque[Drain] = deque()
        for drain in self._draining:
            if drain.until <= step:
                self.free_up(Move.RELEASE, PoolKind.FULL, drain.pages, drain.owner)
            else:
                still.append(drain)
        self._draining = still

    def books(self, pool: PoolKind, draining: int = 0) -> PoolBooks:
        """The terms of the equation, from counters alone: O(1). `draining` is only passed through."""
        ledger = self.ledger
        in_cache = ledger.count(pool, OwnerKind.CACHE)
        quarantined = ledger.count(pool, OwnerKind.QUARANTINED)
        protected = ledger.protected_pages if pool is PoolKind.FULL else 0
        return PoolBooks(
            pool=pool,
            total=ledger.size(pool) - 1 - quarantined,
            available=ledger.count(pool, OwnerKind.FREE),
            evictable=in_cache - protected,
            protected=protected,
            session_held=ledger.count(pool, OwnerKind.SESSION),
            uncached=ledger.count(pool, OwnerKind.REQUEST),
            draining=draining,
            quarantined=quarantined,
        )
