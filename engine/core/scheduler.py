"""The scheduler: which requests compute which tokens in the next step, and what the answers mean."""

from collections import deque
from operator import itemgetter

from engine.core.commands import AbortReason, FinishReason
from engine.core.config import CoreConfig
from engine.core.drafts import find_drafts
from engine.core.endings import Endings
from engine.core.errors import InvariantViolation, require
from engine.core.events import EventLog, StepAnswered, StepPlanned, TokensSampled, TurnAdmitted, Usage
from engine.core.ids import TOKEN_BYTES, StepNo, count_ids, unpack_ids
from engine.core.plan import PlanRow, StepFailure, StepOutcome, StepPlan, StepResult, assert_well_formed
from engine.core.pools import Pools
from engine.core.prefix_cache import PrefixCache, Probe
from engine.core.queues import Queues
from engine.core.radix_node import shared_pages
from engine.core.request import SETTLING, Lane, Phase, Request
from engine.core.room import Room
from engine.core.rows import PageTable
from engine.core.stops import finish_reason

Share = tuple[Request, int]
"""A request that is in the plan being made, and how many tokens it computes."""

_share_of = itemgetter(*map(PlanRow._fields.index, ("rid", "start_len", "query_len")))
"""The part of a row that the world is told of."""

RUNNING = Phase.RUNNING
"""Looked up once: asking an enum for a member costs as much as a call, and every row of every step asks."""


class Scheduler:
    """Plans steps and takes their answers.

    It knows the prefix cache by its Protocol only: sessions with and without slots are scheduled alike.
    """

    def __init__(
        self,
        config: CoreConfig,
        pools: Pools,
        table: PageTable,
        cache: PrefixCache,
        queues: Queues,
        endings: Endings,
        log: EventLog,
    ) -> None:
        self._config = config
        self._pools = pools
        self._table = table
        self._cache = cache
        self._queues = queues
        self._endings = endings
        self._log = log
        self._room = Room(config, pools, table, cache, queues, endings)
        self._has_windows_or_states = pools.has_swa or pools.has_states
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

    # Planning

    def next_plan(self) -> StepPlan | None:
        """The next forward; None when there is nothing to run, or not before a plan in flight is answered."""
        if len(self._in_flight) >= self._config.in_flight_max:
            return None
        if not self._queues.live:
            self._room.ratio.reset()
            return None
        step = StepNo(self._steps + 1)
        self._pools.ledger.set_step(step)
        chosen: list[Share] = []
        budget, is_tight = self._choose_running(chosen, self._config.step_tokens)
        budget = self._choose_waiting(chosen, budget)
        if not chosen:
            self._pools.ledger.set_step(StepNo(self._steps))
            return None
        config = self._config
        plan = StepPlan(
            step,
            config.page_size,
            self._make_rows(step, chosen, 0 if is_tight else budget),
            window=config.window,
            has_states=config.state_slots > 0,
        )
        assert_well_formed(plan)
        self._steps = step
        self._in_flight.append(plan)
        self._room.ratio.lower()
        self._log.emit(StepPlanned(step, len(plan.rows), plan.num_tokens, tuple(map(_share_of, plan.rows))))
        return plan

    def _choose_running(self, chosen: list[Share], budget: int) -> tuple[int, bool]:
        """Shares for those that run, in order of rank. Returns what is left of the budget, and whether one got none."""
        is_tight = False  # once one of lower rank went without, those behind it take no new pages
        running = tuple(self._queues.running)
        num_behind = len(running)
        chunk_tokens = self._config.chunk_tokens
        for request in running:
            num_behind -= 1
            if request.phase is not RUNNING:
                continue  # retracted for another one a moment ago
            if request.draft_tokens > 0 and request.in_flight > 0:
                continue  # its drafts follow from the ids that are on their way
            # Each of those behind keeps a token of the budget: a long prompt must not hold up their decoding.
            own_budget = budget - num_behind
            query_len = request.next_query_len()
            if query_len > 1 or own_budget < 1:
                query_len = self._to_checkpoint(request, min(query_len, chunk_tokens, own_budget))
            if query_len == 0:
                continue
            missing = self._room.missing(request, query_len)
            if missing > 0 and (is_tight or not self._room.grow(request, missing)):
                is_tight = True
                continue
            chosen.append((request, query_len))
            budget -= query_len
        return budget, is_tight

    def _choose_waiting(self, chosen: list[Share], budget: int) -> int:
        """Admits those that wait, in the order of their lanes, until one does not fit. Returns what is left."""
        skipped = dict.fromkeys(Lane, 0)
        for running, query_len in chosen:
            self._queues.serve(running, query_len)
        while budget > 0 and len(self._queues.running) < self._config.running_max:
            request = self._queues.next_waiting(skipped)
            if request is None:
                break
            if request.is_waiting_for_prompt:
                skipped[request.lane] += 1
                continue
            probe = self._cache.probe(request)
            if not probe.is_ready or self._waits_for_prompt(request, probe):
                skipped[request.lane] += 1
                continue
            if not self._room.fits(request, probe):
                break
            self._admit(request, probe)
            query_len = min(request.next_query_len(), self._config.chunk_tokens, budget)
            query_len = self._to_checkpoint(request, query_len)
            missing = self._room.missing(request, query_len)
            has_room = missing <= 0 or self._room.grow(request, missing)
            assert has_room, f"rid {request.rid}: fitted, and then had no room for {query_len} tokens"
            chosen.append((request, query_len))
            self._queues.serve(request, query_len)
            budget -= query_len
        return budget

    def _to_checkpoint(self, request: Request, query_len: int) -> int:
        """Of a chunk of `query_len`, as much as ends at the last checkpoint of the prompt, or else of all ids."""
        if request.kv.states is None or query_len <= 1:
            return query_len
        start, interval = request.kv.kv_allocated_len, self._config.checkpoint_interval
        for length in (request.prompt_len, request.known_len):
            border = length // interval * interval
            if start < border < start + query_len:
                return border - start
        return query_len

    def _waits_for_prompt(self, request: Request, probe: Probe) -> bool:
        """Whether another's prompt, which is being computed now, will spare this one a good part of its own.

        Only one of lower rank, and only when less of it is left to compute than this one would have to.
        """
        request.waits_for = None
        if probe.tokens_from_slot > 0:
            return False
        page_size = self._config.page_size
        page_bytes = page_size * TOKEN_BYTES
        for other in self._queues.running:
            if other.is_prompt_cached or other.namespace != request.namespace or other.rank > request.rank:
                continue
            if other.ids[:page_bytes] != request.ids[:page_bytes] or not self._cache.shares_prompt(other):
                continue
            usable = min(other.prompt_len, request.known_len - 1) * TOKEN_BYTES
            num_shared = shared_pages(bytes(other.ids[:usable]), bytes(request.ids[:usable]), page_bytes)
            spared = self._cache.shared_len(other, num_shared * page_size) - probe.tokens_from_tree
            left = other.prompt_len - other.kv.kv_allocated_len
            own = request.known_len - probe.tokens_from_tree
            if spared >= self._config.prefix_wait_tokens and left <= own:
                request.waits_for = other
                return True
        return False

    def _make_rows(self, step: StepNo, chosen: list[Share], budget: int) -> tuple[PlanRow, ...]:
        """The rows of a plan. Drafts get what is left when everybody has a share: nobody goes without for a guess."""
        rows: list[PlanRow] = []
        for request, query_len in chosen:
            drafts = b""
            if request.draft_tokens > 0 and budget > 0:
                drafts = self._find_drafts(request, budget)
                budget -= count_ids(drafts)
                self._queues.serve(request, count_ids(drafts))
            rows.append(self._row(step, request, query_len, drafts))
        return tuple(rows)

    def _find_drafts(self, request: Request, budget: int) -> bytes:
        """Guesses for a turn that decodes: never more than it may still generate, or than there is spare room for."""
        if request.output_len == 0 or request.kv.kv_allocated_len < request.known_len - 1:
            return b""  # it computes its prompt, or its own ids again after a retraction
        left = request.max_tokens - request.output_len - 1
        most = min(request.draft_tokens, left, budget)
        drafts = find_drafts(request.ids, most) if most > 0 else b""
        if not drafts:
            return b""
        spare = self._room.grow_spare(request, 1 + count_ids(drafts))
        return drafts[: (spare - 1) * TOKEN_BYTES]

    def _row(self, step: StepNo, request: Request, query_len: int, drafts: bytes) -> PlanRow:
        kv, known_len, num_drafts = request.kv, request.known_len, count_ids(drafts) if drafts else 0
        req_pool_idx = kv.req_pool_idx
        assert req_pool_idx is not None, f"rid {request.rid} runs without a row"
        start = kv.kv_allocated_len
        stop = start + query_len
        uses_sampled = start >= known_len
        samples = stop >= known_len
        kv.kv_allocated_len = stop + num_drafts
        request.in_flight += 1
        request.last_step = step
        request.pending_samples += samples
        input_ids = b"" if uses_sampled else bytes(request.ids[start * TOKEN_BYTES : stop * TOKEN_BYTES])
        row = PlanRow(  # by position: names cost half as much again
            request.rid,
            request.epoch,
            req_pool_idx,
            start,
            query_len + num_drafts,
            input_ids + drafts if drafts else input_ids,
            uses_sampled,
            samples + num_drafts,
            self._table.row(req_pool_idx),
            request.sampling,
        )
        if not self._has_windows_or_states:
            return row
        state_read, state_write = (0, 0) if kv.states is None else kv.states.plan(stop)
        swa_table = self._table.swa_row(req_pool_idx)
        return row._replace(swa_table=swa_table, state_read=state_read, state_write=state_write)

    def _admit(self, request: Request, probe: Probe) -> None:
        """Takes the lease first, then makes room: so making room never takes what the turn came for."""
        self._cache.acquire(request, probe)
        self._queues.run(request)
        request.go(Phase.RUNNING)
        self._room.equip(request)
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
        if isinstance(outcome, StepResult):
            unusable = self._find_unusable(plan, outcome)
            if unusable is not None:  # a forward that is wrong for one row is not to be trusted with the others
                outcome = StepFailure(outcome.step, unusable)
        failure = outcome.reason if isinstance(outcome, StepFailure) else None
        self._log.emit(StepAnswered(plan.step, failure))
        self._pools.answered(plan.step)
        live = self._queues.live
        for index, row in enumerate(plan.rows):
            request = live[row.rid]
            request.in_flight -= 1
            if request.phase is RUNNING:
                if request.epoch != row.epoch:
                    # A retracted request runs again only when all its plans are answered, so none is stale here.
                    raise InvariantViolation(f"rid {row.rid}: epoch {row.epoch} was answered at {request.epoch}")
                if isinstance(outcome, StepResult):
                    self._take(request, row, outcome.sampled[index])
                else:
                    self._endings.abort(request, AbortReason.FORWARD_FAILED, now, outcome.reason)
            if request.phase is not RUNNING and request.phase in SETTLING:
                self._endings.settle(request)

    def _find_unusable(self, plan: StepPlan, result: StepResult) -> str | None:
        """Why the answers of a step can not be used, if so: each row owes as many ids as it samples, of the vocabulary.

        Rows of turns that ended meanwhile do not count: they may have gone on from what a failed step left.
        """
        if len(result.sampled) != len(plan.rows):
            return f"{len(result.sampled)} answers for {len(plan.rows)} rows"
        vocab_size, live = self._config.vocab_size, self._queues.live
        for row, sampled in zip(plan.rows, result.sampled, strict=True):
            due = row.num_samples
            if due == 1 and len(sampled) == 1:  # each row of a step of decode
                is_usable = 0 <= sampled[0] < vocab_size
            else:
                is_usable = len(sampled) == due and all(0 <= token < vocab_size for token in sampled)
            if not is_usable and live[row.rid].phase is RUNNING:
                num_good = sum(0 <= token < vocab_size for token in sampled)
                return f"rid {row.rid}: {len(sampled)} ids, {num_good} below {vocab_size}, where {due} were due"
        return None

    def _take(self, request: Request, row: PlanRow, sampled: tuple[int, ...]) -> None:
        """The row's KV is valid now, as far as its drafts were right, and what it sampled comes next."""
        kv, num_samples = request.kv, row.num_samples
        token_ids = sampled if num_samples <= 1 else self._accept(request, row, sampled)
        kv.kv_committed_len = row.start_len + row.query_len - num_samples + len(token_ids)
        if kv.states is not None:
            self._room.take_state(request)
        if not request.is_prompt_cached:
            request.is_prompt_cached = kv.kv_committed_len >= request.prompt_len
            self._cache.cache_prompt(request)
        if num_samples > 1:
            self._room.shrink(request)
        if self._has_windows_or_states:
            self._cache.leave_behind(request)
        if not token_ids:
            return
        request.pending_samples -= 1
        output_len = request.known_len - request.prompt_len
        request.append(token_ids)
        self._log.emit(TokensSampled(request.rid, output_len, token_ids, num_samples - 1))
        reason = self._finish_reason(request, token_ids[-1], output_len + len(token_ids))
        if reason is not None:
            self._endings.finish(request, reason)

    def _accept(self, request: Request, row: PlanRow, sampled: tuple[int, ...]) -> tuple[int, ...]:
        """The leading ids that follow from right inputs: one more than drafts were right, none past the turn's end."""
        drafts = unpack_ids(row.input_ids)[row.query_len - row.num_samples + 1 :]
        count = 1
        for token, draft in zip(sampled, drafts, strict=False):
            if token != draft or self._finish_reason(request, token, request.output_len + count) is not None:
                break
            count += 1
        return sampled[:count]

    def _finish_reason(self, request: Request, token_id: int, output_len: int) -> FinishReason | None:
        eos_ids = self._config.eos_ids
        return finish_reason(token_id, output_len, request.max_tokens, eos_ids, request.ignore_eos)
