"""What the prefix tree is made of and trades in: nodes, matches, locks on paths, gifts."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from engine.core.ownership import PoolKind


@dataclass(slots=True)
class Uses:
    """Who needs a node's units of one pool: `locks` counts the holders, `idles` those of them that give way under
    pressure (slots between turns). Where the two are equal the units can be had."""

    locks: int = 0
    idles: int = 0

    @property
    def is_reclaimable(self) -> bool:
        return self.locks == self.idles

    @property
    def is_idle(self) -> bool:
        """Locked, and by holders that give way only."""
        return self.locks > 0 and self.locks == self.idles

    def copy(self) -> "Uses":
        return Uses(self.locks, self.idles)


@dataclass(slots=True, eq=False)
class Node:
    """A run of whole pages behind its parent. `key` holds the token ids of exactly `pages`, as int32 bytes.

    `lock_count` counts the holders whose path runs through here, `idle_count` those of them that give way under
    pressure (slots between turns). A node is reclaimable when the two are equal, and then so is everything below it.

    Its windows and its state go their own ways: they can be needed less, or be gone, while its pages stay.
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
    swa: list[int] = field(default_factory=list)
    """SWA pages beside `pages`, one for each; or none: a tombstone."""
    swa_uses: Uses = field(default_factory=Uses)
    state: int = 0
    """Slot of the state behind the node's last token; 0: none."""
    state_uses: Uses = field(default_factory=Uses)

    @property
    def is_reclaimable(self) -> bool:
        return self.lock_count == self.idle_count

    @property
    def is_idle(self) -> bool:
        """Locked, and by holders that give way only."""
        return self.lock_count > 0 and self.is_reclaimable

    def units(self, pool: PoolKind) -> list[int]:
        """What it has of a pool."""
        match pool:
            case PoolKind.SWA:
                return self.swa
            case PoolKind.MAMBA:
                return [self.state] if self.state else []
            case _:
                return self.pages

    def uses(self, pool: PoolKind) -> Uses:
        """Who needs that; a copy for the full pool."""
        match pool:
            case PoolKind.SWA:
                return self.swa_uses
            case PoolKind.MAMBA:
                return self.state_uses
            case _:
                return Uses(self.lock_count, self.idle_count)


class Match(NamedTuple):
    """What a probe found: the path ends `used_pages` into `node`. Valid until the tree changes."""

    node: Node
    used_pages: int
    num_pages: int
    """Pages from the root to there."""


@dataclass(slots=True, eq=False)
class Lock:
    """A holder's right to a path from the root to the end of `node`. Given back exactly once.

    It extends to the windows from page `window_from` of the path on, and to the state at its end, as long as the holder
    needs them.
    """

    node: Node
    num_pages: int
    """Pages from the root to the end of `node`."""
    is_idle: bool = False
    is_live: bool = True
    window_from: int | None = None
    """None: it has no right to windows."""
    has_state: bool = False

    def pages(self) -> list[int]:
        """Pages of the path in order: O(depth + pages)."""
        runs = [node.pages for node in path_up(self.node)]
        return [page for run in reversed(runs) for page in run]

    def window_nodes(self) -> Iterator[tuple[Node, int]]:
        """The nodes whose windows it has a right to, from its end upwards, each with the page that it begins at."""
        if self.window_from is None:
            return
        at = self.num_pages
        for node in path_up(self.node):
            if at <= self.window_from:
                return
            at -= len(node.pages)
            yield node, at

    def swa_places(self) -> list[tuple[int, int]]:
        """(place in the path, SWA page), places rising: what it has a right to."""
        runs = [(start, node.swa) for node, start in self.window_nodes()]
        return [(start + at, page) for start, swa in reversed(runs) for at, page in enumerate(swa)]


NO_WINDOWS: Mapping[int, int] = MappingProxyType({})


class Gift(NamedTuple):
    """What a holder gives to the tree for the last pages of a key."""

    pages: list[int]
    swa: Mapping[int, int] = NO_WINDOWS
    """Place in the key's path, in pages → SWA page."""
    state: int = 0
    """Slot of the state behind the whole key; 0: none."""


class Donated(NamedTuple):
    """What became of a gift. What the tree had already is a duplicate: it stays its owner's."""

    lock: Lock | None
    """On the whole key; None for an empty one."""
    duplicates: list[int]
    swa_duplicates: list[int]
    is_state_taken: bool


class Pinned(NamedTuple):
    """Units that would stop being reclaimable."""

    pages: int = 0
    swa_pages: int = 0
    states: int = 0


def walk_down(roots: Iterable[Node]) -> Iterator[Node]:
    """Every node below `roots`, parents first. O(1) a node, none looked at before it is asked for."""
    for root in roots:
        stack = [reversed(root.children.values())]
        while stack:
            node = next(stack[-1], None)
            if node is None:
                stack.pop()
                continue
            yield node
            stack.append(reversed(node.children.values()))


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
