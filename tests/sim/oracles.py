"""The laws as oracles: they read commands and events, keep plain histories, and fire when a law does not hold."""

from collections import Counter

from engine.core.commands import AbortReason, FinishReason, Open, Submit
from engine.core.config import CoreConfig
from engine.core.events import (
    CommitRequested,
    CoreEvent,
    SessionClosed,
    SessionOpened,
    SlotChanged,
    SlotState,
    StepPlanned,
    TokensSampled,
    TurnAccepted,
    TurnAdmitted,
    TurnEnded,
    TurnRetracted,
)
from engine.core.ids import Rid, SessionId, count_ids, unpack_ids
from tests.kit.shadow_model import ShadowModel
from tests.sim.records import SessionRecord, TurnRecord, expect
from tests.sim.slots import check_idle_slot, follow_slot

OVERTAKEN_MAX = 32
"""Later arrivals that may be admitted before a turn that waits."""


class Oracles:
    """Follows one core. Every method raises OracleFired when a law is broken.

    By name: `exact` (L3), `ending` (L4), `rollback` (L4b), `fair` (L5), `refusal` (L6), `apart` (L9), `usage`, `slot`.
    """

    def __init__(self, config: CoreConfig, model: ShadowModel) -> None:
        self._config = config
        self._model = model
        self.turns: dict[Rid, TurnRecord] = {}
        self.sessions: dict[SessionId, SessionRecord] = {}
        self.marks: Counter[str] = Counter()
        self.admitted: list[Rid] = []
        """Since it was last cleared."""
        self._closed_sessions: list[SessionRecord] = []
        """Closed while their slot was still on its way back."""
        self._opening: Open | None = None
        self._submitted: Submit | None = None
        self._now = 0.0
        self._steps = 0

    # What is about to be asked

    def live(self) -> list[TurnRecord]:
        """Accepted turns without an end, in the order of their arrival."""
        return [turn for turn in self.turns.values() if turn.is_live]

    def running(self) -> list[TurnRecord]:
        """Live turns that do not wait for an acknowledgement."""
        return [turn for turn in self.live() if turn.cut is None]

    def uncommitted(self) -> list[TurnRecord]:
        """Turns that wait for CommitAck, oldest first."""
        return [turn for turn in self.live() if turn.cut is not None]

    def open(self, command: Open) -> None:
        """The next SessionOpened is for this command."""
        self._opening = command

    def submit(self, command: Submit) -> None:
        """The next TurnAccepted is for this command."""
        self._submitted = command

    def abort(self, rid: Rid, reason: AbortReason) -> None:
        """A live turn that is not committing must end as asked, and tell nothing more."""
        turn = self.turns[rid]
        if turn.is_live and turn.cut is None and turn.must_end_as is None:
            turn.must_end_as = reason

    def finish_at(self, rid: Rid, output_len: int, reason: FinishReason) -> None:
        """A live turn that has that many ids must commit them; in all other cases nothing may happen."""
        turn = self.turns[rid]
        committed_len = turn.cut[1] if turn.cut is not None else len(turn.output)
        if turn.is_live and turn.must_end_as is None and 1 <= output_len <= committed_len:
            turn.finish_at = (reason, output_len)

    def close(self, session_id: SessionId) -> None:
        session = self.sessions.get(session_id)
        if session is None:
            return
        session.is_closing = True
        for rid in session.live.values():
            self.abort(rid, AbortReason.SESSION_CLOSED)

    def commit_failed(self, rid: Rid) -> None:
        self.turns[rid].must_end_as = AbortReason.COMMIT_FAILED

    def step_failed(self, rids: list[Rid]) -> None:
        """A forward failed: those of its turns that still run end with it. Retracted ones are of an older epoch."""
        for rid in rids:
            turn = self.turns[rid]
            if turn.is_waiting or turn.cut is not None:
                turn.may_end_as.append(AbortReason.FORWARD_FAILED)
            else:
                self.abort(rid, AbortReason.FORWARD_FAILED)

    # What the core tells

    def observe(self, events: list[CoreEvent], now: float) -> None:
        """Events of one call, in order."""
        self._now = now
        for event in events:
            match event:
                case SessionOpened():
                    self._opened(event)
                case SessionClosed():
                    self._closed(event)
                case SlotChanged():
                    self._slot_changed(event)
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
                case StepPlanned(step):
                    self._steps = step
                case _:
                    pass
        for session in self.sessions.values():
            check_idle_slot(session)

    def _opened(self, event: SessionOpened) -> None:
        command, self._opening = self._opening, None
        expect(command is not None and command.session_id == event.session_id, "ending", f"{event} unasked")
        assert command is not None
        expect(event.streaming == command.streaming, "ending", f"{event} for {command}")
        timeout_s = self._config.idle_timeout_s if command.idle_timeout_s is None else command.idle_timeout_s
        self.sessions[event.session_id] = SessionRecord(
            event.session_id, command.streaming, command.namespace, timeout_s, self._now
        )

    def _turn(self, rid: Rid, what: str) -> TurnRecord:
        turn = self.turns.get(rid)
        expect(turn is not None, "ending", f"{what} of rid {rid}, which was never accepted")
        assert turn is not None
        expect(turn.is_live, "ending", f"{what} of rid {rid} after its end")
        return turn

    def _accepted(self, event: TurnAccepted) -> None:
        command, self._submitted = self._submitted, None
        expect(command is not None and command.rid == event.rid, "ending", f"rid {event.rid} accepted unasked")
        assert command is not None
        base = self._base(command)
        session = self.sessions[command.session_id] if command.session_id is not None else None
        prompt = base + list(unpack_ids(command.input_ids))
        left = min(self._config.context_len, self._config.pool_tokens) - len(prompt)
        max_tokens = left if command.max_tokens is None else min(command.max_tokens, left)
        told = (event.context_len, event.new_len, event.max_tokens)
        expected = (len(prompt), count_ids(command.input_ids), max_tokens)
        expect(told == expected, "usage", f"rid {event.rid} accepted as {told}, not {expected}")
        self.turns[event.rid] = TurnRecord(
            rid=event.rid,
            turn_id=command.turn_id,
            session_id=command.session_id,
            namespace=session.namespace if session is not None else command.namespace,
            base_len=len(base),
            prompt=prompt,
            max_tokens=max_tokens,
            ignore_eos=command.ignore_eos,
            sampling=command.sampling,
            arrival=len(self.turns),
            digest=self._model.digest(prompt),
        )
        if session is not None:
            session.live[command.turn_id] = event.rid

    def _base(self, command: Submit) -> list[int]:
        if command.session_id is None:
            return []
        session = self.sessions[command.session_id]
        if session.streaming:
            return session.history
        return session.nodes[command.parent] if command.parent is not None else []

    def _admitted(self, event: TurnAdmitted) -> None:
        turn = self._turn(event.rid, "admission")
        expect(
            turn.is_waiting and turn.must_end_as is None, "ending", f"rid {turn.rid} admitted while it does not wait"
        )
        expect(event.attempt == turn.attempts + 1, "usage", f"rid {turn.rid}: attempt {event.attempt}")
        turn.attempts, turn.is_waiting, turn.overtaken = event.attempt, False, 0
        turn.has_sampled, turn.admitted_step = False, self._steps + 1
        self.admitted.append(turn.rid)
        parts = event.tokens_from_slot + event.tokens_from_tree + event.tokens_to_compute
        expect(parts == turn.context_len, "usage", f"rid {turn.rid}: {event} does not add up to {turn.context_len}")
        expect(event.tokens_to_compute >= 1, "usage", f"rid {turn.rid}: nothing to compute")
        if turn.first_admission is None:
            turn.first_admission = event
            self._overtake(turn)
        self._check_slot_hit(turn, event)
        self._check_tree_hit(turn, event)
        self.marks["hit slot"] += event.tokens_from_slot > 0
        self.marks["hit tree"] += event.tokens_from_tree > 0
        self.marks["resumed"] += event.attempt > 1

    def _overtake(self, admitted: TurnRecord) -> None:
        for turn in self.live():
            if turn.arrival < admitted.arrival and turn.is_waiting:
                turn.overtaken += 1
                expect(turn.overtaken <= OVERTAKEN_MAX, "fair", f"rid {turn.rid} overtaken {turn.overtaken} times")

    def _check_slot_hit(self, turn: TurnRecord, event: TurnAdmitted) -> None:
        session = self.sessions.get(turn.session_id) if turn.session_id is not None else None
        kept = session.slot_len if session is not None and session.streaming else 0
        told = event.tokens_from_slot
        expect(told == kept, "rollback", f"rid {turn.rid} took {told} tokens from its slot, which keeps {kept}")

    def _check_tree_hit(self, turn: TurnRecord, event: TurnAdmitted) -> None:
        """The tree can only hold what some turn of the same namespace sent or got before."""
        ids = turn.prompt + turn.output
        seen = (other for other in self.turns.values() if other.namespace == turn.namespace and other is not turn)
        longest = max((_common_len(ids, other.prompt + other.output) for other in seen), default=0)
        longest = max(longest, len(ids) if turn.attempts > 1 else 0)
        hit = event.tokens_from_slot + event.tokens_from_tree
        expect(
            event.tokens_from_tree == 0 or hit <= longest,
            "apart",
            f"rid {turn.rid}: {hit} tokens cached, but only {longest} were ever seen in {turn.namespace!r}",
        )

    def _sampled(self, event: TokensSampled) -> None:
        turn = self._turn(event.rid, "ids")
        expect(turn.must_end_as is None, "ending", f"rid {turn.rid}: ids after it was ended as {turn.must_end_as}")
        expect(turn.cut is None and not turn.is_waiting, "ending", f"rid {turn.rid}: ids while it does not run")
        start = event.output_start
        expect(start == len(turn.output), "exact", f"rid {turn.rid}: ids from {start}, {len(turn.output)} told so far")
        for token_id in event.token_ids:
            expected = self._model.next_id(turn.digest)
            where = f"rid {turn.rid} output {len(turn.output)}"
            expect(token_id == expected, "exact", f"{where}: {token_id}, a cold run gives {expected}")
            expect(not self._is_stopped(turn), "ending", f"{where}: told after the turn's last id")
            turn.digest = self._model.extend(turn.digest, token_id, turn.context_len)
            turn.output.append(token_id)
            turn.has_sampled = True

    def _is_stopped(self, turn: TurnRecord) -> bool:
        return self._natural_end(turn, len(turn.output)) is not None

    def _natural_end(self, turn: TurnRecord, output_len: int) -> FinishReason | None:
        if output_len and turn.output[output_len - 1] in self._config.eos_ids and not turn.ignore_eos:
            return FinishReason.STOP
        return FinishReason.LENGTH if output_len >= turn.max_tokens else None

    def _retracted(self, event: TurnRetracted) -> None:
        turn = self._turn(event.rid, "retraction")
        expect(not turn.is_waiting, "ending", f"rid {turn.rid} retracted while it waits")
        expect(event.output_len == len(turn.output), "exact", f"rid {turn.rid} keeps {event.output_len} ids")
        # With two plans in flight the older turns may meanwhile need more than the next token's page.
        is_hasty = turn.admitted_step == self._steps and self._config.in_flight_max == 1
        expect(not is_hasty, "fair", f"rid {turn.rid} was admitted for step {self._steps} and retracted in the next")
        turn.is_waiting = True
        turn.retractions += 1
        self.marks["retraction"] += 1

    def _commit_requested(self, event: CommitRequested) -> None:
        turn = self._turn(event.rid, "commit")
        expect(turn.must_end_as is None, "ending", f"rid {turn.rid} commits, but was ended as {turn.must_end_as}")
        natural = self._natural_end(turn, event.output_len)
        told = (event.reason, event.output_len)
        is_cut = turn.finish_at is not None
        if turn.finish_at is not None:
            expected, turn.finish_at = turn.finish_at, None
            self.marks["finish_at"] += 1
        else:
            expect(turn.cut is None, "ending", f"rid {turn.rid} asks for its commit twice")
            expect(
                natural is not None and event.output_len == len(turn.output),
                "ending",
                f"rid {turn.rid}: {told} unasked",
            )
            assert natural is not None
            expected = (natural, len(turn.output))
        expect(told == expected, "ending", f"rid {turn.rid} commits {told}, not {expected}")
        turn.cut = told
        # Cut after a retraction, while it waits or computes its ids anew: the slot keeps what was answered by then.
        turn.is_kv_short = is_cut and turn.retractions > 0

    def _ended(self, event: TurnEnded) -> None:
        turn = self._turn(event.rid, "end")
        self.marks[f"end {event.outcome}"] += 1
        expect((event.turn_id, event.session_id) == (turn.turn_id, turn.session_id), "ending", f"{event} misnamed")
        session = self.sessions.get(turn.session_id) if turn.session_id is not None else None
        if isinstance(event.outcome, FinishReason):
            expect(turn.must_end_as is None, "ending", f"rid {turn.rid} committed, but was ended as {turn.must_end_as}")
            expect(turn.cut is not None and turn.cut[0] is event.outcome, "ending", f"rid {turn.rid}: {event.outcome}")
            assert turn.cut is not None
            self._commit(turn, session, turn.cut[1])
        else:
            may_end_as = [turn.must_end_as] if turn.must_end_as is not None else turn.may_end_as
            expect(event.outcome in may_end_as, "ending", f"rid {turn.rid} ended as {event.outcome}, not {may_end_as}")
        turn.outcome = event.outcome
        self._check_usage(turn, event)
        self._check_history_len(turn, session, event)
        if session is not None:
            expect(session.live.pop(turn.turn_id, None) == turn.rid, "ending", f"rid {turn.rid} held no lease")
            session.idle_since = self._now

    def _commit(self, turn: TurnRecord, session: SessionRecord | None, output_len: int) -> None:
        if session is None:
            return
        path = turn.prompt + turn.output[:output_len]
        if session.streaming:
            session.history, session.last_turn = path, turn.turn_id
            session.is_kv_short = turn.is_kv_short
        session.nodes[turn.turn_id] = path

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

    def _check_history_len(self, turn: TurnRecord, session: SessionRecord | None, event: TurnEnded) -> None:
        if session is None:
            expected = None
        elif session.streaming:
            expected = len(session.history)
        else:
            expected = len(session.nodes.get(turn.turn_id, turn.prompt[: turn.base_len]))
        expect(
            event.history_len == expected, "rollback", f"rid {turn.rid}: history {event.history_len}, not {expected}"
        )

    def _slot_changed(self, event: SlotChanged) -> None:
        self.marks[f"slot {event.source} → {event.target}"] += 1
        follow_slot(self._slot_owner(event), event)

    def _slot_owner(self, event: SlotChanged) -> SessionRecord:
        """A closed session's slot may come back after the name was opened anew: the older one settles first."""
        for session in self._closed_sessions:
            if session.session_id == event.session_id and session.slot is event.source:
                if event.target is SlotState.RELEASED:
                    self._closed_sessions.remove(session)
                return session
        session_now = self.sessions.get(event.session_id)
        expect(session_now is not None, "slot", f"{event}, but there is no such session")
        assert session_now is not None
        return session_now

    def _closed(self, event: SessionClosed) -> None:
        session = self.sessions.pop(event.session_id, None)
        expect(session is not None, "ending", f"{event.session_id} closed, but was not open")
        assert session is not None
        self.marks[f"session {event.reason}"] += 1
        if session.streaming and session.slot is not SlotState.RELEASED:
            self._closed_sessions.append(session)
        expect(not session.live, "ending", f"{event.session_id} closed while {session.live} run")
        is_asked = session.is_closing == (event.reason is AbortReason.SESSION_CLOSED)
        expect(is_asked, "ending", f"{event.session_id} closed as {event.reason}, closing={session.is_closing}")
        expect(event.history_len == len(session.history) or not session.streaming, "rollback", f"{event}: wrong length")


def _common_len(left: list[int], right: list[int]) -> int:
    limit = min(len(left), len(right))
    return next((index for index in range(limit) if left[index] != right[index]), limit)
