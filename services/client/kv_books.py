"""The books of a server, kept from its events alone: what everybody owns, and the terms of each pool."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from services.client.inspection import UnitOwner
from services.client.kv_events import FREE, KvBooksImage, KvEventInfo, KvItem, KvWhat, PoolImage
from services.client.pools import Pool, PoolStats

_CACHE, _QUARANTINED = "cache", "quarantined"


class KvBooksError(Exception):
    """An event does not fit what was told before it: something was lost, or somebody has told what is not so."""

    def __init__(self, sequence: int, problem: str) -> None:
        super().__init__(f"event {sequence}: {problem}")
        self.sequence = sequence
        self.problem = problem


class KvGapError(KvBooksError):
    """Events are missing, or came twice."""

    def __init__(self, sequence: int, expected: int) -> None:
        super().__init__(sequence, f"follows {expected - 1}; {expected} was to come")
        self.expected = expected


@dataclass(frozen=True, slots=True)
class KvTerms:
    """One pool, in units, as in `Pool`: available + evictable + protected + session_held + uncached = total."""

    total: int
    available: int
    evictable: int
    protected: int
    session_held: int
    uncached: int
    draining: int
    quarantined: int

    @classmethod
    def of(cls, pool: Pool) -> "KvTerms":
        """What the server says itself."""
        return cls(
            total=pool.total,
            available=pool.available,
            evictable=pool.evictable,
            protected=pool.protected,
            session_held=pool.session_held,
            uncached=pool.uncached,
            draining=pool.draining,
            quarantined=pool.quarantined,
        )


class KvBooks:
    """Begins with an image; then takes every item of the stream, in order. O(units) of each."""

    def __init__(self, image: KvBooksImage) -> None:
        self.log_id = image.log_id
        self.sequence = image.sequence
        """The last event that is in it."""
        self._pools = {pool.kind: _PoolBooks(pool) for pool in image.pools}

    def apply(self, item: KvItem) -> None:
        """Raises KvBooksError, KvGapError: then the books are of no use any more, but for what `sequence` says."""
        if isinstance(item, KvBooksImage):
            self.log_id, self.sequence = item.log_id, item.sequence
            self._pools = {pool.kind: _PoolBooks(pool) for pool in item.pools}
            return
        if item.sequence != self.sequence + 1:
            raise KvGapError(item.sequence, self.sequence + 1)
        pool = self._pools.get(item.pool)
        if pool is None:
            raise KvBooksError(item.sequence, f"there is no pool {item.pool}")
        pool.apply(item)
        self.sequence = item.sequence

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of pools, in the server's order."""
        return tuple(self._pools)

    def owner(self, kind: str, unit: int) -> UnitOwner:
        """Raises KeyError and IndexError for what there is not."""
        return self._pools[kind].owners[unit]

    def owners(self, kind: str) -> tuple[UnitOwner, ...]:
        """Unit 0, which is padding, included. Raises KeyError."""
        return tuple(self._pools[kind].owners)

    def image(self, kind: str) -> PoolImage:
        """All that is known of one pool. Raises KeyError."""
        pool = self._pools[kind]
        return PoolImage(kind, tuple(pool.owners), frozenset(pool.protected), frozenset(pool.draining))

    def terms(self, kind: str) -> KvTerms:
        """Raises KeyError."""
        return self._pools[kind].terms()

    def find_differences(self, stats: PoolStats) -> tuple[str, ...]:
        """What the server says otherwise, as in `full: available 12, but 13 by the events`; nothing when all is equal.

        The stats have to be of this log, and of `sequence`.
        """
        told = {pool.kind: KvTerms.of(pool) for pool in stats.pools}
        if set(told) != set(self._pools):
            return (f"pools {', '.join(sorted(told))}, but {', '.join(sorted(self._pools))} by the events",)
        found: list[str] = []
        for kind, terms in told.items():
            own = asdict(self.terms(kind))
            for name, count in asdict(terms).items():
                if count != own[name]:
                    found.append(f"{kind}: {name} {count}, but {own[name]} by the events")
        return tuple(found)


class _PoolBooks:
    """One pool."""

    def __init__(self, image: PoolImage) -> None:
        self.owners = list(image.owners)
        self.protected = set(image.protected)
        self.draining = set(image.draining)
        self._counts = Counter(owner.kind for owner in self.owners[1:])

    def terms(self) -> KvTerms:
        counts, num_protected = self._counts, len(self.protected)
        return KvTerms(
            total=len(self.owners) - 1 - counts[_QUARANTINED],
            available=counts[FREE.kind],
            evictable=counts[_CACHE] - num_protected,
            protected=num_protected,
            session_held=counts["session"],
            uncached=counts["request"],
            draining=len(self.draining),
            quarantined=counts[_QUARANTINED],
        )

    def apply(self, event: KvEventInfo) -> None:
        self._require_units(event)
        match event.what:
            case KvWhat.MOVED:
                self._move(event)
            case KvWhat.PROTECTED:
                self._require_owner(event, UnitOwner(_CACHE))
                _require_none(event, self.protected.intersection(event.units), "protected already")
                self.protected.update(event.units)
            case KvWhat.UNPROTECTED:
                _require_none(event, set(event.units) - self.protected, "not protected")
                self.protected.difference_update(event.units)
            case KvWhat.DRAINING:
                self._drain(event)
            case KvWhat.UNKNOWN:
                raise KvBooksError(event.sequence, "says what this client does not know")

    def _move(self, event: KvEventInfo) -> None:
        source, target = event.source, event.target
        assert source is not None, f"event {event.sequence} is a move without a source"
        assert target is not None, f"event {event.sequence} is a move without a target"
        self._require_owner(event, source)
        _require_none(event, self.protected.intersection(event.units), "protected, and can not move")
        for unit in event.units:
            self.owners[unit] = target
        self._counts[source.kind] -= len(event.units)
        self._counts[target.kind] += len(event.units)
        self.draining.difference_update(event.units)

    def _drain(self, event: KvEventInfo) -> None:
        assert event.source is not None, f"event {event.sequence} is draining without an owner"
        self._require_owner(event, event.source)
        _require_none(event, self.draining.intersection(event.units), "draining already")
        self.draining.update(event.units)

    def _require_units(self, event: KvEventInfo) -> None:
        if len(set(event.units)) != len(event.units):
            raise KvBooksError(event.sequence, f"names a unit of {event.pool} twice")
        wrong = [unit for unit in event.units if not 0 < unit < len(self.owners)]
        _require_none(event, wrong, "no unit of it")

    def _require_owner(self, event: KvEventInfo, owner: UnitOwner) -> None:
        for unit in event.units:
            if self.owners[unit] != owner:
                problem = f"{event.pool} {unit} is of {self.owners[unit]}, not of {owner}"
                raise KvBooksError(event.sequence, problem)


def _require_none(event: KvEventInfo, units: Iterable[int], problem: str) -> None:
    first = min(units, default=None)
    if first is not None:
        raise KvBooksError(event.sequence, f"{event.pool} {first} is {problem}")
