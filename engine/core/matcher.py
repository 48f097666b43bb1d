"""The one matcher: how long a prefix can be used, by what each pool kind looks back to from its end.

full pages:   | p0 | p1 | p2 | p3 | p4 | p5 |      all of them
SWA pages:    |         | p3 | p4 | p5 |           those of the last window
state:                                     s       one point, at the very end
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from engine.core.radix_node import Lock, Match, Node, Pinned, path_up, shared_pages
from engine.core.window import window_start

Step = tuple[Node, int, int]
"""As `Match`, which is made of the best one only."""


@dataclass(frozen=True, slots=True)
class Matcher:
    """`window`: tokens, None where no layer has one. `has_states`: whether there are recurrent layers."""

    page_size: int
    window: int | None
    has_states: bool

    @property
    def is_plain(self) -> bool:
        """Whether pages are all that a prefix needs."""
        return self.window is None and not self.has_states

    def window_from(self, num_pages: int) -> int:
        """The page that the window of the first token behind `num_pages` begins in; their number without windows."""
        if self.window is None:
            return num_pages
        return window_start(num_pages * self.page_size, self.window) // self.page_size

    def longest_usable(self, steps: Iterable[Step]) -> Match | None:
        """Of the steps of a path, from its begin, the last one that has behind it all that is looked back to."""
        best: Step | None = None
        if self.is_plain:
            for step in steps:
                best = step
            return None if best is None else Match(*best)
        swa_from = 0  # from this page on the path has SWA pages without a gap
        for step in steps:
            node, used_pages, num_pages = step
            if self.window is not None:
                if not node.swa:
                    swa_from = num_pages
                if swa_from > self.window_from(num_pages):
                    continue
            if self.has_states and (not node.state or used_pages < len(node.pages)):
                continue
            best = step
        return None if best is None else Match(*best)


def steps_along(root: Node | None, key: bytes, page_bytes: int) -> Iterator[Step]:
    """The nodes below `root` that the ids of `key` lead through, each with how far. O(len(key)) in memcmp."""
    node, at = root, 0
    while node is not None and at + page_bytes <= len(key):
        child = node.children.get(key[at : at + page_bytes])
        if child is None:
            return
        node = child
        if key.startswith(child.key, at):  # compared in place: the usual case, and slices would be copies
            at += len(child.key)
            yield node, len(child.pages), at // page_bytes
            continue
        used = shared_pages(child.key, key[at : at + len(child.key)], page_bytes)
        at += used * page_bytes
        yield node, used, at // page_bytes
        return


def steps_down(lock: Lock, num_pages: int) -> Iterator[Match]:
    """The nodes of a lock's path within its first `num_pages`, from the begin, each with how far."""
    at = 0
    for node in reversed(tuple(path_up(lock.node))):
        used = min(len(node.pages), num_pages - at)
        if used <= 0:
            return
        at += used
        yield Match(node, used, at)


def pinned_by(match: Match, matcher: Matcher) -> Pinned:
    """What would stop being reclaimable if `match` were locked. O(depth)."""
    node = match.node
    pages = 0
    if node.is_reclaimable:  # else nothing above it is
        above = sum(len(step.pages) for step in path_up(node) if step.is_reclaimable)
        pages = above - len(node.pages) + match.used_pages
    if matcher.is_plain:
        return Pinned(pages)
    swa_pages, at = 0, match.num_pages
    first = matcher.window_from(match.num_pages)
    for step in path_up(node):
        if at <= first:
            break
        length = match.used_pages if step is node else len(step.pages)
        if step.swa_uses.is_reclaimable:
            swa_pages += min(length, at - first)
        at -= length
    return Pinned(pages, swa_pages, int(matcher.has_states and node.state_uses.is_reclaimable))


def pinned_by_lock(lock: Lock, matcher: Matcher) -> Pinned:
    """What would stop being reclaimable if an idle lock were not idle. O(depth)."""
    pages = sum(len(node.pages) for node in path_up(lock.node) if node.is_reclaimable)
    if matcher.is_plain:
        return Pinned(pages)
    swa_pages = sum(len(node.swa) for node, _ in lock.window_nodes() if node.swa_uses.is_reclaimable)
    return Pinned(pages, swa_pages, int(lock.has_state and lock.node.state_uses.is_reclaimable))
