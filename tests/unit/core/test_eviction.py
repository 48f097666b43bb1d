"""Who is in line to give way, and that stale places are passed over and forgotten."""

from engine.core.eviction import HEAP_SLACK, EvictionHeap
from engine.core.radix_node import Node


class Line:
    """A heap of nodes of which some are marked as evictable."""

    def __init__(self) -> None:
        self.evictable: set[int] = set()
        self.heap = EvictionHeap(lambda node: node.number in self.evictable)

    def add(self, number: int, last_use: int) -> Node:
        """A node that can be evicted, and is in line."""
        node = Node(number, b"", [], None, last_use=last_use)
        self.evictable.add(number)
        self.heap.offer(node, 1)
        return node

    def drain(self) -> list[int]:
        """Numbers in the order in which they are evicted."""
        order = []
        while (node := self.heap.first()) is not None:
            order.append(node.number)
            self.evictable.remove(node.number)
        return order


def test_first_when_several_are_in_line_then_the_least_recently_used_goes_first_and_of_two_the_lower_number() -> None:
    line = Line()
    for number, last_use in ((1, 30), (2, 10), (4, 20), (3, 20)):
        line.add(number, last_use)
    assert line.drain() == [2, 3, 4, 1]


def test_first_when_asked_twice_then_it_is_the_same_one() -> None:
    line = Line()
    node = line.add(1, 10)
    assert line.heap.first() is node
    assert line.heap.first() is node


def test_first_when_nobody_is_in_line_then_there_is_none() -> None:
    assert Line().heap.first() is None


def test_offer_when_a_node_can_not_be_evicted_then_it_is_not_in_line() -> None:
    line = Line()
    node = line.add(1, 10)
    line.evictable.clear()
    line.heap.offer(node, 1)
    assert list(line.heap.offered()) == [None], "the place of before is stale, and there is no other"


def test_first_when_a_node_can_not_be_evicted_any_more_then_the_next_one_is_found_and_the_place_is_gone() -> None:
    line = Line()
    line.add(1, 10)
    second = line.add(2, 20)
    line.evictable.discard(1)
    assert list(line.heap.offered()) == [None, 2]
    assert line.heap.first() is second
    assert list(line.heap.offered()) == [2]


def test_first_when_a_node_was_used_since_then_only_its_new_place_counts() -> None:
    line = Line()
    first, second = line.add(1, 10), line.add(2, 20)
    first.last_use = 30
    assert line.heap.first() is second, "it is not in line with its new use yet"
    line.heap.offer(first, 2)
    assert sorted(line.heap.offered(), key=str) == [1, 2]
    assert line.drain() == [2, 1]


def test_offer_when_a_node_is_used_again_and_again_then_the_line_does_not_grow_without_bound() -> None:
    line = Line()
    busy, idle = line.add(1, 0), line.add(2, 1_000_000)
    longest = 0
    for use in range(1, 1000):
        busy.last_use = use
        line.heap.offer(busy, 2)
        longest = max(longest, len(list(line.heap.offered())))
    assert longest == 2 * 2 + HEAP_SLACK, "it is swept when it is longer than that"
    assert {number for number in line.heap.offered() if number is not None} == {1, 2}
    assert line.heap.first() is busy
    line.evictable.discard(1)
    assert line.heap.first() is idle


def test_offer_when_a_node_is_offered_twice_with_the_same_use_then_a_sweep_leaves_it_once() -> None:
    line = Line()
    node = line.add(1, 5)
    for _ in range(2 * 1 + HEAP_SLACK):
        line.heap.offer(node, 1)
    assert list(line.heap.offered()) == [1]
