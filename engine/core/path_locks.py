"""Counts of who needs what of the prefix tree: pages of whole paths, windows and states of single nodes."""

from collections.abc import Callable

from engine.core.errors import InvariantViolation
from engine.core.ledger import Ledger
from engine.core.ownership import CACHED_KINDS, PoolKind
from engine.core.radix_node import Node, path_up

FULL = PoolKind.FULL
"""Looked up once: asking an enum for a member costs as much as a call."""


class PathLocks:
    """Keeps the lock counts of nodes and tells the ledger of units that become protected or are so no longer."""

    def __init__(self, ledger: Ledger, on_free: Callable[[PoolKind, Node], None]) -> None:
        """`on_free` is told of a node whose windows or state nobody needs any more."""
        self._ledger = ledger
        self._on_free = on_free
        self._idle = dict.fromkeys(CACHED_KINDS, 0)

    def idle_units(self, pool: PoolKind) -> int:
        """Protected units that only holders that give way have locked."""
        return self._idle[pool]

    def add(self, node: Node, locks: int = 0, idles: int = 0) -> None:
        """Changes the counts of the whole path to a node."""
        idle_change = 0
        for step in path_up(node):
            was_locked, was_idle = step.lock_count > 0, step.is_idle
            step.lock_count += locks
            step.idle_count += idles
            if not 0 <= step.idle_count <= step.lock_count:
                raise InvariantViolation(f"node {step.number}: {step.idle_count} idle of {step.lock_count} locks")
            is_locked = step.lock_count > 0
            idle_change += (step.is_idle - was_idle) * len(step.pages)
            if is_locked and not was_locked:
                self._ledger.protect(step.pages)
            elif was_locked and not is_locked:
                self._ledger.unprotect(step.pages)
        if idle_change:
            self._idle[FULL] += idle_change

    def use(self, pool: PoolKind, node: Node, locks: int = 0, idles: int = 0) -> None:
        """Changes the counts of one node's windows or state."""
        uses, units = node.uses(pool), node.units(pool)
        was_locked, was_idle = uses.locks > 0, uses.is_idle
        uses.locks += locks
        uses.idles += idles
        if not 0 <= uses.idles <= uses.locks:
            raise InvariantViolation(f"node {node.number}: {uses.idles} idle of {uses.locks} locks of {pool}")
        self._idle[pool] += (uses.is_idle - was_idle) * len(units)
        if uses.locks > 0 and not was_locked:
            self._ledger.protect(units, pool)
        elif was_locked and uses.locks == 0:
            self._ledger.unprotect(units, pool)
            self._on_free(pool, node)
