"""The prefix cache over the radix tree: finished prompts and answers, shared inside a namespace."""

from engine.core.holding import Holding
from engine.core.ids import count_ids, slice_ids
from engine.core.matcher import Matcher
from engine.core.ownership import PAGED_KINDS, Move, Owner, OwnerKind, PoolKind
from engine.core.pools import Pools
from engine.core.prefix_cache import Probe
from engine.core.radix import RadixTree
from engine.core.radix_node import Gift, Match
from engine.core.releases import (
    cacheable_len,
    leave_windows,
    pinned_lens,
    release_all,
    release_behind,
    release_row,
    release_states,
    unpin_windows,
    usable_lens,
    write_table,
)
from engine.core.request import Request
from engine.core.rows import PageTable
from engine.core.sessions import Session
from engine.core.states import States
from engine.core.window import first_kept_page, leave_pages

FULL, SWA, MAMBA = PoolKind.FULL, PoolKind.SWA, PoolKind.MAMBA
"""Looked up once: asking an enum for a member costs as much as a call."""


class RadixCache:
    """Keeps what can be used again: of a model with windows or states only up to where these are known."""

    def __init__(
        self, matcher: Matcher, cut_back_max: int, interval: int, pools: Pools, table: PageTable, tree: RadixTree
    ) -> None:
        """`cut_back_max`: by how many tokens a turn may be cut and still find its window. `interval`: tokens between
        two states that may be cached."""
        self._matcher = matcher
        self._page_size = matcher.page_size
        self._cut_back_max = cut_back_max
        self._interval = interval
        window = matcher.window
        self._least_gift = 0 if window is None else leave_pages(window, self._page_size) * self._page_size
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
        missing = States().num_missing if self._matcher.has_states else 0
        if match is None:
            return Probe(states_missing=missing)
        return Probe(
            tokens_from_tree=match.num_pages * self._page_size,
            num_pages=match.num_pages,
            pinned=self._tree.pinned_by(match),
            match=match,
            states_missing=missing,
        )

    def acquire(self, request: Request, probe: Probe) -> None:
        request.kv = self._lock(probe.match)

    def borrow(self, namespace: str, ids: bytes) -> Holding:
        return self._lock(self._find(namespace, ids))

    def _lock(self, match: Match | None) -> Holding:
        states = States() if self._matcher.has_states else None
        if match is None:
            return Holding(states=states)
        lock, length = self._tree.lock(match), match.num_pages * self._page_size
        if states is not None:
            states.read = lock.node.state
        return Holding(
            None,
            lock,
            length,
            [],
            kv_committed_len=length,
            kv_allocated_len=length,
            swa_from=match.num_pages,
            states=states,
        )

    def shares_prompt(self, request: Request) -> bool:
        return True

    def shared_len(self, request: Request, length: int) -> int:
        if not self._matcher.has_states:
            return length
        # Of its checkpoints the last one is sure: with that much in common, or with nothing.
        end = request.prompt_len // self._interval * self._interval
        return end if end <= length else 0

    def cache_prompt(self, request: Request) -> None:
        kv, owner = request.kv, request.owner
        limit = min(kv.kv_committed_len, request.prompt_len)
        if not request.is_prompt_cached and limit - kv.cache_protected_len < self._least_gift:
            return  # a node for each of many small chunks would make long paths
        duplicates = self._donate(Move.DONATE, owner, request.namespace, bytes(request.ids), kv, limit)
        for pool, units in duplicates:
            self._pools.release_after(request.last_step, units, owner, pool)
        if any(units for _, units in duplicates):
            write_table(self._table, kv)  # the tree's pages take their places

    def _donate(
        self, move: Move, owner: Owner, namespace: str, ids: bytes, kv: Holding, limit: int
    ) -> tuple[tuple[PoolKind, list[int]], ...]:
        """Gives the own pages up to `limit` to the tree, as far as they can be used from there, with their windows and
        the state behind them. Returns the duplicates, no longer in `kv`.

        before: | lock ... | own ................... |        after: | lock .............. | own |
                0          protected        length            0                       length
        """
        length = cacheable_len(kv, limit, self._matcher)
        if length <= kv.cache_protected_len:
            return ()
        num_pages, reach = length // self._page_size, kv.own_reach(length, self._page_size)
        states = kv.states
        gift = Gift(
            pages=kv.pages[:reach],
            swa={place: page for place, page in kv.swa.items() if place < num_pages},
            state=states.kept[length] if states is not None else 0,
        )
        donated = self._tree.donate(move, owner, namespace, kv.lock, slice_ids(ids, 0, length), gift)
        kv.lock, kv.pages, kv.cache_protected_len = donated.lock, kv.pages[reach:], length
        kv.swa = {place: page for place, page in kv.swa.items() if place >= num_pages}
        kv.swa_from = max(kv.swa_from, num_pages)
        if states is not None and donated.is_state_taken:
            states.give_checkpoint()
        elif states is not None:
            states.forget_checkpoint()
        return ((FULL, donated.duplicates), (SWA, donated.swa_duplicates))

    def _give(self, move: Move, owner: Owner, namespace: str, ids: bytes, kv: Holding, limit: int) -> None:
        """The same for a holding that no plan touches: duplicates go free at once."""
        for pool, units in self._donate(move, owner, namespace, ids, kv, limit):
            self._pools.free_up(Move.RELEASE, pool, units, owner)

    def publish(self, owner: Owner, namespace: str, ids: bytes, kv: Holding) -> None:
        self._give(Move.PUBLISH, owner, namespace, ids, kv, kv.kv_committed_len)
        if kv.req_pool_idx is not None:
            write_table(self._table, kv)

    def cut(self, owner: Owner, kv: Holding, length: int) -> None:
        length = max(0, min(length, kv.kv_committed_len))
        own = next(usable_lens(kv, length, self._matcher), None)
        length = self._cut_lock(kv, length) if own is None else own
        release_behind(self._pools, owner, kv, length, self._page_size)
        release_states(self._pools, owner, kv, length)
        kv.pin_len = 0
        unpin_windows(kv, self._page_size)
        leave_windows(self._pools, owner, kv, length, self._matcher)
        self._narrow(kv, length)
        if kv.kv_committed_len == 0:
            release_row(self._pools, self._table, owner, kv)
        elif own is None and kv.req_pool_idx is not None and not self._matcher.is_plain:
            write_table(self._table, kv)

    def _cut_lock(self, kv: Holding, length: int) -> int:
        """Cuts the lock to the longest part of its path, up to `length`, that can be used. Returns how long that is."""
        lock = kv.lock
        if lock is None:
            return 0
        match = self._tree.probe_path(lock, length // self._page_size)
        if match is None:
            self._tree.unlock(lock, self._tree.next_use())
            kv.lock = None
        elif match.num_pages < lock.num_pages or not self._matcher.is_plain:
            kv.lock = self._tree.shorten(lock, match, self._tree.next_use())
        kv.cache_protected_len = 0 if match is None else match.num_pages * self._page_size
        return kv.cache_protected_len

    def _narrow(self, kv: Holding, length: int) -> None:
        """Gives up the right to the tree's windows where the holder has its own for the first `length` tokens, and for
        those that it may have to go back to or to share; and to the tree's state where it has one of its own."""
        lock, window = kv.lock, self._matcher.window
        if lock is None:
            return
        if window is not None and lock.window_from is not None:
            least_len = min((length, *pinned_lens(kv)))
            self._tree.leave_window(lock, first_kept_page(least_len, window, self._page_size))
        if lock.has_state and kv.states is not None and kv.kv_committed_len > kv.cache_protected_len:
            is_needed = kv.pin_len > 0 and kv.states.base_len is None
            if not is_needed:
                self._tree.leave_state(lock)

    def follow(self, request: Request) -> None: ...

    def leave_behind(self, request: Request) -> None:
        if self._matcher.is_plain:
            return
        kv, length = request.kv, request.least_len(self._cut_back_max)
        if kv.states is not None:
            unpin_windows(kv, self._page_size)  # the checkpoint may be another one now
        leave_windows(self._pools, request.owner, kv, length, self._matcher)
        self._narrow(kv, length)

    def commit(self, request: Request) -> None:
        ids = bytes(request.ids)
        self.absorb(Move.DONATE, request.owner, request.namespace, ids, request.kv, self._tree.next_use())
        request.kv = Holding()

    def roll_back(self, request: Request) -> None:
        self.discard(request.owner, request.kv)
        request.kv = Holding()

    def reclaimable(self, pool: PoolKind) -> int:
        ledger = self._pools.ledger
        evictable = ledger.count(pool, OwnerKind.CACHE) - ledger.protected(pool)
        return evictable + self._tree.idle_units(pool) if pool is not PoolKind.ROWS else 0

    def make_room(self, pages: int, rows: int, states: int = 0) -> bool:
        free, reclaimable = self._pools.free, self.reclaimable
        wanted = {kind: pages for kind in PAGED_KINDS if kind in self._pools.ledger.pools}
        if states:
            wanted[MAMBA] = states
        if rows > free(PoolKind.ROWS) or any(count > free(kind) + reclaimable(kind) for kind, count in wanted.items()):
            return False
        for kind, count in wanted.items():
            while (missing := count - free(kind)) > 0:
                freed = self._tree.evict(missing, kind)
                assert freed, f"{missing} of {kind} are missing though {reclaimable(kind)} count as reclaimable"
        return True

    def absorb(self, move: Move, owner: Owner, namespace: str, ids: bytes, kv: Holding, last_use: int) -> None:
        self._give(move, owner, namespace, ids, kv, min(kv.kv_committed_len, count_ids(ids)))
        self._end(owner, kv, last_use)

    def discard(self, owner: Owner, kv: Holding) -> None:
        self._end(owner, kv, self._tree.next_use())

    def _end(self, owner: Owner, kv: Holding, last_use: int) -> None:
        # Own units first, then the lock, then the row: the order in which they were always told.
        row, kv.req_pool_idx = kv.req_pool_idx, None
        release_all(self._pools, self._table, owner, kv)
        if kv.lock is not None:
            self._tree.unlock(kv.lock, last_use)
        kv.req_pool_idx = row
        release_row(self._pools, self._table, owner, kv)
