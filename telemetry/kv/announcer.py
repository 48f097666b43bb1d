"""Turns changes of the prefix cache into events of the common format: hashes, groups, and sizes that readers take."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.core.ids import TOKEN_BYTES, unpack_ids
from engine.core.ownership import PoolKind
from telemetry.kv.prefix_index import Change, Emptied, Left, Stored, Whole
from telemetry.kv.wire_format import (
    MEDIUM,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    WireEvent,
    namespace_digest,
    page_digest,
    published_hash,
)

HASHES_MAX = 128
"""In one event: less than a millisecond of work."""


@dataclass(frozen=True, slots=True)
class Group:
    """How a pool is told apart; without names where there is one pool only, as single-group engines have it."""

    group_idx: int | None = None
    kind: str | None = None
    window: int | None = None


def groups_of(pools: Mapping[PoolKind, int], window: int | None) -> dict[PoolKind, Group]:
    """Of the pools that the cache owns units of. `window`: tokens, of the SWA pool."""
    kinds = {PoolKind.FULL: "full_attention", PoolKind.SWA: "sliding_window", PoolKind.MAMBA: "mamba"}
    named = [pool for pool in kinds if pools.get(pool)]
    if named == [PoolKind.FULL]:
        return {PoolKind.FULL: Group()}
    # Readers take a group with a window for one that is not the main one: only windows have it.
    return {
        pool: Group(place, kinds[pool], window if pool is PoolKind.SWA else None) for place, pool in enumerate(named)
    }


class Announcer:
    """Keeps the hash of each unit that was announced, so at most one a unit of the pools. For one thread."""

    def __init__(self, page_size: int, groups: Mapping[PoolKind, Group]) -> None:
        self._page_size = page_size
        self._page_bytes = page_size * TOKEN_BYTES
        self._groups = groups
        self._digests: dict[int, bytes] = {}
        """Of full pages."""
        self._hashes: dict[PoolKind, dict[int, int]] = {pool: {} for pool in groups}

    def events(self, change: Change) -> Iterator[WireEvent]:
        """Made one by one, as they are asked for. All of a change has to be asked for before the next is given."""
        match change:
            case Stored():
                yield from self._stored(change)
            case Left():
                yield from self._left(change)
            case Emptied():
                yield AllBlocksCleared()
            case Whole():
                self._forget()
                yield AllBlocksCleared()
                for stored in change.stored(HASHES_MAX):
                    yield from self._stored(stored)

    def _forget(self) -> None:
        self._digests.clear()
        for hashes in self._hashes.values():
            hashes.clear()

    def _stored(self, stored: Stored) -> Iterator[BlockStored]:
        if stored.parent is None:
            before = namespace_digest(stored.namespace)
        elif (before := self._digests.get(stored.parent)) is None:
            return  # a page in front is not in the cache any more: what is behind it can't be found either
        is_first = stored.parent is None
        for start in range(0, len(stored.units), HASHES_MAX):
            units, pages = stored.units[start : start + HASHES_MAX], stored.pages[start : start + HASHES_MAX]
            parent = None if before is None or is_first else published_hash(before)
            ids = stored.ids[start * self._page_bytes : (start + len(units)) * self._page_bytes]
            digests = self._chain(before, ids)
            before = digests[-1]
            hashes = [published_hash(digest) for digest in digests]
            self._hashes[stored.pool].update(zip(units, hashes, strict=True))
            if stored.pool is PoolKind.FULL:
                self._digests.update(zip(pages, digests, strict=True))
            yield self._block_stored(stored, hashes, parent, ids, is_first=is_first)
            is_first = False

    def _chain(self, before: bytes | None, ids: bytes) -> list[bytes]:
        digests: list[bytes] = []
        for start in range(0, len(ids), self._page_bytes):
            before = page_digest(before, ids[start : start + self._page_bytes])
            digests.append(before)
        return digests

    def _block_stored(
        self, stored: Stored, hashes: list[int], parent: int | None, ids: bytes, *, is_first: bool
    ) -> BlockStored:
        group = self._groups[stored.pool]
        salt = stored.namespace or None
        salted = [[salt], *[None] * (len(hashes) - 1)] if salt is not None and is_first else None
        return BlockStored(
            block_hashes=hashes,
            parent_block_hash=parent,
            token_ids=unpack_ids(ids).tolist(),
            block_size=self._page_size,
            lora_id=None,
            medium=MEDIUM,
            extra_keys=salted,
            group_idx=group.group_idx,
            kv_cache_spec_kind=group.kind,
            kv_cache_spec_sliding_window=group.window,
            cache_salt=salt,
        )

    def _left(self, left: Left) -> Iterator[BlockRemoved]:
        """The last ones first: so a reader never has a page without the one in front of it."""
        known = self._hashes[left.pool]
        hashes = [known.pop(unit) for unit in reversed(left.units) if unit in known]
        if left.pool is PoolKind.FULL:
            for unit in left.units:
                self._digests.pop(unit, None)
        for start in range(0, len(hashes), HASHES_MAX):
            yield BlockRemoved(
                block_hashes=hashes[start : start + HASHES_MAX],
                medium=MEDIUM,
                group_idx=self._groups[left.pool].group_idx,
            )
