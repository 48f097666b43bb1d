"""Frees all of the prefix tree that nobody uses."""

from engine.core.commands import Flushed
from engine.core.ledger import Ledger
from engine.core.ownership import OwnerKind, PoolKind
from engine.core.radix import RadixTree


def flush_tree(tree: RadixTree, ledger: Ledger) -> Flushed:
    """Evicts until nothing unlocked is left of any pool. O(what goes free)."""
    kinds = tree.evictable_kinds
    before = {pool: ledger.count(pool, OwnerKind.CACHE) for pool in kinds}
    for pool in kinds:
        while tree.evict(ledger.size(pool), pool):
            pass
    freed = {pool: before[pool] - ledger.count(pool, OwnerKind.CACHE) for pool in kinds}
    return Flushed(freed[PoolKind.FULL], freed.get(PoolKind.SWA, 0), freed.get(PoolKind.MAMBA, 0))
