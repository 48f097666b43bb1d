"""Nodes of the prefix tree in the order in which they give up their units of one pool."""

import heapq
from collections.abc import Callable, Iterator

from engine.core.radix_node import Node

HEAP_SLACK = 64

_Entry = tuple[int, int, int, Node]
"""Last use and number of a node when it was offered, how many offers there were by then, and the node."""


class EvictionHeap:
    """A heap with lazy deletion, least recently used first: its cost doesn't depend on the number of nodes.

    A node is offered whenever it could be evicted and its last use is new. An entry whose node has changed is stale.
    """

    def __init__(self, is_evictable: Callable[[Node], bool]) -> None:
        self._is_evictable = is_evictable
        self._heap: list[_Entry] = []
        self._offers = 0

    def offer(self, node: Node, num_nodes: int) -> None:
        """Puts a node in line if it could be evicted now. `num_nodes`: of the tree."""
        if self._is_evictable(node):
            self._offers += 1
            heapq.heappush(self._heap, (node.last_use, node.number, self._offers, node))
            if len(self._heap) > 2 * num_nodes + HEAP_SLACK:
                self._heap = list({entry[1]: entry for entry in self._heap if self._is_current(entry)}.values())
                heapq.heapify(self._heap)

    def first(self) -> Node | None:
        """The node to evict next; None when there is none. It stays in line until it can't be evicted any more."""
        while self._heap and not self._is_current(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][3] if self._heap else None

    def offered(self) -> Iterator[int | None]:
        """For each entry the number of the node that would be found there, None where it is stale. For checks."""
        return (entry[1] if self._is_current(entry) else None for entry in self._heap)

    def _is_current(self, entry: _Entry) -> bool:
        last_use, number, _, node = entry
        return self._is_evictable(node) and node.last_use == last_use and node.number == number


def is_free_leaf(node: Node) -> bool:
    return node.parent is not None and not node.children and node.lock_count == 0


def has_free_windows(node: Node) -> bool:
    return node.parent is not None and bool(node.swa) and node.swa_uses.locks == 0


def has_free_state(node: Node) -> bool:
    return node.parent is not None and node.state > 0 and node.state_uses.locks == 0
