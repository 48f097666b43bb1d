"""Room for turns: pages and rows for those that run, who gives way when there are none, and who may come in."""

from engine.core.admission import NewTokenRatio, pages_to_come
from engine.core.config import CoreConfig
from engine.core.endings import Endings
from engine.core.ids import pages_for
from engine.core.ownership import PoolKind
from engine.core.pools import Pools
from engine.core.prefix_cache import PrefixCache, Probe, release_behind
from engine.core.queues import Queues
from engine.core.request import Request
from engine.core.rows import PageTable


class Room:
    """Those of lower rank get room first, and the one of highest rank is retracted when there is none.

    A turn on its last attempt ranks before all others and came in with room for all its tokens: it is not retracted any
    more, and takes its room from whoever else uses it. So each turn is retracted a bounded number of times.
    """

    def __init__(
        self,
        config: CoreConfig,
        pools: Pools,
        table: PageTable,
        cache: PrefixCache,
        queues: Queues,
        endings: Endings,
    ) -> None:
        self._page_size = config.page_size
        self._pools = pools
        self._table = table
        self._cache = cache
        self._queues = queues
        self._endings = endings
        self.ratio = NewTokenRatio(config.new_token_ratio)

    def missing(self, request: Request, query_len: int) -> int:
        """Pages that `query_len` more tokens need beyond those that are there; 0 or less: none."""
        kv, page_size = request.kv, self._page_size
        beyond = kv.kv_allocated_len + query_len - kv.cache_protected_len - len(kv.pages) * page_size
        return pages_for(beyond, page_size) if beyond > 0 else 0  # the protected part is whole pages

    def grow(self, request: Request, pages: int) -> bool:
        """Grants so many pages more, at least one, retracting others where it must. False: wait."""
        while not self._cache.make_room(pages, 0):
            if not self._retract_for(request):
                return False
        self._grant(request, pages)
        return True

    def grow_spare(self, request: Request, query_len: int) -> int:
        """Grants the pages for up to `query_len` more tokens without retracting anybody. Returns for how many."""
        missing = self.missing(request, query_len)
        if missing <= 0:
            return query_len
        if self._cache.make_room(missing, 0):
            self._grant(request, missing)
            return query_len
        kv = request.kv
        return kv.num_pages(self._page_size) * self._page_size - kv.kv_allocated_len

    def shrink(self, request: Request) -> None:
        """Gives back what no committed token needs. No plan with the request may be in flight."""
        kv = request.kv
        release_behind(self._pools, request.owner, kv, kv.kv_committed_len, self._page_size)

    def take_row(self, request: Request) -> None:
        """Grants a row to a request that was just admitted, unless it came with one."""
        kv = request.kv
        if kv.req_pool_idx is not None:
            return
        has_room = self._cache.make_room(0, 1)
        granted = self._pools.grant(request.owner, 0, rows=1) if has_room else None
        assert granted is not None, f"rid {request.rid}: admitted without a row to be had"
        kv.req_pool_idx = granted[1][0]
        self._table.write(kv.req_pool_idx, 0, kv.all_pages())

    def fits(self, request: Request, probe: Probe) -> bool:
        """Whether there is room for all tokens that this and the running requests have, and for some to come."""
        page_size, ratio = self._page_size, self.ratio.value
        wanted = pages_to_come(request, page_size, ratio, probe.num_pages)
        for running in self._queues.running:
            wanted += pages_to_come(running, page_size, ratio, running.kv.num_pages(page_size))
        room = self._pools.free(PoolKind.FULL) + self._cache.reclaimable_pages - probe.pinned_pages
        rows = self._pools.free(PoolKind.ROWS) + self._cache.reclaimable_rows
        return wanted <= room and (probe.has_row or rows > 0)

    def _grant(self, request: Request, pages: int) -> None:
        granted = self._pools.grant(request.owner, pages)
        assert granted is not None, f"rid {request.rid}: room for {pages} pages was made but is not there"
        kv = request.kv
        assert kv.req_pool_idx is not None, f"rid {request.rid} grows without a row"
        self._table.write(kv.req_pool_idx, kv.num_pages(self._page_size), granted[0])
        kv.pages.extend(granted[0])

    def _retract_for(self, request: Request) -> bool:
        """Retracts one. False when what comes back by itself will do, or nobody has to give way."""
        if self._queues.is_settling or self._pools.draining or self._has_guesses_in_flight():
            return False
        victim = self._find_victim(request)
        if victim is None:
            return False
        self._endings.retract(victim)
        self.ratio.raise_()
        return True

    def _has_guesses_in_flight(self) -> bool:
        """Whether pages that hold drafts come back once their plan is answered: nobody gives way for a guess."""
        return any(
            running.draft_tokens > 0 and running.kv.kv_allocated_len > running.known_len
            for running in self._queues.running
        )

    def _find_victim(self, request: Request) -> Request | None:
        for victim in reversed(self._queues.running):
            if victim.rank <= request.rank:
                return None
            if not victim.is_last_attempt:
                return victim
        return None
