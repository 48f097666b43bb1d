"""Checks of the prefix tree: its links and keys, its lock counts, and that what can be evicted would be found."""

from collections import Counter
from collections.abc import Iterator

from engine.core.books import LOOK_UNITS, NODE_UNITS, Books
from engine.core.findings import Finding, Work
from engine.core.ids import TOKEN_BYTES
from engine.core.ownership import PoolKind
from engine.core.radix_node import Lock, Node, Uses, path_up

Tallies = dict[PoolKind, dict[int, Uses]]
"""Pool → number of a node → the live locks that there are on what it has of the pool."""


def check_tree(books: Books) -> Iterator[Work]:
    """Links, keys, and lock counts that are exactly the live locks on what each node has."""
    held: Tallies = {pool: {} for pool in books.tree.evictable_kinds}
    for _, _, kv in books.holders():
        yield NODE_UNITS
        if kv.lock is not None:
            yield from _tally(held, kv.lock)
    idle: Counter[PoolKind] = Counter()
    protected: Counter[PoolKind] = Counter()
    for node in books.tree.nodes():
        yield from check_node(node, books.page_size)
        for pool, locks in held.items():
            counted, found = node.uses(pool), locks.get(node.number, Uses())
            if counted != found:
                message = (
                    f"node {node.number}: {counted.locks} locks ({counted.idles} idle) of {pool} counted, "
                    f"{found.locks} ({found.idles}) held"
                )
                yield Finding("tree", message)
            num_units = len(node.units(pool))
            idle[pool] += num_units if counted.is_idle else 0
            protected[pool] += num_units if counted.locks > 0 else 0
        yield NODE_UNITS
    for pool in held:
        if idle[pool] != books.tree.idle_units(pool):
            message = f"{idle[pool]} of {pool} are locked by idle slots only, {books.tree.idle_units(pool)} are counted"
            yield Finding("tree", message)
        if protected[pool] != books.pools.ledger.protected(pool):
            message = (
                f"{protected[pool]} of {pool} in the tree are locked, {books.pools.ledger.protected(pool)} are counted"
            )
            yield Finding("census", message, pool=pool)


def _tally(held: Tallies, lock: Lock) -> Iterator[Work]:
    """Adds one live lock: to the pages of its whole path, the windows at its end, the state at its very end."""
    for node in path_up(lock.node):
        _count(held[PoolKind.FULL], node, lock)
        yield NODE_UNITS
    for node, _ in lock.window_nodes():
        _count(held[PoolKind.SWA], node, lock)
    if lock.has_state:
        _count(held[PoolKind.MAMBA], lock.node, lock)


def _count(locks: dict[int, Uses], node: Node, lock: Lock) -> None:
    uses = locks.setdefault(node.number, Uses())
    uses.locks += 1
    uses.idles += lock.is_idle


def check_node(node: Node, page_size: int) -> Iterator[Finding]:
    """Its key is as long as its pages, its windows are for all of them or none, and its parent finds it by its key."""
    page_bytes = page_size * TOKEN_BYTES
    if not node.pages or len(node.key) != len(node.pages) * page_bytes:
        yield Finding("tree", f"node {node.number}: {len(node.key)} bytes of key for {len(node.pages)} pages")
    if len(node.swa) not in (0, len(node.pages)):
        yield Finding("tree", f"node {node.number}: {len(node.swa)} SWA pages beside {len(node.pages)} pages")
    if node.parent is None or node.parent.children.get(node.key[:page_bytes]) is not node:
        yield Finding("tree", f"node {node.number}: its parent does not know it")


def check_lines(books: Books) -> Iterator[Work]:
    """Every node that could give up units of a pool is in line to do so."""
    for pool in books.tree.evictable_kinds:
        offered: set[int | None] = set()
        for number in books.tree.offered(pool):
            offered.add(number)
            yield LOOK_UNITS
        for node in books.tree.nodes():
            is_due = bool(node.units(pool)) and node.uses(pool).locks == 0
            if pool is PoolKind.FULL:
                is_due = is_due and not node.children
            if is_due and node.number not in offered:
                yield Finding("reclaimable", f"node {node.number} could give up {pool}, but would not be found")
            yield NODE_UNITS
