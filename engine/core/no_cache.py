"""The prefix cache that keeps nothing."""

from engine.core.holding import Holding
from engine.core.matcher import Matcher
from engine.core.ownership import PAGED_KINDS, Move, Owner, PoolKind
from engine.core.pools import Pools
from engine.core.prefix_cache import Probe
from engine.core.releases import (
    leave_windows,
    release_all,
    release_behind,
    release_row,
    release_states,
    unpin_windows,
    usable_lens,
)
from engine.core.request import Request
from engine.core.rows import PageTable
from engine.core.sessions import Session
from engine.core.states import States


class NoPrefixCache:
    """Every request computes its whole prompt."""

    def __init__(self, matcher: Matcher, cut_back_max: int, pools: Pools, table: PageTable) -> None:
        """`cut_back_max`: by how many tokens a turn may be cut and still find its window."""
        self._matcher = matcher
        self._cut_back_max = cut_back_max
        self._pools = pools
        self._table = table

    def open_session(self, session: Session) -> None: ...

    def close_session(self, session: Session) -> None: ...

    def fork_session(self, source: Session, fork: Session) -> int:
        return 0

    def truncate_session(self, session: Session) -> int:
        return 0

    def probe(self, request: Request) -> Probe:
        return Probe(states_missing=self._empty().num_states_missing)

    def acquire(self, request: Request, probe: Probe) -> None:
        request.kv = self._empty()

    def _empty(self) -> Holding:
        return Holding(states=States() if self._matcher.has_states else None)

    def shares_prompt(self, request: Request) -> bool:
        return False

    def shared_len(self, request: Request, length: int) -> int:
        return 0

    def cache_prompt(self, request: Request) -> None: ...

    def follow(self, request: Request) -> None: ...

    def commit(self, request: Request) -> None:
        self.roll_back(request)

    def roll_back(self, request: Request) -> None:
        self.discard(request.owner, request.kv)
        request.kv = Holding()

    def leave_behind(self, request: Request) -> None:
        if request.kv.states is not None:
            unpin_windows(request.kv, self._matcher.page_size)  # the checkpoint may be another one now
        leave_windows(self._pools, request.owner, request.kv, request.least_len(self._cut_back_max), self._matcher)

    def reclaimable(self, pool: PoolKind) -> int:
        return 0

    def make_room(self, pages: int, rows: int, states: int = 0) -> bool:
        free = self._pools.free
        if rows > free(PoolKind.ROWS) or (states and states > free(PoolKind.MAMBA)):
            return False
        return all(pages <= free(kind) for kind in PAGED_KINDS if kind in self._pools.ledger.pools)

    def borrow(self, namespace: str, ids: bytes) -> Holding:
        return Holding()

    def publish(self, owner: Owner, namespace: str, ids: bytes, kv: Holding) -> None: ...

    def cut(self, owner: Owner, kv: Holding, length: int) -> None:
        assert kv.lock is None, "no tree, no locks"
        length = next(usable_lens(kv, max(0, min(length, kv.kv_committed_len)), self._matcher), 0)
        release_behind(self._pools, owner, kv, length, self._matcher.page_size)
        release_states(self._pools, owner, kv, length)
        kv.pin_len = 0
        unpin_windows(kv, self._matcher.page_size)
        leave_windows(self._pools, owner, kv, length, self._matcher)
        if not kv.pages:
            release_row(self._pools, self._table, owner, kv)

    def absorb(self, move: Move, owner: Owner, namespace: str, ids: bytes, kv: Holding, last_use: int) -> None:
        self.discard(owner, kv)

    def discard(self, owner: Owner, kv: Holding) -> None:
        assert kv.lock is None, "no tree, no locks"
        release_all(self._pools, self._table, owner, kv)
