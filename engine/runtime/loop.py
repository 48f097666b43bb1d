"""The loop: drain the inbox, plan, submit, wait, advance, tell. One task runs it and owns the core."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from engine.core.commands import Abort, AbortReason, CommitAck, FinishAt, FinishReason, Submit
from engine.core.core import Core
from engine.core.errors import InvariantViolation, Refusal
from engine.core.events import (
    CommitRequested,
    CoreEvent,
    EventSink,
    Numbered,
    SessionClosed,
    StepAnswered,
    TokensSampled,
    TurnAccepted,
    TurnEnded,
    TurnsForgotten,
)
from engine.core.faults import Fault
from engine.core.findings import Finding
from engine.core.ids import Rid
from engine.core.plan import StepOutcome, StepPlan, StepResult
from engine.core.provenance import UnitHistory
from engine.core.turns import Point
from engine.executor.protocol import Executor
from engine.runtime.clock import Clock
from engine.runtime.config import RuntimeConfig
from engine.runtime.handle import Base, EngineClosed, EngineFailed, Finished, StreamReason, StreamRefusal
from engine.runtime.housekeeping import Housekeeping
from engine.runtime.inbox import Answer, Answered, Inbox, Posted
from engine.runtime.incidents import Incident, IncidentKind, Incidents
from engine.runtime.records import TurnRecord, TurnRecords
from engine.runtime.step_times import StepListener, StepTimes
from engine.runtime.turns import LiveTurn, LiveTurns
from engine.runtime.units import UNIT_NAMES
from engine.runtime.vitals import Beat, InFlight, Phase, Vitals

_log = logging.getLogger(__name__)

_NAMED_MAX = 8
"""Units of a leak that its incident names."""
_REASON_CHARS_MAX = 300
"""Of why the engine halted, in a line."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Where the loop leaves its signs of life, and what goes wrong."""

    vitals: Vitals
    incidents: Incidents
    dump: Callable[[Incident, Exception], str]
    """All that is known when the engine halts."""


@dataclass(frozen=True, slots=True)
class _Out:
    """A forward that is out."""

    plan: StepPlan
    answer: asyncio.Future[StepOutcome]
    in_flight: InFlight
    host_s: float
    """What planning and submitting took."""


class EngineLoop:
    """Never cancels a forward: whatever has to end a turn is a command in the inbox.

    While forwards run, it waits for the oldest of them or for the inbox. As many plans are in flight as both the core
    and the executor allow.
    """

    def __init__(
        self,
        core: Core,
        executor: Executor,
        inbox: Inbox,
        turns: LiveTurns,
        records: TurnRecords,
        *,
        sinks: Sequence[EventSink],
        step_listeners: Sequence[StepListener],
        clock: Clock,
        config: RuntimeConfig,
        watched: Watched,
    ) -> None:
        self._core = core
        self._executor = executor
        self._inbox = inbox
        self._turns = turns
        self._records = records
        self._sinks = tuple(sinks)
        self._step_listeners = tuple(step_listeners)
        self._clock = clock
        self._config = config
        self._watched = watched
        self._vitals = watched.vitals
        self._housekeeping = Housekeeping(core, clock, config, self._note_leak)
        self._depth = min(core.config.in_flight_max, executor.capabilities.max_in_flight)
        self._in_flight: deque[_Out] = deque()
        self._is_stopping = False
        self._num_rounds = 0
        self._progress_s = self._vitals.clock.now()
        self._failures = 0
        self._incident_id = ""
        """Of what ends turns now, until that is published."""
        self._is_anyones = True
        """Whether a turn of the plan that is being answered is alive."""
        self._lost: EngineFailed | None = None
        self._given_up: _Out | None = None
        """The forward whose turns were ended although it is still out."""

    def request_stop(self) -> None:
        """Ends the loop as soon as no turn is alive."""
        self._is_stopping = True
        self._inbox.ring()

    def give_up(self, failure: EngineFailed) -> None:
        """Ends all streams with `failure`, and the loop."""
        self._lost = failure
        self._inbox.ring()

    async def run(self) -> None:
        """Serves until it is asked to stop. Raises EngineFailed when it can not go on; no stream is left open then."""
        try:
            self._beat()
            while not (self._is_stopping and not self._core.has_work):
                await self._iterate()
                if self._lost is not None:
                    raise self._end_all(self._lost)
        except EngineFailed:
            raise
        except Exception as error:  # allowed (ADR 5): whatever broke, no reader may be left waiting
            raise self._halt(error) from error
        finally:
            self._end_all(EngineFailed("the engine's loop was ended"))

    async def _iterate(self) -> None:
        self._take_commands()
        self._take_answers()
        self._give_up_stuck()
        self._housekeeping.expire()
        self._records.expire(self._clock.now())
        self._publish()
        self._submit_plans()
        has_more_to_prove = False
        if not self._in_flight:
            self._require_idle()
            has_more_to_prove = self._housekeeping.when_idle()
            self._publish()
        self._beat()
        if has_more_to_prove:
            await asyncio.sleep(0)  # a slice at a time: whoever came meanwhile goes first
        else:
            await self._inbox.wait(self._config.expire_interval_s)

    def _beat(self) -> None:
        self._num_rounds += 1
        oldest = self._in_flight[0].in_flight if self._in_flight else None
        now_s = self._vitals.clock.now()
        self._vitals.beat = Beat(now_s, self._num_rounds, self._progress_s, oldest, self._failures)

    def _take_commands(self) -> None:
        self._inbox.silence()
        has_changed = False
        while (taken := self._inbox.take()) is not None:
            if isinstance(taken, Abort):
                self._core.apply(taken, self._clock.now())
            else:
                self._apply(taken)
            has_changed = True
        if has_changed:
            self._housekeeping.after_command()
            self._publish()

    def _apply(self, posted: Posted) -> None:
        """Applies a command and answers its sender, whatever happens. A sender that was cancelled gets no answer."""
        reply = posted.reply
        try:
            self._require_base(posted)
            answer = self._change(posted.command)
            if not reply.done():
                reply.set_result(answer)
        except (Refusal, StreamRefusal) as refusal:
            if isinstance(posted.command, Submit):
                self._turns.refuse(posted.command.rid, refusal)
            if not reply.done():
                reply.set_exception(refusal)
        finally:
            if not reply.done():
                reply.set_exception(EngineClosed("the engine halted"))

    def _change(self, command: Answered) -> Answer:
        if isinstance(command, Fault):
            return self._core.plant(command)
        return self._core.apply(command, self._clock.now())

    def _require_base(self, posted: Posted) -> None:
        """The input was made to follow certain ids: raises StreamRefusal when it would follow others by now."""
        command = posted.command
        if not isinstance(command, Submit) or command.session_id is None or posted.base is None:
            return
        found = Base.of(self._core.find_base(command.session_id, Point.of(command)))
        if found != posted.base:
            message = (
                f"what the turn follows went from {posted.base.num_ids} to {found.num_ids} tokens, or to others, "
                "while the turn was being made"
            )
            raise StreamRefusal(StreamReason.HISTORY_MOVED, message, field="session_id", value=found.num_ids)

    def _submit_plans(self) -> None:
        while len(self._in_flight) < self._depth:
            began_s = self._clock.now()
            plan = self._core.next_plan(began_s)
            self._publish()
            if plan is None:
                return
            future = self._executor.submit(plan)
            future.add_done_callback(self._ring)
            phase = Phase.DECODE if plan.num_tokens == len(plan.rows) else Phase.PREFILL
            in_flight = InFlight(plan.step, phase, self._vitals.clock.now())
            self._in_flight.append(_Out(plan, future, in_flight, self._clock.now() - began_s))

    def _ring(self, answered: asyncio.Future[StepOutcome]) -> None:
        if not answered.cancelled():
            answered.exception()  # of several futures that a lost executor fails only the first is asked for its result
        self._inbox.ring()

    def _take_answers(self) -> None:
        while self._in_flight and self._in_flight[0].answer.done():
            out = self._in_flight.popleft()
            outcome = out.answer.result()
            self._progress_s = self._vitals.clock.now()
            self._is_anyones = any(row.rid in self._turns for row in out.plan.rows)
            began_s = self._clock.now()
            self._core.advance(outcome, began_s)
            self._publish()
            self._housekeeping.after_step()
            self._tell_times(out, outcome, self._clock.now() - began_s)

    def _tell_times(self, out: _Out, outcome: StepOutcome, host_s: float) -> None:
        device_s = outcome.device_s if isinstance(outcome, StepResult) else None
        times = StepTimes(out.plan.step, out.host_s + host_s, device_s)
        for listener in self._step_listeners:
            self._tell(listener, partial(listener.step_timed, times))

    def _give_up_stuck(self) -> None:
        """Ends the turns of a forward that the watchdog found stuck. Their pages stay theirs until it comes back."""
        trip = self._vitals.trip
        if trip is None or not self._in_flight:
            return
        oldest = self._in_flight[0]
        if trip.trouble.step != oldest.plan.step or self._given_up is oldest:
            return
        self._given_up = oldest
        self._incident_id = trip.incident_id
        detail = f"step {oldest.plan.step} has not ended within {trip.trouble.limit_s:g} s"
        for row in oldest.plan.rows:
            self._core.apply(Abort(row.rid, AbortReason.FORWARD_FAILED, detail), self._clock.now())
        self._publish()

    def _require_idle(self) -> None:
        """With nothing in flight, work that got no plan would wait for ever."""
        if self._core.has_work:
            raise InvariantViolation("turns are alive, nothing is in flight, and the core plans nothing")

    def _publish(self) -> None:
        """Tells what happened, then acknowledges the commits in it, until nothing more happens."""
        while events := self._core.take_events():
            now_s = self._clock.now()
            for numbered in events:
                self._route(numbered.event, now_s)
            self._tell_sinks(events, now_s)
            for rid in _commits(events):
                # Nothing is stored outside the process yet, so a finished turn is committed as soon as it was told.
                self._core.apply(CommitAck(rid), now_s)
        self._incident_id = ""

    def _tell_sinks(self, events: tuple[Numbered, ...], now_s: float) -> None:
        for sink in self._sinks:
            self._tell(sink, partial(sink.publish, events, now_s))

    def _tell(self, watcher: EventSink | StepListener, news: Callable[[], None]) -> None:
        """Who raises is told nothing more, of events and of steps: what it has missed it could not make up for."""
        try:
            news()
        except Exception as error:  # allowed: telemetry never fails a request (law L8)
            self._sinks = tuple(other for other in self._sinks if other is not watcher)
            self._step_listeners = tuple(other for other in self._step_listeners if other is not watcher)
            _log.critical("event=sink_lost sink=%s: %s", type(watcher).__name__, error, exc_info=error)

    def _route(self, event: CoreEvent, now_s: float) -> None:
        match event:
            case TurnAccepted():
                self._turns.start(event.rid, event.context_len, event.new_len, event.max_tokens)
            case TokensSampled():
                output_len = self._turns.push(event.rid, event.token_ids, event.drafted)
                if output_len is not None:
                    # Before the acknowledgement of this step's commits: a turn that is committing can still be cut.
                    self._core.apply(FinishAt(event.rid, output_len, FinishReason.STOP), now_s)
            case TurnEnded():
                self._end(event, now_s)
            case StepAnswered():
                self._note_step(event)
            case SessionClosed():
                self._records.drop_session(event.session_id)
            case TurnsForgotten():
                self._records.drop_turns(event.session_id, event.turn_ids)
            case _:
                return  # facts for the sinks only

    def _end(self, event: TurnEnded, now_s: float) -> None:
        """Tells the readers, and keeps what a client that lost its stream may still ask for."""
        finished = Finished(event.outcome, event.usage, event.history_len, event.is_committed, event.detail)
        if event.outcome is AbortReason.FORWARD_FAILED:
            finished = replace(finished, incident_id=self._incident_id)
        turn = self._turns.finish(event.rid, finished)
        if turn is None or not turn.is_resumable:
            return
        if event.is_committed:
            self._records.add(event.session_id, event.turn_id, _record_of(turn), now_s)
        else:
            self._records.free(event.session_id, event.turn_id, turn.attempt)

    def _note_step(self, event: StepAnswered) -> None:
        """A step that failed is one incident, whatever the number of its turns; none when all had ended before."""
        if event.failure is None:
            self._failures = 0
        elif self._is_anyones:
            self._failures += 1
            incidents = self._watched.incidents
            incident = incidents.open(IncidentKind.FORWARD_FAILED, f"step {event.step}: {event.failure}")
            incidents.end(incident.incident_id)
            self._incident_id = incident.incident_id
            facts = (incident.incident_id, incident.kind, event.step, " ".join(event.failure.split()))
            _log.error("event=incident incident_id=%s kind=%s step=%d: %s", *facts)

    def _note_leak(self, leak: Finding, history: UnitHistory) -> None:
        """`history`: of its first unit, the quarantine included."""
        units = ", ".join(map(str, leak.units[:_NAMED_MAX])) + (" and more" if len(leak.units) > _NAMED_MAX else "")
        last = f": last {history.moves[1]}" if len(history.moves) > 1 else ""
        assert leak.pool is not None, f"a leak of nothing: {leak.message}"
        message = f"{UNIT_NAMES[leak.pool]} {units} of pool {leak.pool} was lost{last}; out of circulation now"
        incident = self._watched.incidents.open(IncidentKind.LEAK, message)
        self._incident_id = incident.incident_id  # turns that the smaller pool can not hold end next
        _log.error("event=incident incident_id=%s kind=%s pool=%s", incident.incident_id, incident.kind, leak.pool)

    def _halt(self, error: Exception) -> EngineFailed:
        """Says why in the log, with a dump, and ends all streams."""
        reason = f"{type(error).__name__}: {error}"
        if len(reason) > _REASON_CHARS_MAX:
            reason = f"{reason[:_REASON_CHARS_MAX]}... (the dump has all of it)"
        incident = self._watched.incidents.open(IncidentKind.HALTED, reason)
        _log.critical("event=engine_halted incident_id=%s reason=%s", incident.incident_id, reason, exc_info=error)
        failure = EngineFailed(f"the engine halted: {reason}", incident.incident_id)
        try:
            dump = self._watched.dump(incident, error)
            self._watched.incidents.attach(incident.incident_id, dump)
            _log.critical("event=engine_dump incident_id=%s\n%s", incident.incident_id, dump)
        finally:  # books may be too broken to be told of
            self._end_all(failure)
        return failure

    def _end_all(self, failure: EngineFailed) -> EngineFailed:
        self._inbox.close(EngineClosed("the engine has ended"))
        self._turns.fail_all(failure)
        return failure


def _record_of(turn: LiveTurn) -> TurnRecord:
    feed, request = turn.feed, turn.request
    assert feed.started is not None, f"rid {turn.rid} ends without having begun"
    assert feed.finished is not None, f"rid {turn.rid} is recorded before its end"
    return TurnRecord(request.content, feed.started, feed.finished, feed.output.packed_ids(), request.stop_strings)


def _commits(events: tuple[Numbered, ...]) -> list[Rid]:
    return [numbered.event.rid for numbered in events if isinstance(numbered.event, CommitRequested)]
