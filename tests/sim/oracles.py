"""The laws as oracles: they read commands and events, keep plain histories, and fire when a law does not hold."""

from collections import Counter

from engine.core.commands import AbortReason, FinishReason, Fork, Lengths, OnAbort, Open, Submit, Truncate
from engine.core.config import CoreConfig
from engine.core.events import (
    CommitRequested,
    CoreEvent,
    KvMoved,
    SessionClosed,
    SessionForked,
    SessionOpened,
    SessionTruncated,
    SlotChanged,
    StepAnswered,
    StepPlanned,
    TokensSampled,
    TurnAccepted,
    TurnAdmitted,
    TurnEnded,
    TurnRetracted,
    TurnsForgotten,
)
from engine.core.ids import Rid, SessionId, count_ids, unpack_ids
from engine.core.plan import StepPlan
from tests.kit.book import Book
from tests.kit.shadow_device import ShadowDevice
from tests.kit.shadow_model import ShadowModel
from tests.sim.drafts import due_len, mark_drafts
from tests.sim.fairness import BEFORE_ALL, Fairness, common_len
from tests.sim.records import NEVER_KEPT, NodeRecord, SessionRecord, TurnRecord, expect
from tests.sim.session_oracle import SessionOracle
from tests.sim.turns import Compiled


class Oracles:
    """Follows one core. Every method raises OracleFired when a law is broken.

    By name: `exact` (L3), `ending` (L4), `rollback` (L4b), `fair` (L5), `refusal` (L6), `apart` (L9), `usage`, `slot`,
    `fork`, `truncate`, `forget`, `draft`, `retraction`.
    """

    def __init__(self, config: CoreConfig, model: ShadowModel, device: ShadowDevice, book: Book) -> None:
        self._config = config
        self._model = model
        self.turns: dict[Rid, TurnRecord] = {}
        self._live: dict[Rid, TurnRecord] = {}
        self.marks: Counter[str] = Counter()
        self.of_sessions = SessionOracle(config, self.turns, self.marks, model, device, book)
        self.fairness = Fairness(config, self.of_sessions.sessions, self.marks)
        self.admitted: list[Rid] = []
        """Since it was last cleared."""
        self._steps = 0

    @property
    def sessions(self) -> dict[SessionId, SessionRecord]:
        return self.of_sessions.sessions

    # What is about to be asked

    def live(self) -> list[TurnRecord]:
        """Accepted turns without an end, in the order of their arrival."""
        return list(self._live.values())

    def running(self) -> list[TurnRecord]:
        """Live turns that do not wait for an acknowledgement."""
        return [turn for turn in self._live.values() if turn.cut is None]

    def uncommitted(self) -> list[TurnRecord]:
        """Turns that wait for CommitAck, oldest first."""
        return [turn for turn in self._live.values() if turn.cut is not None]

    def ask(self, command: Open | Fork | Submit, compiled: Compiled | None = None) -> None:
        """What opens, forks and is accepted in this call is for this command."""
        self.of_sessions.ask(command, compiled)

    def truncate(self, command: Truncate, own_pages: int) -> None:
        """The session is cut in this call."""
        self.of_sessions.prepare_cut(command, own_pages)

    def abort(self, rid: Rid, reason: AbortReason) -> None:
        """A live turn that is not committing must end as asked, or commit what it has, and be given nothing more."""
        turn = self.turns[rid]
        if not turn.is_live or turn.cut is not None or turn.must_end_as is not None:
            return
        if turn.command.on_abort is OnAbort.KEEP and turn.output and reason not in NEVER_KEPT:
            turn.finish_at = (reason, len(turn.output))
        else:
            turn.must_end_as = reason

    def finish_at(self, rid: Rid, output_len: int, reason: FinishReason) -> None:
        """A live turn that has that many ids must commit them; in all other cases nothing may happen."""
        turn = self.turns[rid]
        committed_len = turn.cut[1] if turn.cut is not None else len(turn.output)
        if turn.is_live and turn.must_end_as is None and 1 <= output_len <= committed_len:
            turn.finish_at = (reason, output_len)

    def close(self, session_id: SessionId, *, drains: bool) -> None:
        session = self.sessions.get(session_id)
        if session is None:
            return
        session.is_closing = True
        for rid in () if drains else session.live.values():
            self.abort(rid, AbortReason.SESSION_CLOSED)

    def commit_failed(self, rid: Rid) -> None:
        self.turns[rid].must_end_as = AbortReason.COMMIT_FAILED

    def step_failed(self, rids: list[Rid]) -> None:
        """A forward failed: those of its turns that still run end with it. Retracted ones are of an older epoch."""
        for rid in rids:
            if not self.turns[rid].is_waiting:
                self.abort(rid, AbortReason.FORWARD_FAILED)

    def planned(self, plan: StepPlan) -> None:
        """This plan was made by the last call, whose events were observed before."""
        self.fairness.planned(plan, self.turns)
        for row in plan.rows:
            turn = self.turns[row.rid]
            turn.planned_step = plan.step
            turn.drafts = tuple(unpack_ids(row.input_ids)[-(row.num_samples - 1) :]) if row.num_samples > 1 else ()

    # What the core tells

    def observe(self, events: list[CoreEvent], now: float) -> Lengths | None:
        """Events of one call, in order. Returns what Fork or Truncate is to answer."""
        self.of_sessions.now = now
        self.of_sessions.contents.begin()
        for event in events:
            self._take(event)
        return self.of_sessions.settle()

    def _take(self, event: CoreEvent) -> None:
        match event:
            case KvMoved():
                self.of_sessions.moved(event)
            case SessionOpened():
                self.of_sessions.opened(event)
            case SessionClosed():
                self.of_sessions.closed(event)
            case SessionForked():
                self.of_sessions.forked(event)
            case SessionTruncated():
                self.of_sessions.truncated(event)
            case TurnsForgotten():
                self.of_sessions.forgotten(event)
            case SlotChanged():
                self.of_sessions.slot_changed(event)
            case StepPlanned(step):
                self._steps = step
            case StepAnswered(step):
                self.fairness.answered(step, self.live())
            case _:
                self._take_turn(event)

    def _take_turn(self, event: CoreEvent) -> None:
        match event:
            case TurnAccepted():
                self._accepted(event)
            case TurnAdmitted():
                self._admitted(event)
            case TokensSampled():
                self._sampled(event)
            case TurnRetracted():
                self._retracted(event)
            case CommitRequested():
                self._commit_requested(event)
            case TurnEnded():
                self._ended(event)
            case _:
                pass

    def _turn(self, rid: Rid, what: str) -> TurnRecord:
        turn = self.turns.get(rid)
        expect(turn is not None, "ending", f"{what} of rid {rid}, which was never accepted")
        assert turn is not None
        expect(turn.is_live, "ending", f"{what} of rid {rid} after its end")
        return turn

    def _accepted(self, event: TurnAccepted) -> None:
        command, compiled = self.of_sessions.asked.command, self.of_sessions.asked.compiled
        is_asked = isinstance(command, Submit) and command.rid == event.rid and event.rid not in self.turns
        expect(is_asked, "ending", f"rid {event.rid} accepted unasked")
        assert isinstance(command, Submit)
        session = self.sessions[command.session_id] if command.session_id is not None else None
        left_over = [turn for turn in compiled.replaced if session is not None and turn in session.live]
        owed = (left_over, sorted(self.of_sessions.asked.forgets))
        expect(owed == ([], []), "forget", f"rid {event.rid} accepted before these are ended, forgotten: {owed}")
        prompt = compiled.base + list(unpack_ids(command.input_ids))
        left = min(self._config.context_len, self._config.pool_tokens) - len(prompt)
        max_tokens = left if command.max_tokens is None else min(command.max_tokens, left)
        told = (event.turn_id, event.session_id, event.context_len, event.new_len, event.max_tokens, event.trace_id)
        new_len = count_ids(command.input_ids)
        named = (command.turn_id, command.session_id)
        expected = (*named, len(prompt), new_len, max_tokens, command.trace_id)
        expect(told == expected, "usage", f"rid {event.rid} accepted as {told}, not {expected}")
        self._add_turn(command, compiled, prompt, max_tokens, session)

    def _add_turn(
        self, command: Submit, compiled: Compiled, prompt: list[int], max_tokens: int, session: SessionRecord | None
    ) -> None:
        arrival = len(self.turns)
        priority = command.priority
        if priority is None:
            priority = session.priority if session is not None else 0
        turn = TurnRecord(
            rid=command.rid,
            command=command,
            parent=compiled.parent,
            begin=compiled.begin,
            namespace=session.namespace if session is not None else command.namespace,
            base_len=len(compiled.base),
            prompt=prompt,
            max_tokens=max_tokens,
            arrival=arrival,
            rank=(arrival - priority * self._config.priority_arrivals, arrival),
            digest=self._model.digest(prompt),
        )
        self.fairness.began_to_wait(turn, self._live.values())
        self.turns[command.rid] = self._live[command.rid] = turn
        if session is not None:
            session.live[command.turn_id] = command.rid

    def _admitted(self, event: TurnAdmitted) -> None:
        turn = self._turn(event.rid, "admission")
        expect(
            turn.is_waiting and turn.must_end_as is None, "ending", f"rid {turn.rid} admitted while it does not wait"
        )
        expect(event.attempt == turn.attempts + 1, "usage", f"rid {turn.rid}: attempt {event.attempt}")
        self.fairness.admitted(turn, self.live())
        turn.attempts, turn.is_waiting = event.attempt, False
        turn.has_sampled, turn.admitted_step = False, self._steps + 1
        self.admitted.append(turn.rid)
        parts = event.tokens_from_slot + event.tokens_from_tree + event.tokens_to_compute
        expect(parts == turn.context_len, "usage", f"rid {turn.rid}: {event} does not add up to {turn.context_len}")
        expect(event.tokens_to_compute >= 1, "usage", f"rid {turn.rid}: nothing to compute")
        if turn.first_admission is None:
            turn.first_admission = event
        self._check_slot_hit(turn, event)
        self._check_tree_hit(turn, event)
        self.marks["hit slot"] += event.tokens_from_slot > 0
        self.marks["hit tree"] += event.tokens_from_tree > 0
        self.marks["resumed"] += event.attempt > 1

    def _check_slot_hit(self, turn: TurnRecord, event: TurnAdmitted) -> None:
        session = self.sessions.get(turn.session_id) if turn.session_id is not None else None
        kept = session.slot_len if session is not None and session.streaming else 0
        told = event.tokens_from_slot
        expect(told == kept, "rollback", f"rid {turn.rid} took {told} tokens from its slot, which keeps {kept}")

    def _check_tree_hit(self, turn: TurnRecord, event: TurnAdmitted) -> None:
        """The tree can only hold what some turn of the same namespace sent or got before."""
        hit = event.tokens_from_slot + event.tokens_from_tree
        self.of_sessions.check_tree_hit(turn, event)
        if event.tokens_from_tree == 0:
            return
        ids = turn.prompt + turn.output
        seen = (other for other in self.turns.values() if other.namespace == turn.namespace and other is not turn)
        is_seen = turn.attempts > 1 or any(common_len(ids, other.prompt + other.output) >= hit for other in seen)
        expect(is_seen, "apart", f"rid {turn.rid}: {hit} tokens cached, never seen in {turn.namespace!r}")

    def _sampled(self, event: TokensSampled) -> None:
        turn = self._turn(event.rid, "ids")
        expect(turn.must_end_as is None, "ending", f"rid {turn.rid}: ids after it was ended as {turn.must_end_as}")
        expect(turn.is_running, "ending", f"rid {turn.rid}: ids while it does not run")
        start = event.output_start
        expect(start == len(turn.output), "exact", f"rid {turn.rid}: ids from {start}, {len(turn.output)} told so far")
        due = due_len(turn, self._config, self._model)
        told = (len(event.token_ids), event.drafted)
        expected = (due, len(turn.drafts))
        for token_id in event.token_ids:
            self._append(turn, token_id)
        expect(told == expected, "draft", f"rid {turn.rid}: ids, drafted {told}, not {expected}")
        mark_drafts(turn, due, self.marks)
        turn.drafts = ()

    def _append(self, turn: TurnRecord, token_id: int) -> None:
        expected = self._model.next_id(turn.digest)
        where = f"rid {turn.rid} output {len(turn.output)}"
        expect(token_id == expected, "exact", f"{where}: {token_id}, a cold run gives {expected}")
        is_stopped = self._natural_end(turn, len(turn.output)) is not None
        expect(not is_stopped, "ending", f"{where}: told after the turn's last id")
        turn.digest = self._model.extend(turn.digest, token_id, turn.context_len)
        turn.output.append(token_id)
        turn.has_sampled = True

    def _natural_end(self, turn: TurnRecord, output_len: int) -> FinishReason | None:
        if output_len and turn.output[output_len - 1] in self._config.eos_ids and not turn.ignore_eos:
            return FinishReason.STOP
        return FinishReason.LENGTH if output_len >= turn.max_tokens else None

    def _retracted(self, event: TurnRetracted) -> None:
        turn = self._turn(event.rid, "retraction")
        expect(turn.is_running, "ending", f"rid {turn.rid} retracted while it does not run")
        expect(event.output_len == len(turn.output), "exact", f"rid {turn.rid} keeps {event.output_len} ids")
        # With two plans in flight the older turns may meanwhile need more than the next token's page.
        is_hasty = turn.admitted_step == self._steps and self._config.in_flight_max == 1
        expect(not is_hasty, "fair", f"rid {turn.rid} was admitted for step {self._steps} and retracted in the next")
        self.fairness.retracted(turn, self.live())
        turn.is_waiting, turn.drafts = True, ()
        turn.retractions += 1
        if turn.retractions >= self._config.retractions_max:
            turn.rank = (BEFORE_ALL, turn.arrival)
        self.fairness.began_to_wait(turn, self._live.values())
        self.marks["retraction"] += 1
        self.marks["retracted for the last time"] += turn.retractions == self._config.retractions_max

    def _commit_requested(self, event: CommitRequested) -> None:
        turn = self._turn(event.rid, "commit")
        expect(turn.must_end_as is None, "ending", f"rid {turn.rid} commits, but was ended as {turn.must_end_as}")
        natural = self._natural_end(turn, event.output_len)
        told = (event.reason, event.output_len)
        is_cut = turn.finish_at is not None
        expected: tuple[FinishReason | AbortReason, int]
        if turn.finish_at is not None:
            expected, turn.finish_at = turn.finish_at, None
            self.marks["kept" if isinstance(event.reason, AbortReason) else "finish_at"] += 1
        else:
            expect(turn.cut is None, "ending", f"rid {turn.rid} asks for its commit twice")
            is_end = natural is not None and event.output_len == len(turn.output)
            expect(is_end, "ending", f"rid {turn.rid}: {told} unasked")
            assert natural is not None
            expected = (natural, len(turn.output))
        expect(told == expected, "ending", f"rid {turn.rid} commits {told}, not {expected}")
        turn.cut = told
        # Cut after a retraction, while it waits or computes its ids anew: the slot keeps what was answered by then.
        # Cut behind its back: states are where a step ended, windows are kept for the newest tokens.
        is_behind = event.output_len < len(turn.output) and self._config.window is not None
        turn.is_kv_short = is_cut and (turn.retractions > 0 or is_behind or self._config.state_slots > 0)

    def _ended(self, event: TurnEnded) -> None:
        turn = self._turn(event.rid, "end")
        self.marks[f"end {event.outcome}"] += 1
        expect((event.turn_id, event.session_id) == (turn.turn_id, turn.session_id), "ending", f"{event} misnamed")
        session = self.sessions.get(turn.session_id) if turn.session_id is not None else None
        asked = self.of_sessions.asked
        if event.outcome is AbortReason.REPLACED:
            is_asked = isinstance(asked.command, Submit) and asked.command.session_id == turn.session_id
            is_replaced = is_asked and turn.turn_id in asked.compiled.replaced and turn.cut is None
            expect(is_replaced, "ending", f"rid {turn.rid} was not to be replaced")
            turn.must_end_as = AbortReason.REPLACED
        commits = turn.must_end_as is None and turn.cut is not None
        expected = turn.cut[0] if turn.cut is not None and commits else turn.must_end_as
        told = (event.outcome, event.is_committed)
        expect(told == (expected, commits), "ending", f"rid {turn.rid} ended as {told}, not {(expected, commits)}")
        if turn.cut is not None and commits:
            self.marks["end kept"] += isinstance(event.outcome, AbortReason)
            self._commit(turn, session, turn.cut[1])
        turn.outcome = event.outcome
        del self._live[turn.rid]
        self._check_usage(turn, event)
        self._check_history_len(turn, session, event, is_committed=commits)
        if session is not None:
            expect(session.live.pop(turn.turn_id, None) == turn.rid, "ending", f"rid {turn.rid} held no lease")
            session.idle_since = self.of_sessions.now

    def _commit(self, turn: TurnRecord, session: SessionRecord | None, output_len: int) -> None:
        if session is None:
            return
        path = turn.prompt + turn.output[:output_len]
        session.nodes[turn.turn_id] = NodeRecord(path, turn.begin, len(turn.prompt), turn.parent)
        session.kv_told = None
        if session.streaming:
            session.history = path
            session.kv_least = session.lent_len if turn.is_kv_short else None
            if len(session.nodes) > self._config.session_nodes_max:
                del session.nodes[next(iter(session.nodes))]

    def _check_usage(self, turn: TurnRecord, event: TurnEnded) -> None:
        usage, first = event.usage, turn.first_admission
        output_len = turn.cut[1] if turn.cut is not None else len(turn.output)
        told = (usage.output_len, usage.retractions)
        expected = (output_len, turn.retractions)
        expect(told == expected, "usage", f"rid {turn.rid}: output, retractions {told}, not {expected}")
        if first is None:
            return
        parts = (usage.tokens_from_slot, usage.tokens_from_tree, usage.tokens_computed)
        admitted = (first.tokens_from_slot, first.tokens_from_tree, first.tokens_to_compute)
        expect(parts == admitted, "usage", f"rid {turn.rid}: {usage} is not its first admission {first}")
        expect(usage.context_len == sum(parts) == len(turn.prompt), "usage", f"rid {turn.rid}: {usage} does not add up")

    def _check_history_len(
        self, turn: TurnRecord, session: SessionRecord | None, event: TurnEnded, *, is_committed: bool
    ) -> None:
        if session is None:
            expected = None
        elif session.streaming:
            expected = len(session.history)
        else:
            expected = len(session.nodes[turn.turn_id].path) if is_committed else turn.base_len
        told = event.history_len
        expect(told == expected, "rollback", f"rid {turn.rid}: history {told}, not {expected}")
