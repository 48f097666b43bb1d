"""The Protocol by which the scheduler knows a prefix cache, and the caches without sessions: radix and none."""

from dataclasses import dataclass
from typing import Protocol

from engine.core.ids import count_ids, slice_ids
from engine.core.ownership import Move, Owner, OwnerKind, PoolKind
from engine.core.pools import Pools
from engine.core.radix import Match, RadixTree
from engine.core.request import Holding, Request
from engine.core.rows import PageTable
from engine.core.sessions import Session


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
    pinned_pages: int = 0
    """Pages that stop being reclaimable when the request takes what was found."""
    match: Match | None = None


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

    def cache_prompt(self, request: Request) -> None:
        """The whole prompt is answered: its full pages may be shared from now on."""
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

    @property
    def reclaimable_pages(self) -> int:
        """Pages that `make_room` could free: evictable ones and those of idle slots. O(1)."""
        ...

    @property
    def reclaimable_rows(self) -> int: ...

    def make_room(self, pages: int, rows: int) -> bool:
        """Frees until `pages` pages and `rows` rows are available. False, and nothing moved, when they can't be."""
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
        """Cuts a holding that no plan touches to its first `length` tokens, or fewer where the cache has only pages.

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


def release_row(pools: Pools, table: PageTable, owner: Owner, kv: Holding) -> None:
    """Gives a holding's row back, if it has one."""
    if kv.req_pool_idx is not None:
        table.clear(kv.req_pool_idx)
        pools.free_up(Move.RELEASE, PoolKind.ROWS, [kv.req_pool_idx], owner)
        kv.req_pool_idx = None


def release_behind(pools: Pools, owner: Owner, kv: Holding, length: int, page_size: int) -> None:
    """Cuts a holding to `length` tokens, which are not below what the cache protects; own pages behind go free."""
    reach = kv.own_reach(length, page_size)
    pools.free_up(Move.RELEASE, PoolKind.FULL, kv.pages[reach:], owner)
    del kv.pages[reach:]
    kv.kv_committed_len = min(kv.kv_committed_len, length)
    kv.kv_allocated_len = length


class NoPrefixCache:
    """Keeps nothing: every request computes its whole prompt."""

    def __init__(self, page_size: int, pools: Pools, table: PageTable) -> None:
        self._page_size = page_size
        self._pools = pools
        self._table = table

    def open_session(self, session: Session) -> None: ...

    def close_session(self, session: Session) -> None: ...

    def fork_session(self, source: Session, fork: Session) -> int:
        return 0

    def truncate_session(self, session: Session) -> int:
        return 0

    def probe(self, request: Request) -> Probe:
        return Probe()

    def acquire(self, request: Request, probe: Probe) -> None:
        request.kv = Holding()

    def shares_prompt(self, request: Request) -> bool:
        return False

    def cache_prompt(self, request: Request) -> None: ...

    def follow(self, request: Request) -> None: ...

    def commit(self, request: Request) -> None:
        self.roll_back(request)

    def roll_back(self, request: Request) -> None:
        self.discard(request.owner, request.kv)
        request.kv = Holding()

    @property
    def reclaimable_pages(self) -> int:
        return 0

    @property
    def reclaimable_rows(self) -> int:
        return 0

    def make_room(self, pages: int, rows: int) -> bool:
        return pages <= self._pools.free(PoolKind.FULL) and rows <= self._pools.free(PoolKind.ROWS)

    def borrow(self, namespace: str, ids: bytes) -> Holding:
        return Holding()

    def publish(self, owner: Owner, namespace: str, ids: bytes, kv: Holding) -> None: ...

    def cut(self, owner: Owner, kv: Holding, length: int) -> None:
        assert kv.lock is None, "no tree, no locks"
        release_behind(self._pools, owner, kv, max(0, min(length, kv.kv_committed_len)), self._page_size)
        if not kv.pages:
            release_row(self._pools, self._table, owner, kv)

    def absorb(self, move: Move, owner: Owner, namespace: str, ids: bytes, kv: Holding, last_use: int) -> None:
        self.discard(owner, kv)

    def discard(self, owner: Owner, kv: Holding) -> None:
        assert kv.lock is None, "no tree, no locks"
        self._pools.free_up(Move.RELEASE, PoolKind.FULL, kv.pages, owner)
        release_row(self._pools, self._table, owner, kv)


class RadixCache:
    """Keeps finished prompts and answers in a radix tree, shared inside a namespace."""

    def __init__(self, page_size: int, pools: Pools, table: PageTable, tree: RadixTree) -> None:
        self._page_size = page_size
        self._pools = pools
        self._table = table
        self._tree = tree

    def open_session(self, session: Session) -> None: ...

    def close_session(self, session: Session) -> None: ...

    def fork_session(self, source: Session, fork: Session) -> int:
        return self._found_len(fork)

    def truncate_session(self, session: Session) -> int:
        return self._found_len(session)

    def _found_len(self, session: Session) -> int:
        """Tokens of a session's longest path that its next turn, of one new token or more, would find here now."""
        match = self._tree.probe(session.namespace, session.longest_path)
        return 0 if match is None else match.num_pages * self._page_size

    def _find(self, namespace: str, ids: bytes) -> Match | None:
        """The last token is always computed: a full hit would leave nothing to sample from."""
        usable_len = max(0, count_ids(ids) - 1) // self._page_size * self._page_size
        return self._tree.probe(namespace, slice_ids(ids, 0, usable_len))

    def probe(self, request: Request) -> Probe:
        match = self._find(request.namespace, bytes(request.ids))
        if match is None:
            return Probe()
        return Probe(
            tokens_from_tree=match.num_pages * self._page_size,
            num_pages=match.num_pages,
            pinned_pages=self._tree.pinned_by(match),
            match=match,
        )

    def acquire(self, request: Request, probe: Probe) -> None:
        request.kv = self._lock(probe.match)

    def borrow(self, namespace: str, ids: bytes) -> Holding:
        return self._lock(self._find(namespace, ids))

    def _lock(self, match: Match | None) -> Holding:
        if match is None:
            return Holding()
        length = match.num_pages * self._page_size
        return Holding(None, self._tree.lock(match), length, [], kv_committed_len=length, kv_allocated_len=length)

    def shares_prompt(self, request: Request) -> bool:
        return True

    def cache_prompt(self, request: Request) -> None:
        kv = request.kv
        length = min(kv.kv_committed_len, request.prompt_len) // self._page_size * self._page_size
        duplicates = self._donate(Move.DONATE, request.owner, request.namespace, bytes(request.ids), kv, length)
        self._pools.release_after(request.last_step, duplicates, request.owner)
        assert kv.req_pool_idx is not None, f"rid {request.rid}: computed a prompt without a row"
        self._table.write(kv.req_pool_idx, 0, kv.all_pages())

    def _donate(self, move: Move, owner: Owner, namespace: str, ids: bytes, kv: Holding, length: int) -> list[int]:
        """Gives the own pages below `length` (page-aligned) to the tree. Returns the duplicates, no longer in `kv`.

        before: | lock ... | own ................... |        after: | lock .............. | own |
                0          protected        length            0                       length
        """
        if length <= kv.cache_protected_len:
            return []
        reach = kv.own_reach(length, self._page_size)
        key = slice_ids(ids, 0, length)
        kv.lock, duplicates = self._tree.donate(move, owner, namespace, kv.lock, key, kv.pages[:reach])
        kv.pages = kv.pages[reach:]
        kv.cache_protected_len = length
        return duplicates

    def publish(self, owner: Owner, namespace: str, ids: bytes, kv: Holding) -> None:
        length = kv.kv_committed_len // self._page_size * self._page_size
        duplicates = self._donate(Move.PUBLISH, owner, namespace, ids, kv, length)
        self._pools.free_up(Move.RELEASE, PoolKind.FULL, duplicates, owner)
        if kv.req_pool_idx is not None:
            self._table.write(kv.req_pool_idx, 0, kv.all_pages())

    def cut(self, owner: Owner, kv: Holding, length: int) -> None:
        length = max(0, min(length, kv.kv_committed_len))
        if length < kv.cache_protected_len:
            assert kv.lock is not None, f"{kv.cache_protected_len} tokens are protected without a lock"
            num_pages = length // self._page_size
            length = num_pages * self._page_size
            use = self._tree.next_use()
            if num_pages == 0:
                self._tree.unlock(kv.lock, use)
                kv.lock = None
            else:
                kv.lock = self._tree.shorten(kv.lock, num_pages, use)
            kv.cache_protected_len = length
        release_behind(self._pools, owner, kv, length, self._page_size)
        if kv.kv_committed_len == 0:
            release_row(self._pools, self._table, owner, kv)

    def follow(self, request: Request) -> None: ...

    def commit(self, request: Request) -> None:
        ids = bytes(request.ids)
        self.absorb(Move.DONATE, request.owner, request.namespace, ids, request.kv, self._tree.next_use())
        request.kv = Holding()

    def roll_back(self, request: Request) -> None:
        self.discard(request.owner, request.kv)
        request.kv = Holding()

    @property
    def reclaimable_pages(self) -> int:
        ledger = self._pools.ledger
        evictable = ledger.count(PoolKind.FULL, OwnerKind.CACHE) - ledger.protected_pages
        return evictable + self._tree.idle_pages

    @property
    def reclaimable_rows(self) -> int:
        return 0

    def make_room(self, pages: int, rows: int) -> bool:
        missing = pages - self._pools.free(PoolKind.FULL)
        if missing > self.reclaimable_pages or rows > self._pools.free(PoolKind.ROWS):
            return False
        while missing > 0:
            freed = self._tree.evict(missing)
            assert freed, f"{missing} pages are missing though {self.reclaimable_pages} count as reclaimable"
            missing -= freed
        return True

    def absorb(self, move: Move, owner: Owner, namespace: str, ids: bytes, kv: Holding, last_use: int) -> None:
        length = min(kv.kv_committed_len, count_ids(ids)) // self._page_size * self._page_size
        duplicates = self._donate(move, owner, namespace, ids, kv, length)
        self._pools.free_up(Move.RELEASE, PoolKind.FULL, duplicates, owner)
        self._end(owner, kv, last_use)

    def discard(self, owner: Owner, kv: Holding) -> None:
        self._end(owner, kv, self._tree.next_use())

    def _end(self, owner: Owner, kv: Holding, last_use: int) -> None:
        self._pools.free_up(Move.RELEASE, PoolKind.FULL, kv.pages, owner)
        if kv.lock is not None:
            self._tree.unlock(kv.lock, last_use)
        release_row(self._pools, self._table, owner, kv)
