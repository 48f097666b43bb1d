"""The loop: drain the inbox, plan, submit, wait, advance, tell. One task runs it and owns the core."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from engine.core.commands import Abort, CommitAck, FinishAt, FinishReason, Submit
from engine.core.core import Core
from engine.core.errors import InvariantViolation, Refusal
from engine.core.events import (
    CommitRequested,
    CoreEvent,
    EventSink,
    Numbered,
    SessionClosed,
    TokensSampled,
    TurnAccepted,
    TurnEnded,
    TurnsForgotten,
)
from engine.core.faults import Fault
from engine.core.ids import Rid
from engine.core.plan import StepOutcome
from engine.core.turns import Point
from engine.executor.protocol import Executor
from engine.runtime.clock import Clock
from engine.runtime.config import RuntimeConfig
from engine.runtime.dump import dump_core
from engine.runtime.handle import Base, EngineClosed, EngineFailed, Finished, StreamReason, StreamRefusal
from engine.runtime.housekeeping import Housekeeping
from engine.runtime.inbox import Answer, Answered, Inbox, Posted
from engine.runtime.records import TurnRecord, TurnRecords
from engine.runtime.turns import LiveTurn, LiveTurns

_log = logging.getLogger(__name__)


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
        clock: Clock,
        config: RuntimeConfig,
    ) -> None:
        self._core = core
        self._executor = executor
        self._inbox = inbox
        self._turns = turns
        self._records = records
        self._sinks = tuple(sinks)
        self._clock = clock
        self._config = config
        self._housekeeping = Housekeeping(core, clock, config)
        self._depth = min(core.config.in_flight_max, executor.capabilities.max_in_flight)
        self._in_flight: deque[asyncio.Future[StepOutcome]] = deque()
        self._is_stopping = False

    def request_stop(self) -> None:
        """Ends the loop as soon as no turn is alive."""
        self._is_stopping = True
        self._inbox.ring()

    async def run(self) -> None:
        """Serves until it is asked to stop. Raises EngineFailed when it can not go on; no stream is left open then."""
        try:
            while not (self._is_stopping and not self._core.has_work):
                await self._iterate()
        except Exception as error:  # one of the three allowed: whatever broke, no reader may be left waiting
            _log.critical("event=engine_halted reason=%s: %s", type(error).__name__, error, exc_info=error)
            try:
                _log.critical("event=engine_dump\n%s", dump_core(self._core, error))
            finally:  # books may be too broken to be told of
                raise self._end_all(EngineFailed(f"the engine halted: {type(error).__name__}: {error}")) from error
        finally:
            self._end_all(EngineFailed("the engine's loop was ended"))

    async def _iterate(self) -> None:
        self._take_commands()
        self._take_answers()
        self._housekeeping.expire()
        self._records.expire(self._clock.now())
        self._publish()
        self._submit_plans()
        if not self._in_flight:
            self._require_idle()
            self._housekeeping.when_idle()
        await self._inbox.wait(self._config.expire_interval_s)

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
            plan = self._core.next_plan(self._clock.now())
            self._publish()
            if plan is None:
                return
            future = self._executor.submit(plan)
            future.add_done_callback(self._ring)
            self._in_flight.append(future)

    def _ring(self, _answered: asyncio.Future[StepOutcome]) -> None:
        self._inbox.ring()

    def _take_answers(self) -> None:
        while self._in_flight and self._in_flight[0].done():
            outcome = self._in_flight.popleft().result()
            self._core.advance(outcome, self._clock.now())
            self._publish()
            self._housekeeping.after_step()

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
            for sink in self._sinks:
                sink.publish(events, now_s)
            for rid in _commits(events):
                # Nothing is stored outside the process yet, so a finished turn is committed as soon as it was told.
                self._core.apply(CommitAck(rid), now_s)

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
            case SessionClosed():
                self._records.drop_session(event.session_id)
            case TurnsForgotten():
                self._records.drop_turns(event.session_id, event.turn_ids)
            case _:
                return  # facts for the sinks only

    def _end(self, event: TurnEnded, now_s: float) -> None:
        """Tells the readers, and keeps what a client that lost its stream may still ask for."""
        finished = Finished(event.outcome, event.usage, event.history_len, event.is_committed, event.detail)
        turn = self._turns.finish(event.rid, finished)
        if turn is None or not turn.is_resumable:
            return
        if event.is_committed:
            self._records.add(event.session_id, event.turn_id, _record_of(turn), now_s)
        else:
            self._records.free(event.session_id, event.turn_id, turn.attempt)

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
