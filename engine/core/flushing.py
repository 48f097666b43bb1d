"""Frees of the prefix tree what nobody uses."""

from engine.core.commands import Flushed
from engine.core.ledger import Ledger
from engine.core.ownership import OwnerKind, PoolKind
from engine.core.radix import RadixTree


def flush_tree(tree: RadixTree, ledger: Ledger, evictions_max: int | None = None) -> Flushed:
    """Evicts until nothing unlocked is left of any pool, or so often at most. O(what goes free)."""
    kinds = tree.evictable_kinds
    before = {pool: ledger.count(pool, OwnerKind.CACHE) for pool in kinds}
    evictions = 0
    for pool in kinds:
        while evictions != evictions_max and tree.evict(ledger.size(pool), pool):
            evictions += 1
    freed = {pool: before[pool] - ledger.count(pool, OwnerKind.CACHE) for pool in kinds}
    is_complete = all(tree.lru_use(pool) is None for pool in kinds)
    return Flushed(freed[PoolKind.FULL], freed.get(PoolKind.SWA, 0), freed.get(PoolKind.MAMBA, 0), is_complete)
