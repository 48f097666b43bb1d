"""The radix prefix tree over pages: `probe` (read-only), `lock`, `donate`, `evict`."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.core.errors import InvariantViolation, require
from engine.core.ids import TOKEN_BYTES
from engine.core.ownership import CACHE, Move, Owner, PoolKind
from engine.core.pools import Pools

HEAP_SLACK = 64


@dataclass(slots=True, eq=False)
class Node:
    """A run of whole pages behind its parent. `key` holds the token ids of exactly `pages`, as int32 bytes.

    `lock_count` counts the holders whose path runs through here, `idle_count` those of them that give way under
    pressure (slots between turns). A node is reclaimable when the two are equal, and then so is everything below it.
    """

    number: int
    key: bytes
    pages: list[int]
    parent: "Node | None"
    children: dict[bytes, "Node"] = field(default_factory=dict)
    lock_count: int = 0
    idle_count: int = 0
    last_use: int = 0
    namespace: str | None = None
    """Of a root only."""

    @property
    def is_reclaimable(self) -> bool:
        return self.lock_count == self.idle_count

    @property
    def is_idle(self) -> bool:
        """Locked, and by holders that give way only."""
        return self.lock_count > 0 and self.is_reclaimable


@dataclass(frozen=True, slots=True)
class Match:
    """What a probe found: the path ends `used_pages` into `node`. Valid until the tree changes."""

    node: Node
    used_pages: int
    num_pages: int
    """Pages from the root to there."""


@dataclass(slots=True, eq=False)
class Lock:
    """A holder's right to a path from the root to the end of `node`. Given back exactly once."""

    node: Node
    is_idle: bool = False
    is_live: bool = True

    def pages(self) -> list[int]:
        """Pages of the path in order: O(depth + pages)."""
        runs = [node.pages for node in path_up(self.node)]
        return [page for run in reversed(runs) for page in run]


def path_up(node: Node) -> Iterator[Node]:
    """The node and those above it, the root left out."""
    while node.parent is not None:
        yield node
        node = node.parent


def shared_pages(left: bytes, right: bytes, page_bytes: int) -> int:
    """Leading whole pages that two keys share. Compares real ids, page by page only where the keys part."""
    length = min(len(left), len(right))
    length -= length % page_bytes
    low, high = 0, length // page_bytes
    if left[:length] == right[:length]:
        return high
    while high - low > 1:  # [0, low) pages are equal, [0, high) are not: bisect with memcmp
        middle = (low + high) // 2
        if left[low * page_bytes : middle * page_bytes] == right[low * page_bytes : middle * page_bytes]:
            low = middle
        else:
            high = middle
    return low


class RadixTree:
    """One tree a namespace, sharing one pool. Every page in it belongs to CACHE in the ledger.

    Eviction takes unlocked leaves, least recently used first, from a heap with lazy deletion: its cost doesn't depend
    on the number of leaves.
    """

    def __init__(self, page_size: int, pools: Pools) -> None:
        self._page_bytes = page_size * TOKEN_BYTES
        self._page_size = page_size
        self._pools = pools
        self._roots: dict[str, Node] = {}
        self._numbers = 0
        self._num_nodes = 0
        self._idle_pages = 0
        self._heap: list[tuple[int, int, Node]] = []
        self._uses = 0

    @property
    def idle_pages(self) -> int:
        """Protected pages that only slots between turns lock: they become evictable when these are demoted."""
        return self._idle_pages

    def next_use(self) -> int:
        """The tree's own clock of uses: grows by one with each call."""
        self._uses += 1
        return self._uses

    def nodes(self) -> Iterator[Node]:
        """Every node, parents first, roots left out. For checks. O(1) a node, none looked at before it is asked for."""
        for root in reversed(self._roots.values()):
            stack = [reversed(root.children.values())]
            while stack:
                node = next(stack[-1], None)
                if node is None:
                    stack.pop()
                    continue
                yield node
                stack.append(reversed(node.children.values()))

    def roots(self) -> tuple[Node, ...]:
        """One a namespace, without pages. For checks."""
        return tuple(self._roots.values())

    def offered(self) -> Iterator[int | None]:
        """For each entry of the heap the number of the node that `evict` would find there, None where it is stale.

        For checks.
        """
        return (entry[1] if self._is_current(entry) else None for entry in self._heap)

    # Reading

    def probe(self, namespace: str, key: bytes) -> Match | None:
        """The longest path whose ids equal the first whole pages of `key`; None when not even one page does.

        Changes nothing. O(len(key)) in memcmp, O(depth) in steps.
        """
        node = self._roots.get(namespace)
        if node is None:
            return None
        at, used = 0, 0
        while at + self._page_bytes <= len(key):
            child = node.children.get(key[at : at + self._page_bytes])
            if child is None:
                break
            node = child
            if key.startswith(child.key, at):  # compared in place: the usual case, and slices would be copies
                used = len(child.pages)
                at += len(child.key)
                continue
            used = shared_pages(child.key, key[at : at + len(child.key)], self._page_bytes)
            at += used * self._page_bytes
            break
        return Match(node, used, at // self._page_bytes) if at else None

    def pinned_by(self, match: Match) -> int:
        """Pages that would stop being reclaimable if `match` were locked. Changes nothing. O(depth)."""
        if not match.node.is_reclaimable:
            return 0  # nor is anything above it
        above = sum(len(node.pages) for node in path_up(match.node) if node.is_reclaimable)
        return above - len(match.node.pages) + match.used_pages

    def pinned_by_lock(self, lock: Lock) -> int:
        """Pages of an idle lock's path that would stop being reclaimable if it were not idle. O(depth)."""
        return sum(len(node.pages) for node in path_up(lock.node) if node.is_reclaimable)

    def lru_use(self) -> int | None:
        """Last use of the leaf that `evict` would take next; None when there is none."""
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    # Locks

    def lock(self, match: Match) -> Lock:
        """Locks the path of a match, splitting its last node when the path ends inside it."""
        node = match.node
        if match.used_pages < len(node.pages):
            node = self._split(node, match.used_pages)
        self._add(node, locks=1)
        return Lock(node)

    def unlock(self, lock: Lock, last_use: int) -> None:
        """Gives a path back; what becomes unlocked counts as used at `last_use`, or later where it already was."""
        require(lock.is_live, f"node {lock.node.number}: its lock was given back before")
        self.set_idle(lock, False)
        lock.is_live = False
        for node in path_up(lock.node):
            node.last_use = max(node.last_use, last_use)
        self._add(lock.node, locks=-1)
        self._offer(lock.node)

    def shorten(self, lock: Lock, num_pages: int, last_use: int) -> Lock:
        """Trades a lock for one of the first `num_pages` pages of its path, at least one and fewer than it has."""
        nodes = list(path_up(lock.node))
        at, used = 0, 0
        while used < num_pages:
            at -= 1
            used += len(nodes[at].pages)
        node = nodes[at]
        if used > num_pages:
            node = self._split(node, len(node.pages) - (used - num_pages))
        self._add(node, locks=1)
        self.unlock(lock, last_use)
        return Lock(node)

    def set_idle(self, lock: Lock, is_idle: bool) -> None:
        """Says whether the holder of the lock gives way under pressure."""
        if lock.is_idle != is_idle:
            lock.is_idle = is_idle
            self._add(lock.node, idles=1 if is_idle else -1)

    def _add(self, node: Node, locks: int = 0, idles: int = 0) -> None:
        for step in path_up(node):
            was_locked, was_idle = step.lock_count > 0, step.is_idle
            step.lock_count += locks
            step.idle_count += idles
            if not 0 <= step.idle_count <= step.lock_count:
                raise InvariantViolation(f"node {step.number}: {step.idle_count} idle of {step.lock_count} locks")
            is_locked = step.lock_count > 0
            self._idle_pages += (step.is_idle - was_idle) * len(step.pages)
            if is_locked and not was_locked:
                self._pools.ledger.protect(step.pages)
            elif was_locked and not is_locked:
                self._pools.ledger.unprotect(step.pages)

    # Growing

    def donate(
        self, move: Move, owner: Owner, namespace: str, lock: Lock | None, key: bytes, pages: list[int]
    ) -> tuple[Lock | None, list[int]]:
        """Takes `owner`'s pages for `key`, whose first tokens `lock` covers and whose others are in `pages`.

        Pages whose ids the tree already has are duplicates: they stay `owner`'s, who releases them and uses the
        tree's instead. Returns the lock of the whole key, in place of the given one (None for an empty key), and the
        duplicates. Moves the others from `owner` to CACHE by `move`.
        """
        assert len(key) % self._page_bytes == 0, f"{len(key)} bytes of key are not whole pages"
        at = len(key) - len(pages) * self._page_bytes
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(0, b"", [], None, namespace=namespace)
        node = lock.node if lock is not None else root
        duplicates: list[int] = []
        while at < len(key):
            child = node.children.get(key[at : at + self._page_bytes])
            if child is None:
                fresh = pages[len(duplicates) :]
                self._pools.move(move, PoolKind.FULL, fresh, owner, CACHE)
                node = self._attach(node, key[at:], fresh)
                break
            used = shared_pages(child.key, key[at : at + len(child.key)], self._page_bytes)
            node = child if used == len(child.pages) else self._split(child, used)
            duplicates.extend(pages[len(duplicates) : len(duplicates) + used])
            at += used * self._page_bytes
        if node is root:
            return None, duplicates
        self._add(node, locks=1)
        if lock is not None:
            self.unlock(lock, 0)
        return Lock(node), duplicates

    def _attach(self, parent: Node, key: bytes, pages: list[int]) -> Node:
        self._numbers += 1
        self._num_nodes += 1
        node = Node(self._numbers, key, list(pages), parent)
        parent.children[key[: self._page_bytes]] = node
        return node

    def _split(self, node: Node, used: int) -> Node:
        """Cuts a node after `used` pages. The lower part keeps its identity, so locks that end there stay right."""
        assert 0 < used < len(node.pages), f"node {node.number}: split at {used} of {len(node.pages)}"
        assert node.parent is not None, "the root has no pages"
        cut = used * self._page_bytes
        upper = self._attach(node.parent, node.key[:cut], node.pages[:used])
        upper.lock_count, upper.idle_count, upper.last_use = node.lock_count, node.idle_count, node.last_use
        node.key, node.pages, node.parent = node.key[cut:], node.pages[used:], upper
        upper.children[node.key[: self._page_bytes]] = node
        return upper

    # Shrinking

    def evict(self, num_pages: int) -> int:
        """Frees up to `num_pages` pages, from the end of the least recently used unlocked leaf.

        Returns how many; 0 when there is no such leaf.
        """
        self._drop_stale()
        if not self._heap:
            return 0
        node = self._heap[0][2]
        taken = node.pages[-num_pages:]
        if len(taken) == len(node.pages):
            heapq.heappop(self._heap)
            self._detach(node)
        else:
            del node.pages[-num_pages:]
            node.key = node.key[: len(node.pages) * self._page_bytes]
        self._pools.free_up(Move.EVICT, PoolKind.FULL, taken, CACHE)
        return len(taken)

    def _detach(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None, "the root is never evicted"
        del parent.children[node.key[: self._page_bytes]]
        node.parent = None
        self._num_nodes -= 1
        if parent.namespace is not None and not parent.children:
            del self._roots[parent.namespace]
        self._offer(parent)

    def _offer(self, node: Node) -> None:
        """Puts a node on the heap if it could be evicted now."""
        if node.parent is not None and not node.children and node.lock_count == 0:
            heapq.heappush(self._heap, (node.last_use, node.number, node))
            if len(self._heap) > 2 * self._num_nodes + HEAP_SLACK:
                self._heap = list({entry[1]: entry for entry in self._heap if self._is_current(entry)}.values())
                heapq.heapify(self._heap)

    def _is_current(self, entry: tuple[int, int, Node]) -> bool:
        last_use, _, node = entry
        is_evictable = node.parent is not None and not node.children and node.lock_count == 0
        return is_evictable and node.last_use == last_use

    def _drop_stale(self) -> None:
        while self._heap and not self._is_current(self._heap[0]):
            heapq.heappop(self._heap)
