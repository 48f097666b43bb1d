"""One simulated server: the core, a shadow device, a second set of books and the oracles, driven one call at a time."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from engine.core.commands import (
    Abort,
    AbortReason,
    Close,
    Command,
    CommitAck,
    CommitFailed,
    FinishAt,
    FinishReason,
    Open,
    Submit,
)
from engine.core.core import Core
from engine.core.errors import InvariantViolation, Refusal, RefusalReason
from engine.core.events import CoreEvent, Draining, KvMoved
from engine.core.ids import Rid, SessionId, TurnId, pack_ids
from engine.core.ownership import Move, OwnerKind, PoolKind
from engine.core.plan import StepPlan
from tests.kit.book import Book, BookError
from tests.kit.shadow_device import ShadowDevice
from tests.kit.shadow_model import ShadowModel
from tests.sim.laws import check_admissions, check_all_free, check_fence, check_plan, check_state
from tests.sim.ops import (
    AbortOp,
    AckOp,
    AmbushOp,
    AnswerOp,
    Blow,
    CloseOp,
    ExpireOp,
    FinishAtOp,
    Op,
    OpenOp,
    PlanOp,
    TurnOp,
)
from tests.sim.oracles import Oracles
from tests.sim.records import OracleFired, expect
from tests.sim.refusals import Expected, expect_open, expect_submit

OP_S = 0.01
"""Time that passes with each operation."""


class World:
    """Runs operations. Every method raises OracleFired when a law is broken; nothing is caught and carried on."""

    def __init__(self, core: Core, model: ShadowModel, *, is_durable: bool, device: ShadowDevice | None = None) -> None:
        """`device`: one that misbehaves on purpose; it must share no book."""
        config = core.config
        self._core = core
        self._is_durable = is_durable
        self._book = Book(config.pool_pages, config.num_rows)
        self.device = device or ShadowDevice(
            model,
            page_size=config.page_size,
            pool_pages=config.pool_pages,
            num_rows=config.num_rows,
            book=self._book,
        )
        self.oracles = Oracles(config, model)
        self._rids: dict[TurnId, Rid] = {}
        self._next_rid = 1
        self._next_seq = 1
        self._now = 0.0
        self._ambushes: list[AmbushOp] = []
        self._hash = hashlib.sha256()
        self.lines: list[str] = []
        """What was done, one line an operation, for people."""
        self._told: list[CoreEvent | Refusal | StepPlan] = []

    @property
    def marks(self) -> Counter[str]:
        """What happened, counted."""
        return self.oracles.marks

    @property
    def digest(self) -> str:
        """Of all events so far."""
        return self._hash.hexdigest()

    def take_told(self) -> tuple[CoreEvent | Refusal | StepPlan, ...]:
        """Events, refusals and plans since the last call, in order."""
        told = tuple(self._told)
        self._told.clear()
        return told

    def run(self, operation: Op) -> None:
        """One operation, then the acknowledgements that a shell without a store gives at once."""
        self._now += OP_S
        self.lines.append(f"{operation}")
        match operation:
            case OpenOp(session, streaming, idle_timeout_s, namespace):
                self._open(Open(session, streaming, idle_timeout_s, namespace))
            case CloseOp(session):
                self._close(session)
            case TurnOp():
                self._submit(operation)
            case AbortOp(turn, reason):
                self._abort(Abort(self._rids.get(turn, Rid(0)), reason))
            case AmbushOp():
                self._ambushes.append(operation)
            case FinishAtOp(turn, back, reason):
                self._finish_at(self._rids.get(turn, Rid(0)), back, reason)
            case AckOp(_, fails) if not self.oracles.uncommitted():
                self._acknowledge_early(fails=fails)
            case AckOp(count, fails):
                self._acknowledge(count, fails=fails)
            case PlanOp():
                self._plan()
            case AnswerOp(fails):
                self._answer(fails=fails)
            case ExpireOp(after_s):
                self._expire(after_s)
        self._strike()
        if not self._is_durable:
            self._acknowledge(len(self.oracles.uncommitted()), fails=False)

    def drain(self) -> None:
        """No more commands: all that was accepted ends in a bounded number of steps (L5), then everything is free."""
        work = sum(turn.context_len + turn.max_tokens for turn in self.oracles.live())
        limit = 100 + 20 * work
        for _ in range(limit):
            if not self._core.has_work:
                break
            if num_uncommitted := len(self.oracles.uncommitted()):
                self.run(AckOp(num_uncommitted, fails=False))
            self.run(PlanOp())
            self.run(AnswerOp(fails=False))
        stuck = [turn.rid for turn in self.oracles.live()]
        expect(not stuck and not self._core.has_work, "progress", f"after {limit} rounds rids {stuck} have no end")
        for session_id in list(self.oracles.sessions):
            self.run(CloseOp(session_id))
        check_all_free(self._core)

    # Operations

    def _open(self, command: Open) -> None:
        self.oracles.open(command)
        if self._attempt(command, expect_open(command, self._core.config, self.oracles.sessions)):
            is_open = command.session_id in self.oracles.sessions
            expect(is_open, "ending", f"{command.session_id} was taken without SessionOpened")

    def _close(self, session_id: SessionId) -> None:
        phases = [turn.phase for turn in self._core.snapshot().turns if turn.session_id == session_id] or ["idle"]
        self.marks.update(f"close {phase}" for phase in phases)
        self.oracles.close(session_id)
        self._apply(Close(session_id))

    def _submit(self, operation: TurnOp) -> None:
        rid = Rid(self._next_rid)
        self._next_rid += 1
        command = Submit(
            rid=rid,
            turn_id=operation.turn,
            input_ids=pack_ids(operation.ids),
            session_id=operation.session,
            parent=operation.parent,
            max_tokens=operation.max_tokens,
            ignore_eos=operation.ignore_eos,
            namespace=operation.namespace,
            sampling=operation.sampling,
        )
        session = self.oracles.sessions.get(operation.session) if operation.session is not None else None
        expected = expect_submit(command, self._core.config, session, self.oracles.live())
        self.oracles.submit(command)
        if self._attempt(command, expected):
            self._rids[operation.turn] = rid
            expect(rid in self.oracles.turns, "ending", f"rid {rid} was taken without TurnAccepted")
            self.marks["sampled turn"] += not operation.sampling.is_greedy
        elif session is None and RefusalReason.TURN_EXISTS in expected[0]:
            self.marks["refused stateless turn id"] += 1

    def _abort(self, command: Abort) -> None:
        phase = next((turn.phase for turn in self._core.snapshot().turns if turn.rid == command.rid), "absent")
        self.marks[f"abort {phase}"] += 1
        if command.rid in self.oracles.turns:
            self.oracles.abort(command.rid, command.reason)
        self._apply(command)

    def _strike(self) -> None:
        """Springs the first ambush that some turn walked into."""
        turns = self._core.snapshot().turns if self._ambushes else ()
        for ambush in self._ambushes:
            caught = next((turn for turn in turns if turn.phase == ambush.phase), None)
            if caught is None:
                continue
            self._ambushes.remove(ambush)
            self.lines.append(f"    strikes rid {caught.rid}: {ambush}")
            self.marks[f"{ambush.blow} {ambush.phase}"] += 1
            match ambush.blow:
                case Blow.ABORT:
                    self._abort(Abort(caught.rid, AbortReason.CLIENT))
                case Blow.CLOSE if caught.session_id is not None:
                    self._close(caught.session_id)
                case Blow.CLOSE:
                    self._abort(Abort(caught.rid, AbortReason.DISCONNECT))
                case Blow.FINISH_AT:
                    self._finish_at(caught.rid, 0, FinishReason.STOP)
            return

    def _finish_at(self, rid: Rid, back: int, reason: FinishReason) -> None:
        turn = self.oracles.turns.get(rid)
        if turn is None:
            self._apply_in_vain(FinishAt(rid, back, reason))
            return
        output_len = len(turn.output) - back
        self.oracles.finish_at(rid, output_len, reason)
        if turn.finish_at is None:
            self.marks["finish_at none"] += turn.is_live and output_len < 1
            self.marks["finish_at too many"] += turn.is_live and back < 0
            self._apply_in_vain(FinishAt(rid, output_len, reason))
            return
        self._apply(FinishAt(rid, output_len, reason))
        expect(turn.finish_at is None, "ending", f"rid {rid}: FinishAt was not followed")

    def _acknowledge_early(self, *, fails: bool) -> None:
        """For a turn that is not committing."""
        turn = next(iter(self.oracles.running()), None)
        rid = turn.rid if turn is not None else Rid(0)
        self.marks["early ack"] += turn is not None
        self._apply_in_vain(CommitFailed(rid) if fails else CommitAck(rid))

    def _acknowledge(self, count: int, *, fails: bool) -> None:
        for turn in self.oracles.uncommitted()[:count]:
            if turn.is_acknowledged:
                continue
            turn.is_acknowledged = True
            if fails:
                self.oracles.commit_failed(turn.rid)
            self._apply(CommitFailed(turn.rid) if fails else CommitAck(turn.rid))

    def _plan(self) -> None:
        num_in_flight = len(self.device.queued)
        self.oracles.admitted.clear()
        with self._call("next_plan"):
            plan = self._core.next_plan(self._now)
        check_admissions(plan, self.oracles)
        if plan is None:
            is_stuck = num_in_flight == 0 and self.oracles.running() and not self.oracles.uncommitted()
            expect(not is_stuck, "progress", "no plan, nothing in flight, and turns that want to run")
            return
        expect(num_in_flight < self._core.config.in_flight_max, "plan", f"{num_in_flight} plans in flight already")
        self.lines.append(f"    plan {_describe(plan)}")
        self._told.append(plan)
        check_plan(plan, self._core, self.oracles)
        self._mark_plan(plan)
        self.device.submit(plan)
        self._check_device()

    def _answer(self, *, fails: bool) -> None:
        if not self.device.queued:
            return
        queued = self.device.queued[0]
        outcome = self.device.fail("injected") if fails else self.device.answer()
        self._check_device()
        self.lines.append(f"    answer {outcome}")
        if fails:
            self.oracles.step_failed([row.row.rid for row in queued.rows])
        cut = {turn.rid for turn in self.oracles.live() if turn.cut is not None}
        self.marks["over-run"] += any(row.row.rid in cut for row in queued.rows)
        with self._call("advance"):
            self._core.advance(outcome, self._now)

    def _expire(self, after_s: float) -> None:
        self._now += after_s
        due = [s for s in self.oracles.sessions.values() if not s.live and not s.is_closing]
        expired = [s.session_id for s in due if self._now - s.idle_since > s.idle_timeout_s]
        with self._call("expire"):
            self._core.expire(self._now)
        kept = [session_id for session_id in expired if session_id in self.oracles.sessions]
        expect(not kept, "expiry", f"sessions {kept} are past their idle timeout")
        lost = [s.session_id for s in due if s.session_id not in expired and s.session_id not in self.oracles.sessions]
        expect(not lost, "expiry", f"sessions {lost} expired before their idle timeout")

    # Calls into the core

    def _attempt(self, command: Open | Submit, expected: Expected) -> bool:
        """Applies a command that may be refused. True when it was taken."""
        must, may = expected
        before = self._core.snapshot()
        try:
            with self._call(f"{type(command).__name__}"):
                self._core.apply(command, self._now)
        except Refusal as refusal:
            expect(self._core.snapshot() == before, "refusal", f"{refusal.reason} changed the state")
            expect(not self._core.take_events(), "refusal", f"{refusal.reason} left events")
            expect(refusal.reason in (*must, *may), "refusal", f"{command}: {refusal.reason}, expected {expected}")
            self.marks[f"refused {refusal.reason}"] += 1
            self.lines.append(f"    refused {refusal.reason}")
            self._told.append(refusal)
            return False
        expect(not must, "refusal", f"{command} was taken; it is to be refused for {must}")
        return True

    def _apply(self, command: Command) -> None:
        with self._call(f"{type(command).__name__}"):
            self._core.apply(command, self._now)

    def _apply_in_vain(self, command: Command) -> None:
        """Applies a command that has nothing to do: nothing may be told of it."""
        next_seq = self._next_seq
        self._apply(command)
        expect(self._next_seq == next_seq, "ending", f"{command} is to be ignored, and was not")

    @contextmanager
    def _call(self, what: str) -> Iterator[None]:
        """Around each call: what it told goes to the books and the oracles, then every law is checked."""
        try:
            yield
        except (
            InvariantViolation,
            AssertionError,
            KeyError,
            IndexError,
            ValueError,
            AttributeError,
            TypeError,
        ) as error:
            raise OracleFired("crash", f"{what} raised {error!r}") from error
        self._take(what)

    def _take(self, what: str) -> None:
        events: list[CoreEvent] = []
        for numbered in self._core.take_events():
            expect(numbered.seq == self._next_seq, "events", f"event {numbered.seq} follows {self._next_seq - 1}")
            self._next_seq += 1
            self._hash.update(repr(numbered).encode())
            events.append(numbered.event)
        self.lines.extend(f"    {event}" for event in events)
        self._told.extend(events)
        check_fence(events, self.device.queued)
        try:
            self._book.replay(events)
        except BookError as error:
            raise OracleFired("book", f"{what}: {error}") from error
        self.device.observe(events)
        self._mark(what, events)
        self.oracles.observe(events, self._now)
        check_state(self._core, self._book, self.oracles)

    def _check_device(self) -> None:
        expect(not self.device.violations, "device", "; ".join(self.device.violations[:3]))

    def _mark_plan(self, plan: StepPlan) -> None:
        self.marks["batched rows"] += len(plan.rows) > 1
        for row in plan.rows:
            self.marks["chunked prompt"] += not row.samples
            self.marks["sampled input in flight"] += row.uses_sampled and len(self.device.queued) > 0

    def _mark(self, what: str, events: list[CoreEvent]) -> None:
        for event in events:
            match event:
                case KvMoved(pool, move):
                    self.marks[f"move {move}"] += 1
                    self.marks["demoted under pressure"] += what == "next_plan" and move is Move.DEMOTE
                    is_row = pool is PoolKind.ROWS and event.source.kind is OwnerKind.SESSION
                    self.marks["row demoted"] += what == "next_plan" and is_row and move is Move.RELEASE
                case Draining():
                    self.marks["draining"] += 1
                case _:
                    pass


def _describe(plan: StepPlan) -> str:
    rows = " ".join(
        f"rid{row.rid}[{row.start_len}+{row.query_len}{'s' if row.uses_sampled else ''}{'!' if row.samples else ''}]"
        for row in plan.rows
    )
    return f"{plan.step}: {rows}"
