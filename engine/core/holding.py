"""What one holder, a request or a session slot, has in its hands: pages, windows, states and a row."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.core.ids import pages_for
from engine.core.radix_node import Lock
from engine.core.states import States


@dataclass(slots=True)
class Holding:
    """The KV that one holder has.

        positions:  0 ............ cache_protected_len ........ kv_committed_len .... kv_allocated_len
        pages:      | tree's, under `lock` | own, in `pages` ......................................|
        SWA pages:  ........ | tree's .... | own, in `swa`: | pinned | .... | window ..............|
                    | valid KV ...................................... | in flight or over-run ......|

    `cache_protected_len` is a multiple of the page size, and the pages reach kv_allocated_len at least: room is granted
    before a plan is made. The own SWA pages reach as far as the full ones.
    """

    req_pool_idx: int | None = None
    lock: Lock | None = None
    cache_protected_len: int = 0
    pages: list[int] = field(default_factory=list)
    kv_committed_len: int = 0
    kv_allocated_len: int = 0
    swa: dict[int, int] = field(default_factory=dict)
    """Place in the page table → SWA page, places rising. Those that no window needs any more are not there."""
    swa_from: int = 0
    """The first place that has not been left behind."""
    pin_len: int = 0
    """The window of the first so many tokens stays: that of the last commit, while a turn runs on it. 0: none."""
    states: States | None = None
    """None where the model has no recurrent layers, and in hands that are empty."""

    def num_pages(self, page_size: int) -> int:
        """Pages of the page table, the tree's and the own ones."""
        return self.cache_protected_len // page_size + len(self.pages)

    def all_pages(self) -> list[int]:
        """The page table's entries in order: O(depth + pages)."""
        return (self.lock.pages() if self.lock is not None else []) + self.pages

    def own_reach(self, length: int, page_size: int) -> int:
        """How many of the own pages the first `length` tokens need."""
        return max(0, pages_for(length, page_size) - self.cache_protected_len // page_size)

    def swa_places(self) -> Iterator[tuple[int, int]]:
        """(place in the page table, SWA page) of all that it may read: the tree's under its lock, then its own."""
        if self.lock is not None:
            yield from self.lock.swa_places()
        yield from self.swa.items()

    @property
    def num_states_missing(self) -> int:
        """State slots that a turn needs beyond those that are there."""
        return self.states.num_missing if self.states is not None else 0

    def state_slots(self) -> list[int]:
        """Slots with states of its own."""
        return self.states.slots() if self.states is not None else []
