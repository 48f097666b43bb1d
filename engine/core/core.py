"""The facade: the pure core behind a few verbs and look-ups."""

from typing import assert_never

from engine.core.commands import (
    Abort,
    AbortReason,
    Applied,
    Close,
    Command,
    CommitAck,
    CommitFailed,
    FinishAt,
    Flush,
    Flushed,
    Fork,
    Open,
    Submit,
    Truncate,
)
from engine.core.config import CoreConfig
from engine.core.endings import Endings
from engine.core.errors import require
from engine.core.events import CacheFlushed, EventLog, Numbered
from engine.core.faults import Fault, plant_fault
from engine.core.findings import CheckLevel, Report
from engine.core.flushing import flush_tree
from engine.core.holding import Holding
from engine.core.ids import SessionId, TurnId, pages_for
from engine.core.image import BooksImage, take_image
from engine.core.intake import Intake
from engine.core.invariants import Books, check_books
from engine.core.lineage import Lineage
from engine.core.no_cache import NoPrefixCache
from engine.core.owners_check import OWNERS_SLICE_UNITS, OwnersCheck
from engine.core.ownership import Owner, PoolKind
from engine.core.plan import StepOutcome, StepPlan
from engine.core.pools import Pools
from engine.core.prefix_cache import HoldingCache, PrefixCache
from engine.core.provenance import UnitHistory
from engine.core.quarantine import quarantine_leaks
from engine.core.queues import Queues
from engine.core.radix import RadixTree
from engine.core.radix_cache import RadixCache
from engine.core.rows import PageTable
from engine.core.scheduler import Scheduler
from engine.core.session_cache import IdleSlots, SessionAwareCache
from engine.core.sessions import SessionController
from engine.core.sliced_check import SLICE_UNITS, SlicedCheck
from engine.core.snapshot import SessionState, Snapshot, TurnState, describe_plan
from engine.core.states import STATES_A_TURN
from engine.core.turns import Point, find_base


class Core:
    """Pure and synchronous: the same calls with the same arguments give the same events, byte for byte.

    `now` is monotonic time in seconds and may not go backwards. One task owns a Core; it has no locks.
    """

    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self._log = EventLog()
        self._pools = Pools(
            config.pool_pages,
            config.num_rows,
            self._log,
            swa_pages=config.swa_pages,
            state_slots=config.state_slots,
        )
        pages_per_row = pages_for(config.context_len, config.page_size)
        self._table = PageTable(config.num_rows, pages_per_row, has_swa=self._pools.has_swa)
        self._tree = RadixTree(config.page_size, self._pools, config.window)
        matcher = self._tree.matcher
        inner: HoldingCache = NoPrefixCache(matcher, config.cut_back_max, self._pools, self._table)
        if config.prefix_cache:
            inner = RadixCache(
                matcher, config.cut_back_max, config.checkpoint_interval, self._pools, self._table, self._tree
            )
        self._slots: SessionAwareCache | None = None
        if config.streaming_sessions:
            self._slots = SessionAwareCache(inner, config.page_size, self._pools, self._table, self._tree, self._log)
        self._cache: PrefixCache = self._slots or inner
        self._queues = Queues()
        self._sessions = SessionController(config, self._log)
        self._endings = Endings(config, self._pools, self._queues, self._cache, self._sessions, self._log)
        self._intake = Intake(config, self._queues, self._sessions, self._endings, self._pools, self._log)
        self._lineage = Lineage(self._sessions, self._cache, self._log)
        self._scheduler = Scheduler(
            config, self._pools, self._table, self._cache, self._queues, self._endings, self._log
        )
        slots = self._slots
        self._books = Books(
            matcher=matcher,
            pools=self._pools,
            table=self._table,
            tree=self._tree,
            queues=self._queues,
            slots=slots.slots if slots is not None else tuple,
            idle=slots.idle if slots is not None else IdleSlots,
            sessions=self._sessions.all,
        )
        self._sliced_check = SlicedCheck(self._books)
        self._owners_check = OwnersCheck(self._books)
        self._checks_run = 0
        self._num_changes = 0
        self._now = 0.0

    def apply(self, command: Command, now: float) -> Applied:
        """Takes one command. Raises Refusal, and then nothing has changed."""
        self._advance_clock(now)
        self._num_changes += 1
        try:
            return self._take(command, now)
        finally:
            self._num_changes += 1

    def _take(self, command: Command, now: float) -> Applied:
        match command:
            case Open():
                self._cache.open_session(self._sessions.open(command, now))
            case Close():
                session = self._sessions.get(command.session_id)
                if session is not None:
                    if session.closing is None or command.trace_id:
                        session.closing_trace = command.trace_id, command.caller_span
                    self._endings.close(session, AbortReason.SESSION_CLOSED, now, drain=command.drain)
            case Fork():
                return self._lineage.fork(command, now)
            case Truncate():
                return self._lineage.truncate(command)
            case Submit():
                self._intake.submit(command, now)
            case Abort() | FinishAt() | CommitAck() | CommitFailed():
                self._apply_to_turn(command, now)
            case Flush():
                return self._flush(command)
            case _:
                assert_never(command)
        return None

    def _flush(self, command: Flush) -> Flushed:
        flushed = flush_tree(self._tree, self._pools.ledger, command.evictions_max)
        if flushed.is_complete:
            self._log.emit(CacheFlushed(flushed.pages + flushed.swa_pages + flushed.states))
        return flushed

    def _apply_to_turn(self, command: Abort | FinishAt | CommitAck | CommitFailed, now: float) -> None:
        request = self._queues.live.get(command.rid)
        if request is None:
            return
        match command:
            case Abort():
                self._endings.abort(request, command.reason, now, command.detail)
            case FinishAt():
                self._endings.finish_at(request, command.output_len, command.reason)
            case CommitAck():
                self._endings.commit(request, now)
            case CommitFailed():
                self._endings.fail_commit(request, now)
            case _:
                assert_never(command)

    def expire(self, now: float) -> None:
        """Closes sessions that have been without a turn for their idle timeout or longer."""
        self._advance_clock(now)
        for session in self._sessions.find_expired(now):
            self._num_changes += 1
            self._endings.close(session, AbortReason.SESSION_EXPIRED, now)
            self._num_changes += 1

    def next_plan(self, now: float) -> StepPlan | None:
        """The next forward to submit; None when there is nothing to run, or not before a plan in flight is answered."""
        self._advance_clock(now)
        if not self._queues.live:  # there is nobody to plan for, and nothing changes
            return self._scheduler.next_plan()
        self._num_changes += 1
        plan = self._scheduler.next_plan()
        self._num_changes += 1
        return plan

    def advance(self, outcome: StepOutcome, now: float) -> None:
        """Takes the answer to the oldest plan in flight."""
        self._advance_clock(now)
        self._num_changes += 1
        self._scheduler.advance(outcome, now)
        self._num_changes += 1

    def _advance_clock(self, now: float) -> None:
        assert now >= self._now, f"time went back from {self._now} to {now}"
        self._now = now

    def take_events(self) -> tuple[Numbered, ...]:
        """What happened since the last call, in order."""
        return self._log.take()

    def check(self, level: CheckLevel) -> Report:
        """Holds the books against each other. Never repairs, never raises for a finding."""
        self._checks_run += 1
        return check_books(self._books, level)

    def check_slice(self, units: int = SLICE_UNITS) -> Report | None:
        """Goes on with a full check for about so much work; its report when it is through, None before.

        The same findings as the full check's, of one instant: when anything changed since the last slice, it begins
        anew.
        """
        report = self._sliced_check.run_slice(self._num_changes, units)
        self._checks_run += report is not None
        return report

    def check_owners_slice(self, units: int = OWNERS_SLICE_UNITS) -> Report:
        """Checks some owners exactly, each at this instant, for about so much work; the next ones at the next call.

        Changes between two calls do no harm. See `OwnersCheck` for what it finds.
        """
        return self._owners_check.run_slice(units)

    @property
    def num_changes(self) -> int:
        """Grows before and after whatever may change the core: between equal readings nothing did, and while it is odd
        something does."""
        return self._num_changes

    def explain(self, pool: PoolKind, unit: int) -> UnitHistory:
        """Who has a page or a row now, and how it got there. Raises IndexError for one that does not exist."""
        return self._pools.ledger.explain(pool, unit)

    def owners(self, pool: PoolKind) -> tuple[Owner, ...]:
        """The owner of every unit, padding (unit 0) included. O(units)."""
        return self._pools.ledger.owners(pool)

    def quarantine(self, report: Report) -> tuple[UnitHistory, ...]:
        """Takes the units that a full report calls leaked out of circulation, nothing else. Returns their histories.

        Raises InvariantViolation, moving nothing, when something moved since the report was made.
        """
        self._num_changes += 1
        histories = quarantine_leaks(self._pools, report)
        if histories:
            self._require_enough()
            self._endings.fit_pool(self._pools.in_circulation(PoolKind.FULL) * self.config.page_size, self._now)
        self._num_changes += 1
        return histories

    def _require_enough(self) -> None:
        """Raises InvariantViolation when what is left in circulation is too little for any turn to run in."""
        config, pools = self.config, self._pools
        least = {PoolKind.FULL: 1, PoolKind.ROWS: 1}
        least |= {PoolKind.SWA: config.swa_turn_pages} if pools.has_swa else {}
        least |= {PoolKind.MAMBA: STATES_A_TURN} if pools.has_states else {}
        left = {pool: pools.in_circulation(pool) for pool in least}
        is_enough = all(left[pool] >= count for pool, count in least.items())
        require(is_enough, f"too little is left in circulation to serve with: {left}, {least} are needed")

    def plant(self, fault: Fault) -> UnitHistory:
        """Breaks the books on purpose, see `engine.core.faults`. Raises Refusal: FAULT_IMPOSSIBLE."""
        self._num_changes += 2
        return plant_fault(self._books, fault)

    @property
    def last_seq(self) -> int:
        """Number of the last event, told already or not: `seq` of an image that is taken now."""
        return self._log.last_seq

    def image(self) -> BooksImage:
        """The books unit by unit, as all events so far have made them. O(units)."""
        return take_image(self._books, self._log.last_seq)

    def snapshot(self) -> Snapshot:
        """Batch and pool state as plain data: O(turns + sessions)."""
        return Snapshot(
            page_size=self.config.page_size,
            pools=tuple(self._pools.books(pool) for pool in self._pools.ledger.pools),
            turns=self._turn_states(),
            sessions=self._session_states(),
            steps=self._scheduler.steps,
            in_flight=len(self._scheduler.in_flight),
            checks_run=self._checks_run,
            plans=tuple(map(describe_plan, self._scheduler.in_flight)),
        )

    def _turn_states(self) -> tuple[TurnState, ...]:
        return tuple(
            TurnState(
                rid=request.rid,
                turn_id=request.turn_id,
                session_id=request.session.session_id if request.session is not None else None,
                phase=request.phase,
                context_len=request.prompt_len,
                output_len=request.output_len,
                kv_committed_len=request.kv.kv_committed_len,
                pages=len(request.kv.pages),
                in_flight=request.in_flight,
                swa_pages=len(request.kv.swa),
                states=len(request.kv.state_slots()),
            )
            for request in self._queues.live.values()
        )

    def _session_states(self) -> tuple[SessionState, ...]:
        slots = {slot.session.uid: slot for slot in self._slots.slots()} if self._slots is not None else {}
        states: list[SessionState] = []
        for session in self._sessions.all():
            slot = slots.get(session.uid)
            lessee = self._queues.live.get(slot.lessee) if slot is not None and slot.lessee is not None else None
            kv = lessee.kv if lessee is not None else slot.kv if slot is not None else Holding()
            states.append(
                SessionState(
                    session_id=session.session_id,
                    streaming=session.streaming,
                    history_len=session.history_len,
                    live_turns=len(session.live),
                    slot=slot.state if slot is not None else None,
                    kv_committed_len=kv.kv_committed_len,
                    pages=len(kv.pages),
                    number=session.uid,
                    swa_pages=len(kv.swa),
                    states=len(kv.state_slots()),
                )
            )
        return tuple(states)

    def find_base(self, session_id: SessionId, point: Point) -> bytes:
        """The ids that a turn at `point` would follow (streaming: always the whole session), as int32 bytes.

        Raises Refusal: SESSION_UNKNOWN, and as `engine.core.turns.find_base`.
        """
        return find_base(self._sessions.find(session_id), point).ids

    def has_turn(self, session_id: SessionId | None, turn_id: TurnId) -> bool:
        """Whether a turn of that name is live, or finished and part of its session."""
        return self._sessions.has_turn(session_id, turn_id)

    @property
    def has_work(self) -> bool:
        """Whether a turn is live (waiting, running, committing or settling) or a plan is in flight."""
        return bool(self._queues.live) or self.num_in_flight > 0

    @property
    def num_in_flight(self) -> int:
        """Plans that are not answered yet."""
        return len(self._scheduler.in_flight)
