"""The Protocol by which the scheduler knows a prefix cache."""

from dataclasses import dataclass
from typing import Protocol

from engine.core.holding import Holding
from engine.core.ownership import Move, Owner, PoolKind
from engine.core.radix_node import Match, Pinned
from engine.core.request import Request
from engine.core.sessions import Session

NOTHING = Pinned()


@dataclass(frozen=True, slots=True)
class Probe:
    """What a request could reuse if it were admitted now. Valid until the cache or the tree changes."""

    is_ready: bool = True
    """False while the session's own slot is still coming back from an earlier turn."""
    tokens_from_slot: int = 0
    tokens_from_tree: int = 0
    num_pages: int = 0
    """Pages of the page table that are there already."""
    has_row: bool = False
    pinned: Pinned = NOTHING
    """What stops being reclaimable when the request takes what was found."""
    match: Match | None = None
    swa_pages: int = 0
    """SWA pages that it would have of its own."""
    states_missing: int = 0
    """State slots that it would have to be granted."""
    is_pinned_window: bool = False
    """Whether the window that it starts with stays beside its own."""


class PrefixCache(Protocol):
    """Keeps the KV of requests between their lives. Probe reads, acquire commits, and each acquire has one way back.

    The way back is `commit` or `roll_back`, called when no plan with the request is in flight any more.
    """

    def open_session(self, session: Session) -> None:
        """A session begins. Caches without slots keep nothing for it."""
        ...

    def close_session(self, session: Session) -> None:
        """A session ended, maybe while its last turn's KV is still on its way back. Idempotent."""
        ...

    def fork_session(self, source: Session, fork: Session) -> int:
        """`fork` begins with a history that is a beginning of `source`'s. Returns how many of its tokens have KV."""
        ...

    def truncate_session(self, session: Session) -> int:
        """An idle session's history was cut, and so is its KV. Returns how many of its tokens still have theirs."""
        ...

    def probe(self, request: Request) -> Probe:
        """What `acquire` would find. Changes nothing."""
        ...

    def acquire(self, request: Request, probe: Probe) -> None:
        """Locks the matched path or lends the slot: fills `request.kv`."""
        ...

    def shares_prompt(self, request: Request) -> bool:
        """Whether others will find this request's prompt here once it is computed."""
        ...

    def shared_len(self, request: Request, length: int) -> int:
        """Of the first `length` tokens of a request's prompt, in whole pages, those that another one with the same ids
        will not have to compute once the prompt is cached here. Changes nothing."""
        ...

    def cache_prompt(self, request: Request) -> None:
        """Another chunk of the prompt is answered: its full pages may be shared from now on."""
        ...

    def follow(self, request: Request) -> None:
        """The request's phase changed; its KV stays where it is."""
        ...

    def commit(self, request: Request) -> None:
        """Takes over the KV of a committed request; empties `request.kv`."""
        ...

    def roll_back(self, request: Request) -> None:
        """Takes back what a request was lent and frees the rest; empties `request.kv`."""
        ...

    def leave_behind(self, request: Request) -> None:
        """A step was answered: what no step to come looks back to goes free."""
        ...

    def reclaimable(self, pool: PoolKind) -> int:
        """Units that `make_room` could free: evictable ones and those of idle slots. O(1)."""
        ...

    def make_room(self, pages: int, rows: int, states: int = 0) -> bool:
        """Frees until so many units of each pool are available, `pages` of each pool of pages. False, and nothing
        moved, when they can't be."""
        ...


class HoldingCache(PrefixCache, Protocol):
    """What a decorator may ask besides: to share, cut and end holdings that are not a request's."""

    def borrow(self, namespace: str, ids: bytes) -> Holding:
        """A holding of the longest path that is cached for these ids but the last, locked. Maybe empty."""
        ...

    def publish(self, owner: Owner, namespace: str, ids: bytes, kv: Holding) -> None:
        """Shares an idle session's full pages: they become cache, stay locked by `kv`, and its tail stays its own."""
        ...

    def cut(self, owner: Owner, kv: Holding, length: int) -> None:
        """Cuts a holding that no plan touches to its first `length` tokens, or to as many fewer as can be used.

        With nothing left the row goes, too.
        """
        ...

    def absorb(self, move: Move, owner: Owner, namespace: str, ids: bytes, kv: Holding, last_use: int) -> None:
        """Ends a holding: full pages of committed tokens become cache by `move`, the rest and the row become free.

        `ids` are the tokens that the holding's KV is of; committed KV past them is not kept.
        """
        ...

    def discard(self, owner: Owner, kv: Holding) -> None:
        """Ends a holding without keeping any of it."""
        ...
