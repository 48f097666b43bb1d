"""The scheduler: which requests compute which tokens in the next step, and what the answers mean."""

from collections import deque

from engine.core import admission
from engine.core.commands import AbortReason, Submit
from engine.core.config import CoreConfig
from engine.core.endings import Endings
from engine.core.errors import require
from engine.core.events import (
    EventLog,
    StepAnswered,
    StepPlanned,
    TokensSampled,
    TurnAccepted,
    TurnAdmitted,
    Usage,
)
from engine.core.ids import TOKEN_BYTES, StepNo, count_ids, pack_ids, pages_for
from engine.core.ownership import PoolKind
from engine.core.plan import PlanRow, StepFailure, StepOutcome, StepPlan, StepResult, assert_well_formed
from engine.core.pools import Pools
from engine.core.prefix_cache import PrefixCache, Probe
from engine.core.queues import Queues
from engine.core.request import Phase, Request
from engine.core.rows import PageTable
from engine.core.sessions import SessionController
from engine.core.stops import finish_reason
from engine.core.turns import compile_turn


class Scheduler:
    """First come, first served: older requests get room first, and the newest one is retracted when there is none.

    It knows the prefix cache by its Protocol only: sessions with and without slots are scheduled alike.
    """

    def __init__(
        self,
        config: CoreConfig,
        pools: Pools,
        table: PageTable,
        cache: PrefixCache,
        queues: Queues,
        sessions: SessionController,
        endings: Endings,
        log: EventLog,
    ) -> None:
        self._config = config
        self._pools = pools
        self._table = table
        self._cache = cache
        self._queues = queues
        self._sessions = sessions
        self._endings = endings
        self._log = log
        self._in_flight: deque[StepPlan] = deque()
        self._steps = 0

    @property
    def steps(self) -> int:
        """Plans made so far."""
        return self._steps

    @property
    def in_flight(self) -> tuple[StepPlan, ...]:
        """Plans that are not answered yet, oldest first."""
        return tuple(self._in_flight)

    # Coming in

    def submit(self, command: Submit) -> None:
        """Accepts a turn into the queue. Raises Refusal, and then nothing has changed."""
        config = self._config
        require(command.rid not in self._queues.live, f"rid {command.rid} was minted twice")
        admission.check_input(config, command)
        session = self._sessions.find_admissible(command)
        turn = compile_turn(session, command.parent, command.input_ids)
        prompt_len = count_ids(turn.ids)
        max_tokens = admission.accepted_max_tokens(config, prompt_len, turn.base_len, command.max_tokens)
        admission.check_queue(config, self._queues.num_new_waiting)
        request = Request(
            rid=command.rid,
            turn_id=command.turn_id,
            session=session,
            parent=command.parent,
            namespace=session.namespace if session is not None else command.namespace,
            ids=bytearray(turn.ids),
            base_len=turn.base_len,
            prompt_len=prompt_len,
            max_tokens=max_tokens,
            ignore_eos=command.ignore_eos,
            sampling=command.sampling,
            arrival=self._queues.next_arrival(),
            trace_id=command.trace_id,
        )
        self._queues.live[request.rid] = request
        self._queues.wait(request)
        self._sessions.begin_turn(session, request.turn_id, request.rid)
        self._log.emit(
            TurnAccepted(
                rid=request.rid,
                turn_id=request.turn_id,
                session_id=command.session_id,
                context_len=prompt_len,
                new_len=prompt_len - turn.base_len,
                max_tokens=max_tokens,
                trace_id=command.trace_id,
            )
        )

    # Planning

    def next_plan(self) -> StepPlan | None:
        """The next forward; None when there is nothing to run, or not before a plan in flight is answered."""
        if len(self._in_flight) >= self._config.in_flight_max:
            return None
        rows: list[PlanRow] = []
        budget = self._plan_running(rows, self._config.step_tokens)
        self._plan_waiting(rows, budget)
        if not rows:
            return None
        self._steps += 1
        plan = StepPlan(StepNo(self._steps), self._config.page_size, tuple(rows))
        assert_well_formed(plan)
        for row in rows:
            self._queues.live[row.rid].last_step = plan.step
        self._in_flight.append(plan)
        self._log.emit(StepPlanned(plan.step, len(rows), plan.num_tokens))
        return plan

    def _plan_running(self, rows: list[PlanRow], budget: int) -> int:
        """Rows for those that run, oldest first. Returns the tokens left in the budget."""
        is_tight = False  # once an older request went without, younger ones take no new pages
        running = tuple(self._queues.running)
        for place, request in enumerate(running, start=1):
            if request.phase is not Phase.RUNNING:
                continue  # retracted for an older one a moment ago
            # Each of those behind keeps a token of the budget: a long prompt must not hold up their decoding.
            query_len = self._query_len(request, budget - (len(running) - place))
            if query_len == 0:
                continue
            if is_tight and self._missing(request, query_len) > 0:
                continue
            if self._grow(request, query_len):
                rows.append(self._row(request, query_len))
                budget -= query_len
            else:
                is_tight = True
        return budget

    def _plan_waiting(self, rows: list[PlanRow], budget: int) -> None:
        """Admits those that wait, in order of arrival, until one does not fit."""
        for request in tuple(self._queues.waiting):
            if budget == 0 or len(self._queues.running) >= self._config.running_max:
                return
            probe = self._cache.probe(request)
            if not probe.is_ready:
                continue
            if not self._fits(request, probe):
                return
            self._admit(request, probe)
            query_len = self._query_len(request, budget)
            has_room = self._grow(request, query_len)
            assert has_room, f"rid {request.rid}: fitted, and then had no room for {query_len} tokens"
            rows.append(self._row(request, query_len))
            budget -= query_len

    def _query_len(self, request: Request, budget: int) -> int:
        """How many tokens to compute now: what is known, or the one id that a plan in flight will sample."""
        explicit = request.known_len - request.kv.kv_allocated_len
        wanted = min(request.to_compute, explicit if explicit > 0 else 1)
        return min(wanted, self._config.chunk_tokens, budget)

    def _row(self, request: Request, query_len: int) -> PlanRow:
        kv = request.kv
        assert kv.req_pool_idx is not None, f"rid {request.rid} runs without a row"
        start = kv.kv_allocated_len
        stop = start + query_len
        uses_sampled = start >= request.known_len
        samples = stop >= request.known_len
        kv.kv_allocated_len = stop
        request.in_flight += 1
        request.pending_samples += samples
        return PlanRow(
            rid=request.rid,
            epoch=request.epoch,
            req_pool_idx=kv.req_pool_idx,
            start_len=start,
            query_len=query_len,
            input_ids=b"" if uses_sampled else bytes(request.ids[start * TOKEN_BYTES : stop * TOKEN_BYTES]),
            uses_sampled=uses_sampled,
            samples=samples,
            page_table=self._table.row(kv.req_pool_idx),
            sampling=request.sampling,
        )

    # Room

    def _missing(self, request: Request, query_len: int) -> int:
        kv, page_size = request.kv, self._config.page_size
        return pages_for(kv.kv_allocated_len + query_len, page_size) - kv.num_pages(page_size)

    def _grow(self, request: Request, query_len: int) -> bool:
        """Grants the pages for `query_len` more tokens, retracting younger requests where it must. False: wait."""
        missing = self._missing(request, query_len)
        while missing > 0 and not self._cache.make_room(missing, 0):
            if not self._retract_for(request, missing):
                return False
        if missing > 0:
            granted = self._pools.grant(request.owner, missing)
            assert granted is not None, f"rid {request.rid}: room for {missing} pages was made but is not there"
            kv = request.kv
            assert kv.req_pool_idx is not None, f"rid {request.rid} grows without a row"
            self._table.write(kv.req_pool_idx, kv.num_pages(self._config.page_size), granted[0])
            kv.pages.extend(granted[0])
        return True

    def _retract_for(self, request: Request, missing: int) -> bool:
        """Retracts the newest request if younger than this. False when what drains will do, or nobody is younger."""
        if self._queues.is_settling or self._pools.draining:
            return False
        victim = self._queues.running[-1]
        if victim.arrival <= request.arrival:
            return False
        self._endings.retract(victim)
        return True

    def _fits(self, request: Request, probe: Probe) -> bool:
        """Whether there is room for all tokens that this and the running requests have, and for some to come."""
        page_size, ratio = self._config.page_size, self._config.new_token_ratio
        wanted = admission.pages_to_come(request, page_size, ratio, probe.num_pages)
        for running in self._queues.running:
            wanted += admission.pages_to_come(running, page_size, ratio, running.kv.num_pages(page_size))
        room = self._pools.free(PoolKind.FULL) + self._cache.reclaimable_pages - probe.pinned_pages
        rows = self._pools.free(PoolKind.ROWS) + self._cache.reclaimable_rows
        return wanted <= room and (probe.has_row or rows > 0)

    def _admit(self, request: Request, probe: Probe) -> None:
        """Takes the lease first, then makes room: so making room never takes what the turn came for."""
        self._cache.acquire(request, probe)
        self._queues.run(request)
        request.go(Phase.RUNNING)
        kv = request.kv
        if kv.req_pool_idx is None:
            has_room = self._cache.make_room(0, 1)
            granted = self._pools.grant(request.owner, 0, rows=1) if has_room else None
            assert granted is not None, f"rid {request.rid}: admitted without a row to be had"
            kv.req_pool_idx = granted[1][0]
            self._table.write(kv.req_pool_idx, 0, kv.all_pages())
        computed = request.known_len - probe.tokens_from_slot - probe.tokens_from_tree
        if request.usage is None:
            request.usage = Usage(request.prompt_len, probe.tokens_from_slot, probe.tokens_from_tree, computed)
        attempt = request.retractions + 1
        self._log.emit(TurnAdmitted(request.rid, attempt, probe.tokens_from_slot, probe.tokens_from_tree, computed))

    # Answers

    def advance(self, outcome: StepOutcome, now: float) -> None:
        """Takes the answer to the oldest plan in flight."""
        require(bool(self._in_flight), f"step {outcome.step} was answered, but no plan is in flight")
        plan = self._in_flight.popleft()
        require(plan.step == outcome.step, f"step {outcome.step} was answered before step {plan.step}")
        if isinstance(outcome, StepResult) and len(outcome.sampled) != len(plan.rows):
            reason = f"{len(outcome.sampled)} answers for {len(plan.rows)} rows"
            outcome = StepFailure(outcome.step, reason)
        failure = outcome.reason if isinstance(outcome, StepFailure) else None
        self._log.emit(StepAnswered(plan.step, failure))
        self._pools.answered(plan.step)
        for index, row in enumerate(plan.rows):
            request = self._queues.live[row.rid]
            request.in_flight -= 1
            if request.phase is Phase.RUNNING:
                # A retracted request runs again only when all its plans are answered, so none of them is stale here.
                require(request.epoch == row.epoch, f"rid {row.rid}: epoch {row.epoch} was answered at {request.epoch}")
                if isinstance(outcome, StepResult):
                    self._take(request, row, outcome.sampled[index], now)
                else:
                    self._endings.abort(request, AbortReason.FORWARD_FAILED, now, outcome.reason)
            if request.phase is not Phase.DONE:
                self._endings.settle(request)

    def _take(self, request: Request, row: PlanRow, sampled: int | None, now: float) -> None:
        """The row's KV is valid now, and its sampled id is the request's next token."""
        is_usable = (
            sampled is None if not row.samples else sampled is not None and 0 <= sampled < self._config.vocab_size
        )
        if not is_usable:
            detail = f"step yielded {sampled} where {'an id' if row.samples else 'nothing'} was due"
            self._endings.abort(request, AbortReason.FORWARD_FAILED, now, detail)
            return
        request.kv.kv_committed_len = row.start_len + row.query_len
        if request.kv.kv_committed_len >= request.prompt_len and not request.is_prompt_cached:
            request.is_prompt_cached = True
            self._cache.cache_prompt(request)
        if sampled is None:
            return
        request.pending_samples -= 1
        request.ids += pack_ids((sampled,))
        self._log.emit(TokensSampled(request.rid, request.output_len - 1, (sampled,)))
        reason = finish_reason(
            sampled, request.output_len, request.max_tokens, self._config.eos_ids, request.ignore_eos
        )
        if reason is not None:
            self._endings.finish(request, reason)
