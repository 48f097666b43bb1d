"""The books unit by unit at one instant: what a replay of all events has to come to."""

from dataclasses import dataclass

from engine.core.books import Books
from engine.core.ownership import CACHED_KINDS, Owner, PoolKind


@dataclass(frozen=True, slots=True)
class PoolImage:
    """One pool. Unit 0 is padding and reads FREE."""

    pool: PoolKind
    owners: tuple[Owner, ...]
    protected: frozenset[int]
    """Units of the cache that somebody uses."""
    draining: frozenset[int]
    """Units that their owner gave up, while a plan in flight may touch them."""


@dataclass(frozen=True, slots=True)
class BooksImage:
    """All pools, as the events up to `seq` have made them."""

    seq: int
    pools: tuple[PoolImage, ...]


def take_image(books: Books, seq: int) -> BooksImage:
    """Owners by the ledger, locks by the tree. O(units)."""
    ledger = books.pools.ledger
    return BooksImage(
        seq,
        tuple(
            PoolImage(pool, ledger.owners(pool), _protected(books, pool), books.pools.draining_units(pool))
            for pool in ledger.pools
        ),
    )


def _protected(books: Books, pool: PoolKind) -> frozenset[int]:
    if pool not in CACHED_KINDS:
        return frozenset()
    return frozenset(unit for node in books.tree.nodes() if node.uses(pool).locks > 0 for unit in node.units(pool))
