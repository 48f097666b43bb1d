"""What the cache holds and what can be used of it, told from the device's cells and from moves: no tree, no locks."""

from collections.abc import Callable, Iterable, Sequence

from engine.core.config import CoreConfig
from engine.core.events import KvMoved
from engine.core.ownership import Owner, OwnerKind, PoolKind
from tests.kit.book import Book
from tests.kit.shadow_device import ShadowDevice
from tests.kit.shadow_model import EMPTY_DIGEST, ShadowModel
from tests.sim.records import expect

FULL, SWA, MAMBA = PoolKind.FULL, PoolKind.SWA, PoolKind.MAMBA
CONTENTS = (FULL, SWA, MAMBA)
Key = tuple[str, int]
"""A namespace, and the digest of a history: of all tokens up to the end of a page, or up to a state."""
NamespaceOf = Callable[[Owner], str]


class Contents:
    """The cache as a set of histories whose last page, window's page or state is there.

    A prefix can be used where all its pages are there, those that its window reaches into, and a state at its end.
    """

    def __init__(
        self, config: CoreConfig, model: ShadowModel, device: ShadowDevice, book: Book, namespace_of: NamespaceOf
    ) -> None:
        self._config = config
        self._model = model
        self._device = device
        self._book = book
        self._namespace_of = namespace_of
        self._units: dict[PoolKind, dict[Key, int]] = {pool: {} for pool in CONTENTS}
        self._keys: dict[PoolKind, dict[int, Key]] = {pool: {} for pool in CONTENTS}
        self._fresh: set[tuple[PoolKind, Key]] = set()

    def begin(self) -> None:
        """Another call of the core: what comes into the cache from now on may have come too late for an admission."""
        self._fresh.clear()

    def take(self, event: KvMoved) -> list[str]:
        """Follows units into the cache and out of it. Returns marks of what that shows."""
        if event.pool not in CONTENTS:
            return []
        marks: list[str] = []
        for unit in event.pages:
            if event.source.kind is OwnerKind.CACHE:
                key = self._keys[event.pool].pop(unit)
                del self._units[event.pool][key]
                marks += ["tombstone"] if event.pool is SWA and key in self._units[FULL] else []
            elif event.target.kind is OwnerKind.CACHE:
                self._check_state(event.pool, unit)
                key = (self._namespace_of(event.source), self._device.digest_behind(event.pool, unit))
                is_known = event.pool is SWA and key in self._units[FULL] and (FULL, key) not in self._fresh
                marks += ["revived"] if is_known else []
                self._units[event.pool][key] = unit
                self._keys[event.pool][unit] = key
                self._fresh.add((event.pool, key))
        return marks

    def _check_state(self, pool: PoolKind, unit: int) -> None:
        """Only states a whole number of checkpoint intervals on are kept: others would fill the pool in no time."""
        if pool is MAMBA:
            interval, length = checkpoint_interval(self._config), self._device.state_len(unit)
            expect(bool(length) and (length or 1) % interval == 0, "cache", f"a state behind {length} tokens is cached")

    def longest(self, namespace: str, ids: Sequence[int], *, with_fresh: bool = True) -> int:
        """Tokens, in whole pages, of the longest prefix of `ids` that can be used from the cache."""
        page_size, window = self._config.page_size, self._config.window
        digest, best, swa_from = EMPTY_DIGEST, 0, 0
        for stop in range(page_size, len(ids) + 1, page_size):
            for position in range(stop - page_size, stop):
                digest = self._model.extend(digest, ids[position], position)
            key = (namespace, digest)
            if not self._has(FULL, key, with_fresh=with_fresh):
                break
            if window is not None and not self._has(SWA, key, with_fresh=with_fresh):
                swa_from = stop // page_size
            if window is not None and swa_from > first_seen(stop, window) // page_size:
                continue
            if self._config.state_slots and not self._has(MAMBA, key, with_fresh=with_fresh):
                continue
            best = stop
        return best

    def _has(self, pool: PoolKind, key: Key, *, with_fresh: bool) -> bool:
        return key in self._units[pool] and (with_fresh or (pool, key) not in self._fresh)

    def held(self, owner: Owner, namespace: str, ids: Sequence[int]) -> "Held":
        """What a holder can use of the KV of `ids`."""
        digests = [EMPTY_DIGEST]
        for position, token_id in enumerate(ids):
            digests.append(self._model.extend(digests[-1], token_id, position))
        own = {
            pool: set(self._device.digests(pool, self._book.owned(pool, owner)))
            for pool in CONTENTS
            if pool in self._book.pools
        }
        return Held(self._config, namespace, digests, own, self._units, self._book)


class Held:
    """A holder's own units and the cache's, along one history."""

    def __init__(
        self,
        config: CoreConfig,
        namespace: str,
        digests: Sequence[int],
        own: dict[PoolKind, set[int]],
        cached: dict[PoolKind, dict[Key, int]],
        book: Book,
    ) -> None:
        """`digests`: behind each of the first tokens, from none on."""
        self._config = config
        self._namespace = namespace
        self._digests = digests
        self._own = own
        self._cached = cached
        self._book = book

    def _places(self, length: int, first_position: int = 0) -> Iterable[int]:
        """Where each page ends that the tokens from `first_position` to `length` are on."""
        page_size = self._config.page_size
        first = first_position // page_size
        return (min(length, stop) for stop in range((first + 1) * page_size, length + page_size, page_size))

    def _has_own(self, pool: PoolKind, stop: int) -> bool:
        return self._digests[stop] in self._own[pool]

    def _has_cached(self, pool: PoolKind, stop: int, *, is_locked: bool = False) -> bool:
        unit = self._cached[pool].get((self._namespace, self._digests[stop]))
        return unit is not None and (not is_locked or self._book.is_protected(unit, pool))

    def covers(self, length: int, *, is_locked: bool = True) -> bool:
        """Whether a turn could go on behind the first `length` tokens. `is_locked`: of the cache only what is kept."""

        def has(pool: PoolKind, stop: int) -> bool:
            return self._has_own(pool, stop) or self._has_cached(pool, stop, is_locked=is_locked)

        return self._is_whole(length, has)

    def _is_whole(self, length: int, has: Callable[[PoolKind, int], bool]) -> bool:
        """Whether all that is looked back to from behind `length` tokens is there, by what `has` takes for that."""
        window = self._config.window
        if not all(has(FULL, stop) for stop in self._places(length)):
            return False
        if window is not None and not all(has(SWA, stop) for stop in self._places(length, first_seen(length, window))):
            return False
        return length == 0 or not self._config.state_slots or has(MAMBA, length)

    def most(self, limit: int) -> int:
        """No more than this can be left of it when it is cut to `limit` tokens."""
        return next((length for length in range(limit, 0, -1) if self.covers(length, is_locked=False)), 0)

    def own_states(self, limit: int) -> list[int]:
        """Lengths up to `limit` whose states are its own."""
        return [length for length in range(1, limit + 1) if self._has_own(MAMBA, length)]

    def least(self, limit: int, reach: int | None) -> int:
        """At least this is left of it when it is cut to `limit` tokens: what needs its own only, or the cache only.

        `reach`: so many tokens it has gone on to without a cut. Where the window behind them begins in the cache's
        pages it may still use those windows besides.
        """
        page_size, window = self._config.page_size, self._config.window
        tree_len = 0
        while tree_len + page_size < len(self._digests) and not self._has_own(FULL, tree_len + page_size):
            if not self._has_cached(FULL, tree_len + page_size, is_locked=True):
                break
            tree_len += page_size

        has_windows_of_lock = False
        if reach is not None and window is not None:
            border = reach // page_size * page_size
            has_windows_of_lock = first_seen(border, window) // page_size * page_size < tree_len

        def has(pool: PoolKind, stop: int) -> bool:
            if stop > tree_len or pool is MAMBA:
                return self._has_own(pool, stop)
            return (pool is FULL or has_windows_of_lock) and self._has_cached(pool, stop, is_locked=True)

        for length in range(limit, 0, -1):
            is_of_tree = length <= tree_len and length % page_size == 0
            if (
                self._is_whole(length, self._has_cached)
                if is_of_tree
                else length > tree_len and self._is_whole(length, has)
            ):
                return length
        return 0


def checkpoint_interval(config: CoreConfig) -> int:
    """Tokens between states of one history that may be cached: whole pages."""
    return -(-config.state_interval // config.page_size) * config.page_size


def first_seen(length: int, window: int) -> int:
    """The first position that the token behind `length` tokens attends to: of `window`, its own is one."""
    return max(0, length - (window - 1))
