"""One simulated server: a watched core and a shadow device, moved by operations that name turns and sessions."""

from collections import Counter
from dataclasses import replace

from engine.core.commands import (
    Abort,
    AbortReason,
    Close,
    CommitAck,
    CommitFailed,
    FinishAt,
    FinishReason,
    Fork,
    OnAbort,
    Open,
    Submit,
    Truncate,
    TurnMode,
)
from engine.core.core import Core
from engine.core.errors import Refusal, RefusalReason
from engine.core.events import CoreEvent
from engine.core.ids import Rid, SessionId, TurnId, pack_ids
from engine.core.ownership import Owner, OwnerKind, PoolKind
from engine.core.plan import StepPlan
from engine.core.snapshot import TurnState
from tests.kit.shadow_device import ShadowDevice
from tests.kit.shadow_model import ShadowModel
from tests.sim.laws import check_all_free, check_fork_owns_nothing, check_paths
from tests.sim.ops import (
    AbortOp,
    AckOp,
    AmbushOp,
    AnswerOp,
    Blow,
    CloseOp,
    ExpireOp,
    FinishAtOp,
    FlushOp,
    ForkOp,
    Length,
    Op,
    OpenOp,
    PlanOp,
    TruncateOp,
    TurnOp,
)
from tests.sim.records import expect
from tests.sim.refusals import expect_fork, expect_open, expect_submit, expect_truncate, forked_len
from tests.sim.turns import Compiled, compile_turn, cut_len, resolve
from tests.sim.watch import WatchedCore

OP_S = 0.01
"""Time that passes with each operation."""


class World:
    """Runs operations. Every method raises OracleFired when a law is broken."""

    def __init__(self, core: Core, model: ShadowModel, *, is_durable: bool, device: ShadowDevice | None = None) -> None:
        """`device`: one that misbehaves on purpose; it must share no book."""
        self._core = core
        self._config = core.config
        self._is_durable = is_durable
        self._watched = WatchedCore(core, model, device)
        self._device = self._watched.device
        self._oracles = self._watched.oracles
        self._rids: dict[TurnId, Rid] = {}
        self._next_rid = 1
        self._next_trace = 1
        self._ambushes: list[AmbushOp] = []

    @property
    def marks(self) -> Counter[str]:
        """What happened, counted."""
        return self._watched.marks

    @property
    def digest(self) -> str:
        """Of all events so far."""
        return self._watched.digest

    @property
    def lines(self) -> list[str]:
        """What was done, one line an operation, for people."""
        return self._watched.lines

    def take_told(self) -> tuple[CoreEvent | Refusal | StepPlan, ...]:
        """Events, refusals and plans since the last call, in order."""
        told = tuple(self._watched.told)
        self._watched.told.clear()
        return told

    def run(self, operation: Op) -> None:
        """One operation, then the acknowledgements that a shell without a store gives at once."""
        self._watched.now += OP_S
        self.lines.append(f"{operation}")
        match operation:
            case PlanOp():
                self._plan()
            case AnswerOp(fails):
                self._answer(fails=fails)
            case TurnOp():
                self._submit(operation)
            case OpenOp() | CloseOp() | ForkOp() | TruncateOp() | ExpireOp():
                self._run_on_session(operation)
            case AbortOp(turn, reason):
                self._abort(Abort(self._rids.get(turn, Rid(0)), reason))
            case AmbushOp():
                self._ambushes.append(operation)
            case FinishAtOp(turn, back, reason):
                self._finish_at(self._rids.get(turn, Rid(0)), back, reason)
            case FlushOp():
                self._watched.flush()
            case AckOp(_, fails) if not self._oracles.uncommitted():
                self._acknowledge_early(fails=fails)
            case AckOp(count, fails):
                self._acknowledge(count, fails=fails)
        self._strike()
        if not self._is_durable:
            self._acknowledge(len(self._oracles.uncommitted()), fails=False)

    def drain(self) -> None:
        """No more commands: all that was accepted ends in a bounded number of steps (L5), then everything is free."""
        work = sum(turn.context_len + turn.max_tokens for turn in self._oracles.live())
        limit = 100 + 20 * work
        for _ in range(limit):
            if not self._core.has_work:
                break
            if num_uncommitted := len(self._oracles.uncommitted()):
                self.run(AckOp(num_uncommitted, fails=False))
            self.run(PlanOp())
            self.run(AnswerOp(fails=False))
        stuck = [turn.rid for turn in self._oracles.live()]
        expect(not stuck and not self._core.has_work, "progress", f"after {limit} rounds rids {stuck} have no end")
        for session in list(self._oracles.sessions.values()):
            if not session.streaming:
                check_paths(self._core, session)
            self.run(CloseOp(session.session_id))
        check_all_free(self._core)

    # Sessions

    def _run_on_session(self, operation: OpenOp | CloseOp | ForkOp | TruncateOp | ExpireOp) -> None:
        match operation:
            case OpenOp():
                self._open(operation)
            case CloseOp(session, drain):
                self._close(session, drain=drain)
            case ForkOp():
                self._fork(operation)
            case TruncateOp():
                self._truncate(operation)
            case ExpireOp(after_s):
                self._expire(after_s)

    def _trace_id(self) -> str:
        self._next_trace += 1
        return f"trace-{self._next_trace}"

    def _open(self, operation: OpenOp) -> None:
        command = Open(
            operation.session,
            operation.streaming,
            operation.idle_timeout_s,
            operation.namespace,
            operation.priority,
            self._trace_id(),
        )
        expected = expect_open(command, self._config, self._oracles.sessions)
        self._oracles.ask(command)
        if self._watched.attempt(command, expected):
            is_open = command.session_id in self._oracles.sessions
            expect(is_open, "ending", f"{command.session_id} was taken without SessionOpened")

    def _close(self, session_id: SessionId, *, drain: bool) -> None:
        phases = [turn.phase for turn in self._core.snapshot().turns if turn.session_id == session_id] or ["idle"]
        session = self._oracles.sessions.get(session_id)
        self.marks["close while it drains"] += session is not None and session.is_closing and not drain
        self.marks.update(f"{'drain ' if drain else ''}close {phase}" for phase in phases)
        self._oracles.close(session_id, drains=drain)
        self._watched.apply(Close(session_id, drain))

    def _fork(self, operation: ForkOp) -> None:
        source = self._oracles.sessions.get(operation.session)
        operation = replace(operation, at_turn=resolve(operation.at_turn, source))
        command = Fork(operation.session, operation.new_session, operation.at_turn, None, self._trace_id())
        if operation.at_len is not None:
            is_known = source is not None and (operation.at_turn is None or operation.at_turn in source.nodes)
            total = forked_len(command, source) if source is not None and is_known else 0
            at_len = operation.at_len.of(total)
            command = Fork(command.session_id, command.new_session_id, command.at_turn, at_len, command.trace_id)
        expected = expect_fork(command, self._config, self._oracles.sessions)
        self._oracles.ask(command)
        if self._watched.attempt(command, expected):
            session = self._oracles.sessions[command.new_session_id]
            check_fork_owns_nothing(self._watched.book, session)
            if not session.streaming:
                check_paths(self._core, session)

    def _truncate(self, operation: TruncateOp) -> None:
        session = self._oracles.sessions.get(operation.session)
        command = Truncate(operation.session, cut_len(operation, session))
        expected = expect_truncate(command, self._oracles.sessions)
        if session is not None and expected == ((), ()):
            owner = Owner(OwnerKind.SESSION, session.uid)
            self._oracles.truncate(command, len(self._watched.book.owned(PoolKind.FULL, owner)))
        if self._watched.attempt(command, expected) and session is not None and not session.streaming:
            check_paths(self._core, session)

    def _expire(self, after_s: float) -> None:
        self._watched.now += after_s
        now = self._watched.now
        due = [s for s in self._oracles.sessions.values() if not s.live and not s.is_closing]
        expired = [s.session_id for s in due if now - s.idle_since > s.idle_timeout_s]
        self._watched.expire()
        kept = [session_id for session_id in expired if session_id in self._oracles.sessions]
        expect(not kept, "expiry", f"sessions {kept} are past their idle timeout")
        lost = [s.session_id for s in due if s.session_id not in expired and s.session_id not in self._oracles.sessions]
        expect(not lost, "expiry", f"sessions {lost} expired before their idle timeout")

    # Turns

    def _submit(self, operation: TurnOp) -> None:
        rid = Rid(self._next_rid)
        self._next_rid += 1
        session = self._oracles.sessions.get(operation.session) if operation.session is not None else None
        operation = replace(operation, parent=resolve(operation.parent, session))
        command = self._command(operation, rid)
        expected, compiled = expect_submit(command, self._config, self._oracles.sessions, self._oracles.live())
        self._oracles.ask(command, compiled)
        phases = self._phases(compiled, operation.session)
        if self._watched.attempt(command, expected):
            self._rids[operation.turn] = rid
            expect(rid in self._oracles.turns, "ending", f"rid {rid} was taken without TurnAccepted")
            self._mark_accepted(command, compiled, phases)
        elif operation.session is None and RefusalReason.TURN_EXISTS in expected[0]:
            self.marks["refused stateless turn id"] += 1

    def _command(self, operation: TurnOp, rid: Rid) -> Submit:
        return Submit(
            rid=rid,
            turn_id=operation.turn,
            input_ids=pack_ids(operation.ids),
            session_id=operation.session,
            parent=operation.parent,
            mode=operation.mode,
            offset=self._offset(operation),
            drop_previous_output=operation.is_dropping,
            on_abort=OnAbort.KEEP if operation.is_keeping else OnAbort.ROLL_BACK,
            priority=operation.priority,
            draft_tokens=operation.draft_tokens,
            max_tokens=operation.max_tokens,
            ignore_eos=operation.ignore_eos,
            namespace=operation.namespace,
            sampling=operation.sampling,
            trace_id=self._trace_id(),
        )

    def _offset(self, operation: TurnOp) -> int | None:
        session = self._oracles.sessions.get(operation.session) if operation.session is not None else None
        if operation.offset is None or session is None:
            return None if operation.offset is None else operation.offset.value
        point = Submit(
            Rid(0),
            operation.turn,
            b"",
            operation.session,
            operation.parent,
            operation.mode,
            drop_previous_output=operation.is_dropping,
        )
        return operation.offset.of(compile_turn(point, session, self._oracles.turns).whole_base_len)

    def _phases(self, compiled: Compiled, session_id: SessionId | None) -> list[str]:
        """Of the turns to be replaced."""
        if not compiled.replaced:
            return []
        turns = self._core.snapshot().turns
        return [t.phase for t in turns if t.session_id == session_id and t.turn_id in compiled.replaced]

    def _mark_accepted(self, command: Submit, compiled: Compiled, phases: list[str]) -> None:
        marks = self.marks
        marks["sampled turn"] += not command.sampling.is_greedy
        marks["drop previous output"] += command.drop_previous_output
        marks["offset"] += command.offset is not None and command.offset < compiled.whole_base_len
        marks["offset off a page edge"] += bool(command.offset and command.offset % self._config.page_size)
        marks["turn with a priority"] += command.priority is not None and command.priority != 0
        marks["turn that may draft"] += command.draft_tokens > 0
        marks["turn that keeps"] += command.on_abort is OnAbort.KEEP
        if command.mode is TurnMode.REPLACE:
            marks["replace everything" if command.parent is None else "replace"] += 1
            marks["replace clears"] += bool(compiled.forgotten)
            marks["replace finished"] += command.parent is not None and command.parent not in compiled.replaced
            marks["replace live parent"] += command.parent in compiled.replaced
            marks.update(f"replace {phase}" for phase in phases)

    def _abort(self, command: Abort) -> None:
        phase = next((turn.phase for turn in self._core.snapshot().turns if turn.rid == command.rid), "absent")
        self.marks[f"abort {phase}"] += 1
        if command.rid in self._oracles.turns:
            self._oracles.abort(command.rid, command.reason)
            self.marks[f"keep {phase}"] += self._oracles.turns[command.rid].finish_at is not None
        self._watched.apply(command)
        if command.rid in self._oracles.turns:
            owed = self._oracles.turns[command.rid].finish_at
            expect(owed is None, "ending", f"rid {command.rid}: was to keep {owed}")

    def _strike(self) -> None:
        """Springs the first ambush that some turn walked into."""
        turns = self._core.snapshot().turns if self._ambushes else ()
        for ambush in self._ambushes:
            caught = next((turn for turn in turns if _is_in(turn, ambush.phase)), None)
            if caught is None:
                continue
            self._ambushes.remove(ambush)
            self.lines.append(f"    strikes rid {caught.rid}: {ambush}")
            self.marks[f"{ambush.blow} {ambush.phase}"] += 1
            match ambush.blow:
                case Blow.ABORT:
                    self._abort(Abort(caught.rid, AbortReason.CLIENT))
                case Blow.CLOSE | Blow.DRAIN if caught.session_id is not None:
                    self._close(caught.session_id, drain=ambush.blow is Blow.DRAIN)
                case Blow.TRUNCATE if caught.session_id is not None:
                    self._truncate(TruncateOp(caught.session_id, Length(50, is_share=True)))
                case Blow.CLOSE | Blow.DRAIN | Blow.TRUNCATE:
                    self._abort(Abort(caught.rid, AbortReason.DISCONNECT))
                case Blow.FINISH_AT:
                    self._finish_at(caught.rid, 0, FinishReason.STOP)
            return

    def _finish_at(self, rid: Rid, back: int, reason: FinishReason) -> None:
        turn = self._oracles.turns.get(rid)
        if turn is None:
            self._watched.apply_in_vain(FinishAt(rid, back, reason))
            return
        output_len = len(turn.output) - back
        self._oracles.finish_at(rid, output_len, reason)
        if turn.finish_at is None:
            self.marks["finish_at none"] += turn.is_live and output_len < 1
            self.marks["finish_at too many"] += turn.is_live and back < 0
            self._watched.apply_in_vain(FinishAt(rid, output_len, reason))
            return
        self._watched.apply(FinishAt(rid, output_len, reason))
        expect(turn.finish_at is None, "ending", f"rid {rid}: FinishAt was not followed")

    def _acknowledge_early(self, *, fails: bool) -> None:
        """For a turn that is not committing."""
        turn = next(iter(self._oracles.running()), None)
        rid = turn.rid if turn is not None else Rid(0)
        self.marks["early ack"] += turn is not None
        self._watched.apply_in_vain(CommitFailed(rid) if fails else CommitAck(rid))

    def _acknowledge(self, count: int, *, fails: bool) -> None:
        for turn in self._oracles.uncommitted()[:count]:
            if turn.is_acknowledged:
                continue
            turn.is_acknowledged = True
            if fails:
                self._oracles.commit_failed(turn.rid)
            self._watched.apply(CommitFailed(turn.rid) if fails else CommitAck(turn.rid))

    # Steps

    def _plan(self) -> None:
        num_in_flight = len(self._device.queued)
        plan = self._watched.next_plan()
        if plan is None:
            is_stuck = num_in_flight == 0 and self._oracles.running() and not self._oracles.uncommitted()
            expect(not is_stuck, "progress", "no plan, nothing in flight, and turns that want to run")
            return
        self.marks["batched rows"] += len(plan.rows) > 1
        for row in plan.rows:
            self.marks["chunked prompt"] += row.num_samples == 0
            self.marks["sampled input in flight"] += row.uses_sampled and num_in_flight > 0
            self.marks["drafts planned"] += row.num_samples > 1

    def _answer(self, *, fails: bool) -> None:
        if not self._device.queued:
            return
        cut = {turn.rid for turn in self._oracles.uncommitted()}
        queued = self._device.queued[0]
        self.marks["over-run"] += any(row.row.rid in cut for row in queued.rows)
        self.marks["drafts failed"] += fails and any(row.row.num_samples > 1 for row in queued.rows)
        self._mark_allocated()
        self._watched.answer(fails=fails)

    def _mark_allocated(self) -> None:
        """Allocated reaches behind committed while guesses are in flight: pages that wrong ones must give back."""
        for queued in self._device.queued:
            for row in queued.rows:
                if row.row.num_samples > 1:
                    sure = -(-(row.row.start_len + 1) // self._config.page_size)
                    self.marks["allocated > committed"] += len(row.pages) > sure


def _is_in(turn: TurnState, phase: str) -> bool:
    return (turn.phase == "waiting" and turn.output_len > 0) if phase == "retracted" else turn.phase == phase
