"""Room for turns: pages and rows for those that run, who gives way when there are none, and who may come in."""

from engine.core.admission import NewTokenRatio, pages_to_come, windows_to_come
from engine.core.config import CoreConfig
from engine.core.endings import Endings
from engine.core.ids import pages_for
from engine.core.ownership import PoolKind
from engine.core.pools import Pools
from engine.core.prefix_cache import PrefixCache, Probe
from engine.core.queues import Queues
from engine.core.releases import release_behind, write_table
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
        self._config = config
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

    def equip(self, request: Request) -> None:
        """Grants a row and state slots to a request that was just admitted, as far as it came without."""
        kv = request.kv
        rows, states = int(kv.req_pool_idx is None), kv.num_states_missing
        if rows == 0 and states == 0:
            return
        has_room = self._cache.make_room(0, rows, states)
        granted = self._pools.grant(request.owner, 0, rows, states) if has_room else None
        assert granted is not None, f"rid {request.rid}: admitted without {rows} rows and {states} states to be had"
        if kv.states is not None:
            kv.states.spare += granted.states
        if rows:
            kv.req_pool_idx = granted.rows[0]
            write_table(self._table, kv)

    def take_state(self, request: Request) -> None:
        """A step left its state. It becomes the turn's checkpoint where the cache may keep one, and there is room.

        For the last one of the prompt, and those behind, others give way; before that only spare slots are taken.
        """
        states = request.kv.states
        assert states is not None, f"rid {request.rid}: no states"
        length = states.answer()
        interval = self._config.checkpoint_interval
        if length % interval or length <= request.kv.cache_protected_len:
            return
        is_last = length >= request.prompt_len // interval * interval
        if not states.can_keep_checkpoint() and self._has_spare_state(may_make_room=is_last):
            granted = self._pools.grant(request.owner, 0, states=1)
            assert granted is not None, f"rid {request.rid}: room for a state was made but is not there"
            states.spare += granted.states
        if states.can_keep_checkpoint():
            states.keep_checkpoint(length)

    def _has_spare_state(self, *, may_make_room: bool) -> bool:
        return self._cache.make_room(0, 0, 1) if may_make_room else self._pools.free(PoolKind.MAMBA) > 0

    def fits(self, request: Request, probe: Probe) -> bool:
        """Whether there is room for all tokens that this and the running requests have, and for some to come."""
        page_size, ratio = self._page_size, self.ratio.value
        wanted = pages_to_come(request, page_size, ratio, probe.num_pages)
        for running in self._queues.running:
            wanted += pages_to_come(running, page_size, ratio, running.kv.num_pages(page_size))
        if wanted > self._left(PoolKind.FULL) - probe.pinned.pages:
            return False
        if self._pools.has_swa and self._windows_wanted(request, probe) > (
            self._left(PoolKind.SWA) - probe.pinned.swa_pages
        ):
            return False
        if self._pools.has_states and probe.states_missing > self._left(PoolKind.MAMBA) - probe.pinned.states:
            return False
        return probe.has_row or self._left(PoolKind.ROWS) > 0

    def _left(self, pool: PoolKind) -> int:
        return self._pools.free(pool) + self._cache.reclaimable(pool)

    def _windows_wanted(self, request: Request, probe: Probe) -> int:
        """SWA pages that this and the running requests will need: of each a window and a step, not its length."""
        config, ratio = self._config, self.ratio.value
        to_come = pages_to_come(request, config.page_size, ratio, probe.num_pages)
        num_locked = probe.pinned.swa_pages - probe.swa_pages if probe.is_pinned_window else 0
        wanted = windows_to_come(config, to_come, probe.swa_pages, num_locked, is_pinned=probe.is_pinned_window)
        for running in self._queues.running:
            kv = running.kv
            to_come = pages_to_come(running, config.page_size, ratio, kv.num_pages(config.page_size))
            wanted += windows_to_come(config, to_come, len(kv.swa), 0, is_pinned=kv.pin_len > 0)
        return wanted

    def _grant(self, request: Request, pages: int) -> None:
        granted = self._pools.grant(request.owner, pages)
        assert granted is not None, f"rid {request.rid}: room for {pages} pages was made but is not there"
        kv = request.kv
        assert kv.req_pool_idx is not None, f"rid {request.rid} grows without a row"
        start = kv.num_pages(self._page_size)
        self._table.write(kv.req_pool_idx, start, granted.pages)
        kv.pages.extend(granted.pages)
        if granted.swa_pages:
            self._table.write_swa(kv.req_pool_idx, start, granted.swa_pages)
            kv.swa.update(enumerate(granted.swa_pages, start))

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
