"""The terms of one pool's equation, kept from the events alone."""

from collections.abc import Sequence

from engine.core.events import KvMoved
from engine.core.ownership import OwnerKind, PoolKind
from engine.core.snapshot import PoolBooks

FREE, REQUEST, SESSION = OwnerKind.FREE, OwnerKind.REQUEST, OwnerKind.SESSION
CACHE, QUARANTINED = OwnerKind.CACHE, OwnerKind.QUARANTINED


class PoolTerms:
    """Follows KvMoved, Protected, Unprotected and Draining of one pool. Trusts them: it counts, and checks nothing.

    Cost of an event: O(1), of Draining and of a move while pages drain: O(units).
    """

    def __init__(self, pool: PoolKind, size: int) -> None:
        """`size`: units of the pool, padding included; all of them free."""
        self._pool = pool
        self._circulating = size - 1
        self._counts = dict.fromkeys(OwnerKind, 0)
        self._counts[FREE] = size - 1
        self._protected = 0
        self._draining: set[int] = set()

    def move(self, event: KvMoved) -> None:
        counts, num_units = self._counts, len(event.pages)
        counts[event.source.kind] -= num_units
        counts[event.target.kind] += num_units
        if self._draining:
            self._draining.difference_update(event.pages)

    def lock(self, num_units: int) -> None:
        """So many more cache units are in use; fewer when it is below 0."""
        self._protected += num_units

    def drain(self, units: Sequence[int]) -> None:
        """These were given up. Their next move ends it."""
        self._draining.update(units)

    def books(self) -> PoolBooks:
        counts = self._counts
        return PoolBooks(
            pool=self._pool,
            total=self._circulating - counts[QUARANTINED],
            available=counts[FREE],
            evictable=counts[CACHE] - self._protected,
            protected=self._protected,
            session_held=counts[SESSION],
            uncached=counts[REQUEST],
            draining=len(self._draining),
            quarantined=counts[QUARANTINED],
        )
