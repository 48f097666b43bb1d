"""The facade: the pure core behind seven verbs and a look-up."""

from typing import assert_never

from engine.core.commands import Abort, AbortReason, Close, Command, CommitAck, CommitFailed, FinishAt, Open, Submit
from engine.core.config import CoreConfig
from engine.core.endings import Endings
from engine.core.events import EventLog, Numbered
from engine.core.ids import SessionId, TurnId, pages_for
from engine.core.invariants import Books, CheckLevel, Report, check_books
from engine.core.ownership import PoolKind
from engine.core.plan import StepOutcome, StepPlan
from engine.core.pools import Pools
from engine.core.prefix_cache import NoPrefixCache, PrefixCache, RadixCache
from engine.core.queues import Queues
from engine.core.radix import RadixTree
from engine.core.rows import PageTable
from engine.core.scheduler import Scheduler
from engine.core.session_cache import IdleSlots, SessionAwareCache
from engine.core.sessions import SessionController
from engine.core.snapshot import SessionState, Snapshot, TurnState
from engine.core.turns import base_ids


class Core:
    """Pure and synchronous: the same calls with the same arguments give the same events, byte for byte.

    `now` is monotonic time in seconds and may not go backwards. One task owns a Core; it has no locks.
    """

    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self._log = EventLog()
        self._pools = Pools(config.pool_pages, config.num_rows, self._log)
        self._table = PageTable(config.num_rows, pages_for(config.context_len, config.page_size))
        self._tree = RadixTree(config.page_size, self._pools)
        inner: PrefixCache = NoPrefixCache(self._pools, self._table)
        if config.prefix_cache:
            inner = RadixCache(config.page_size, self._pools, self._table, self._tree)
        self._slots: SessionAwareCache | None = None
        if config.streaming_sessions:
            self._slots = SessionAwareCache(inner, config.page_size, self._pools, self._table, self._tree, self._log)
        self._cache: PrefixCache = self._slots or inner
        self._queues = Queues()
        self._sessions = SessionController(config, self._log)
        self._endings = Endings(self._queues, self._cache, self._sessions, self._log)
        self._scheduler = Scheduler(
            config,
            self._pools,
            self._table,
            self._cache,
            self._queues,
            self._sessions,
            self._endings,
            self._log,
        )
        self._checks_run = 0
        self._now = 0.0

    def apply(self, command: Command, now: float) -> None:
        """Takes one command. Raises Refusal, and then nothing has changed."""
        self._advance_clock(now)
        match command:
            case Open():
                self._cache.open_session(self._sessions.open(command, now))
            case Close():
                session = self._sessions.get(command.session_id)
                if session is not None:
                    self._endings.close(session, AbortReason.SESSION_CLOSED, now)
            case Submit():
                self._scheduler.submit(command)
            case Abort() | FinishAt() | CommitAck() | CommitFailed():
                self._apply_to_turn(command, now)
            case _:
                assert_never(command)

    def _apply_to_turn(self, command: Abort | FinishAt | CommitAck | CommitFailed, now: float) -> None:
        request = self._queues.live.get(command.rid)
        if request is None:
            return
        match command:
            case Abort():
                self._endings.abort(request, command.reason, now)
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
            self._endings.close(session, AbortReason.SESSION_EXPIRED, now)

    def next_plan(self, now: float) -> StepPlan | None:
        """The next forward to submit; None when there is nothing to run, or not before a plan in flight is answered."""
        self._advance_clock(now)
        return self._scheduler.next_plan()

    def advance(self, outcome: StepOutcome, now: float) -> None:
        """Takes the answer to the oldest plan in flight."""
        self._advance_clock(now)
        self._scheduler.advance(outcome, now)

    def _advance_clock(self, now: float) -> None:
        assert now >= self._now, f"time went back from {self._now} to {now}"
        self._now = now

    def take_events(self) -> tuple[Numbered, ...]:
        """What happened since the last call, in order."""
        return self._log.take()

    def check(self, level: CheckLevel) -> Report:
        """Holds the books against each other. Never repairs, never raises for a finding."""
        self._checks_run += 1
        slots = self._slots
        books = Books(
            page_size=self.config.page_size,
            pools=self._pools,
            table=self._table,
            tree=self._tree,
            queues=self._queues,
            slots=slots.slots if slots is not None else tuple,
            idle=slots.idle if slots is not None else IdleSlots,
            sessions=self._sessions.all,
        )
        return check_books(books, level)

    def snapshot(self) -> Snapshot:
        """Batch and pool state as plain data: O(turns + sessions)."""
        draining = self._queues.settling_pages + self._pools.draining_pages
        return Snapshot(
            page_size=self.config.page_size,
            pools=(self._pools.books(PoolKind.FULL, draining), self._pools.books(PoolKind.ROWS)),
            turns=self._turn_states(),
            sessions=self._session_states(),
            steps=self._scheduler.steps,
            in_flight=len(self._scheduler.in_flight),
            checks_run=self._checks_run,
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
            )
            for request in self._queues.live.values()
        )

    def _session_states(self) -> tuple[SessionState, ...]:
        slots = {slot.session.uid: slot for slot in self._slots.slots()} if self._slots is not None else {}
        states: list[SessionState] = []
        for session in self._sessions.all():
            slot = slots.get(session.uid)
            states.append(
                SessionState(
                    session_id=session.session_id,
                    streaming=session.streaming,
                    history_len=session.history_len,
                    live_turns=len(session.live),
                    slot=slot.state if slot is not None else None,
                    kv_committed_len=slot.kv.kv_committed_len if slot is not None else 0,
                    pages=len(slot.kv.pages) if slot is not None else 0,
                )
            )
        return tuple(states)

    def find_history(self, session_id: SessionId, parent: TurnId | None) -> bytes:
        """The ids that an append to `parent` (streaming: always the whole session) would follow, as int32 bytes.

        Raises Refusal: SESSION_UNKNOWN, PARENT_UNKNOWN, PARENT_UNFINISHED, STREAMING_APPENDS_ONLY.
        """
        return base_ids(self._sessions.find(session_id), parent)

    @property
    def has_work(self) -> bool:
        """Whether a turn is live (waiting, running, committing or settling) or a plan is in flight."""
        return bool(self._queues.live) or self.num_in_flight > 0

    @property
    def num_in_flight(self) -> int:
        """Plans that are not answered yet."""
        return len(self._scheduler.in_flight)
