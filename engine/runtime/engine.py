"""The engine in this process: an `EngineHandle` around core, executor and loop, with a beginning and an end."""

import asyncio
import gc
import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from engine.core.commands import AbortReason, Close, Flushed, Fork, Lengths, Open, Truncate
from engine.core.core import Core
from engine.core.errors import Refusal
from engine.core.events import EventSink
from engine.core.faults import Fault
from engine.core.findings import CheckLevel, Report
from engine.core.ids import Rid, SessionId, TurnId, pack_ids, unpack_ids
from engine.core.image import BooksImage
from engine.core.ownership import PoolKind
from engine.core.provenance import UnitHistory
from engine.core.snapshot import Snapshot
from engine.core.turns import Point
from engine.executor.protocol import Capabilities, Executor, ExecutorLost
from engine.runtime.clock import Clock, MonotonicClock, WallClock
from engine.runtime.config import RuntimeConfig
from engine.runtime.detokenizer import TokenBytes
from engine.runtime.dumps import Dumps
from engine.runtime.flushing import flush_cache
from engine.runtime.gate import require_content, require_fit, require_held, to_submit
from engine.runtime.handle import (
    DEFAULT_OPTIONS,
    NOBODY,
    Caller,
    EngineClosed,
    EngineFailed,
    Finished,
    StreamReason,
    StreamRefusal,
    TurnOptions,
    TurnRequest,
)
from engine.runtime.inbox import Answer, Inbox
from engine.runtime.incidents import Incident, Incidents
from engine.runtime.lifecycle import EngineState, Lifecycle
from engine.runtime.loop import EngineLoop, Watched
from engine.runtime.output import TurnOutput
from engine.runtime.records import TurnRecord, TurnRecords, forgotten
from engine.runtime.step_times import StepListener
from engine.runtime.streams import LiveStream, TurnFeed
from engine.runtime.turns import LiveTurns
from engine.runtime.vitals import Trip, Vitals

_log = logging.getLogger(__name__)

_CLOSE_S = 1.0
"""How long the executor may take to close, once no turn is left."""
_ACCEPTING = (EngineState.WARMING, EngineState.SERVING)


class LocalEngine:
    """Implements `EngineHandle`. Start it once, stop it once; in between any task of its event loop may call it.

    The core is changed by the loop's task alone. What only reads it (`find_base`, `snapshot`) is called at once:
    between two awaits of the loop the core is always whole.
    """

    def __init__(
        self,
        core: Core,
        executor: Executor,
        vocabulary: TokenBytes,
        *,
        sinks: Sequence[EventSink] = (),
        step_listeners: Sequence[StepListener] = (),
        clock: Clock | None = None,
        config: RuntimeConfig | None = None,
        lifecycle: Lifecycle | None = None,
        vitals: Vitals | None = None,
        incidents: Incidents | None = None,
    ) -> None:
        """`vitals` and `incidents`: a watchdog's. Raises ValueError when core and executor do not fit each other."""
        require_fit(core, executor.capabilities)
        self._core = core
        self._executor = executor
        self._vocabulary = vocabulary
        self._config = config or RuntimeConfig()
        self._lifecycle = lifecycle or Lifecycle()
        self.vitals = vitals or Vitals()
        """Signs of life, for whoever looks from outside."""
        self._lifecycle.add_listener(self.vitals.enter)
        self.incident_log = incidents or Incidents(WallClock())
        """What went wrong lately."""
        self._dumps = Dumps(core, self.vitals)
        self._inbox = Inbox(self._config.inbox_max)
        self._turns = LiveTurns(self._inbox.post_abort, self._config.detach_grace_s)
        self._records = TurnRecords(self._config)
        self._loop = EngineLoop(
            core,
            executor,
            self._inbox,
            self._turns,
            self._records,
            sinks=sinks,
            step_listeners=step_listeners,
            clock=clock or MonotonicClock(),
            config=self._config,
            watched=Watched(self.vitals, self.incident_log, self._dumps.of_halt),
        )
        self._task: asyncio.Task[None] | None = None
        self._undoing: set[asyncio.Task[None]] = set()
        self._rids = itertools.count(1)

    @property
    def capabilities(self) -> Capabilities:
        return self._executor.capabilities

    @property
    def context_len(self) -> int:
        return self._core.config.context_len

    @property
    def state(self) -> EngineState:
        return self._lifecycle.state

    @property
    def num_live_turns(self) -> int:
        return len(self._turns)

    async def start(self) -> None:
        """Has the executor prepared, starts the loop and warms up. Raises EngineFailed when a forward does not work."""
        self._dumps.loop = asyncio.get_running_loop()
        self._lifecycle.move(EngineState.COMPILING)
        try:
            await self._executor.prepare()
        except ExecutorLost as error:
            raise EngineFailed(f"the first forwards did not work: {error}") from error
        self._lifecycle.move(EngineState.WARMING)
        self._task = asyncio.create_task(self._run_loop(), name="engine-loop")
        if self._config.warm_up:
            await self._warm_up()
        # What was built so far lives until the end: the collector need never walk it again.
        gc.collect()
        gc.freeze()
        if self._lifecycle.state is EngineState.WARMING:
            self._lifecycle.move(EngineState.SERVING)

    async def wait_ended(self) -> None:
        """Returns when the loop has ended as asked. Raises EngineFailed when it halted."""
        assert self._task is not None, "the engine was not started"
        await asyncio.shield(self._task)

    async def stop(self, drain_s: float = 0.0) -> None:
        """Takes nothing new, lets running turns finish for `drain_s`, aborts the rest as SHUTDOWN, closes the executor.

        Idempotent. After `drain_s` it takes at most `stop_timeout_s` and a second; raises EngineFailed when that was
        not enough, as with a forward that does not end, or when the engine had halted.
        """
        if self._lifecycle.state in (EngineState.COMPILING, *_ACCEPTING):
            self._lifecycle.move(EngineState.DRAINING)
        try:
            await self._drain(drain_s)
            try:
                async with asyncio.timeout(self._config.stop_timeout_s):
                    await self._end_turns()
            finally:
                async with asyncio.timeout(_CLOSE_S):
                    await self._close_executor()
        except TimeoutError:
            if not self._lifecycle.is_over:
                self._lifecycle.move(EngineState.FAILED)
            raise EngineFailed(f"the engine did not stop within {self._config.stop_timeout_s} s") from None
        finally:
            # The counterpart of the freeze in `start`: a process that goes on (tests do) gets its objects back.
            gc.unfreeze()
        if not self._lifecycle.is_over:
            self._lifecycle.move(EngineState.STOPPED)

    async def _close_executor(self) -> None:
        """In a thread of its own, which does not keep the process: it waits for a forward that may never end."""
        loop = asyncio.get_running_loop()
        closed = asyncio.Event()

        def close() -> None:
            self._executor.close()
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(closed.set)

        threading.Thread(target=close, name="tenure-close", daemon=True).start()
        await closed.wait()

    async def open_session(
        self,
        session_id: SessionId,
        *,
        streaming: bool,
        idle_timeout_s: float | None = None,
        priority: int = 0,
        caller: Caller = NOBODY,
    ) -> None:
        of_caller = {"trace_id": caller.trace_id, "caller_span": caller.span}
        await self._open(Open(session_id, streaming, idle_timeout_s, priority=priority, **of_caller), session_id)

    async def fork_session(self, request: Fork) -> Lengths:
        lengths = await self._open(request, request.new_session_id)
        assert isinstance(lengths, Lengths), "the core answers a Fork with its lengths"
        return lengths

    async def _open(self, request: Open | Fork, session_id: SessionId) -> Answer:
        """Has a session opened; undoes it when the caller is cancelled meanwhile."""
        self._require_accepting()
        opening = asyncio.create_task(self._inbox.send(request), name="open-session")
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            undoing = asyncio.create_task(self._undo_open(opening, session_id), name="undo-open")
            self._undoing.add(undoing)
            undoing.add_done_callback(self._undoing.discard)
            raise

    async def _undo_open(self, opening: asyncio.Task[Answer], session_id: SessionId) -> None:
        """Nobody was told of the session: closes it, unless it is another one's, which is why it was not opened."""
        with suppress(Refusal, EngineClosed):
            await opening
            await self._inbox.send(Close(session_id))

    async def truncate_session(self, session_id: SessionId, length: int) -> Lengths:
        self._require_accepting()
        lengths = await self._inbox.send(Truncate(session_id, length))
        assert isinstance(lengths, Lengths), "the core answers a Truncate with its lengths"
        return lengths

    async def close_session(self, session_id: SessionId, *, drain: bool = False, caller: Caller = NOBODY) -> None:
        turns = self._turns.find_of_session(session_id)
        await self._inbox.send(Close(session_id, drain, caller.trace_id, caller.span))
        await self._turns.wait_ended(turns)

    async def submit(self, turn: TurnRequest) -> LiveStream:
        self._require_accepting()
        if turn.content:
            attached = await self.attach(turn.session_id, turn.turn_id, turn.content)
            if attached is not None:
                return attached
        # Nothing is awaited from here until the turn is among the live ones: a second one of its name finds it there.
        return await self._begin(Rid(next(self._rids)), turn)

    async def _begin(self, rid: Rid, turn: TurnRequest) -> LiveStream:
        feed = self._new_feed(turn.stop_strings, lambda: self._turns.detach(rid))
        self._turns.add(rid, turn, self._records.next_attempt(turn.session_id, turn.turn_id), feed)
        stream = feed.open()
        if turn.deadline_s is not None:
            # Before it is accepted: whoever asked may be gone by then, and the deadline holds all the same.
            self._turns.arm_deadline(rid, turn.deadline_s)
        try:
            await self._inbox.send(to_submit(rid, turn), turn.base)
        except asyncio.CancelledError:
            await stream.aclose()  # it may have been accepted already, and nobody is left to read it
            raise
        except (Refusal, StreamRefusal, EngineClosed) as failure:
            self._turns.refuse(rid, failure)
            raise
        return stream

    async def attach(self, session_id: SessionId | None, turn_id: TurnId, content: bytes) -> LiveStream | None:
        while (live := self._turns.find(session_id, turn_id)) is not None and live.is_ending:
            await self._turns.wait_ended((live,))
        if live is not None:
            require_content(turn_id, live.request.content, content)
            return self._turns.attach(live)
        record = self._find_record(session_id, turn_id)
        if record is None:
            return None
        require_content(turn_id, record.content, content)
        return self._replay(record, 0)

    async def resume(
        self, session_id: SessionId | None, turn_id: TurnId, from_token: int, held_digest: bytes | None = None
    ) -> LiveStream:
        live = self._turns.find(session_id, turn_id)
        if live is not None:
            require_held(live.feed.output.packed_ids(), from_token, held_digest)
            return self._turns.attach(live, from_token)
        record = self._find_record(session_id, turn_id)
        if record is None:
            message = f"there is no turn {turn_id!r} to resume: it never ran, was rolled back, or is long over"
            raise StreamRefusal(StreamReason.TURN_UNKNOWN, message, field="turn_id", value=turn_id)
        require_held(record.output_ids, from_token, held_digest)
        return self._replay(record, from_token)

    def _find_record(self, session_id: SessionId | None, turn_id: TurnId) -> TurnRecord | None:
        """Of a turn that is not alive. Raises StreamRefusal, TURN_FORGOTTEN, for one that only its session remembers.

        That is one of long ago, one that the session was forked with, and one that a Truncate has cut through.
        """
        record = self._records.find(session_id, turn_id)
        if record is None and session_id is not None and self._core.has_turn(session_id, turn_id):
            raise forgotten(turn_id)
        return record

    def _replay(self, record: TurnRecord, from_token: int) -> LiveStream:
        feed = self._new_feed(record.stop_strings, lambda: None)
        feed.start(record.started)
        feed.push(unpack_ids(record.output_ids))
        feed.finish(record.finished)
        return feed.open(from_token)

    def _new_feed(self, stop_strings: tuple[str, ...], on_abandoned: Callable[[], None]) -> TurnFeed:
        return TurnFeed(TurnOutput(self._vocabulary, stop_strings), self._config.unread_ids_max, on_abandoned)

    async def abort(self, session_id: SessionId | None, turn_id: TurnId) -> None:
        turn = self._turns.find(session_id, turn_id)
        if turn is not None:
            self._turns.abort(turn, AbortReason.CLIENT)
            await self._turns.wait_ended((turn,))

    async def find_base(
        self, session_id: SessionId, parent: TurnId | None, options: TurnOptions = DEFAULT_OPTIONS
    ) -> bytes:
        point = Point(parent, options.mode, options.offset, options.drop_previous_output)
        return self._core.find_base(session_id, point)

    @property
    def last_seq(self) -> int:
        return self._core.last_seq

    @property
    def is_over(self) -> bool:
        return self._lifecycle.is_over

    async def snapshot(self) -> Snapshot:
        return self._core.snapshot()

    async def check(self) -> Report:
        return self._core.check(CheckLevel.FULL)

    async def explain(self, pool: PoolKind, unit: int) -> UnitHistory:
        return self._core.explain(pool, unit)

    async def image(self) -> BooksImage:
        return self._core.image()

    async def flush(self) -> Flushed:
        return await flush_cache(self._core, self._inbox)

    def give_up(self, trip: Trip) -> None:
        """Ends all streams, and then the engine, for it is lost. On the loop's thread."""
        self._loop.give_up(EngineFailed(f"the engine is lost: {trip.trouble.message}", trip.incident_id))

    async def incidents(self) -> tuple[Incident, ...]:
        return self.incident_log.all()

    async def dump(self, incident_id: str | None = None) -> str | None:
        if incident_id is None:
            return self._dumps.of_now()
        incident = self.incident_log.find(incident_id)
        return None if incident is None else incident.dump

    def dump_stuck(self, trip: Trip) -> str:
        """For the watchdog, from its thread."""
        return self._dumps.of_trip(trip)

    async def plant(self, fault: Fault) -> UnitHistory:
        history = await self._inbox.send(fault)
        assert isinstance(history, UnitHistory), "the core says what it broke"
        return history

    def _require_accepting(self) -> None:
        if self._lifecycle.state not in _ACCEPTING:
            raise EngineClosed(f"the engine is {self._lifecycle.state}")

    async def _run_loop(self) -> None:
        has_ended_well = False
        try:
            await self._loop.run()
            has_ended_well = True
        finally:
            if not has_ended_well and not self._lifecycle.is_over:
                self._lifecycle.move(EngineState.FAILED)

    async def _warm_up(self) -> None:
        """One short turn through the front door; too short to leave anything in the prefix cache."""
        turn = TurnRequest(TurnId("warm-up"), pack_ids([0]), max_tokens=2, ignore_eos=True)
        async for event in await self.submit(turn):
            if isinstance(event, Finished) and isinstance(event.outcome, AbortReason):
                raise EngineFailed(f"the first forward did not work: {event.outcome} {event.detail}")

    async def _drain(self, drain_s: float) -> None:
        if drain_s <= 0 or not len(self._turns):
            return
        try:
            async with asyncio.timeout(drain_s):
                await self._turns.wait_ended(tuple(self._turns))
        except TimeoutError:
            _log.warning("event=drain_timeout drain_s=%s turns_left=%s", drain_s, len(self._turns))

    async def _end_turns(self) -> None:
        for turn in self._turns:
            self._turns.abort(turn, AbortReason.SHUTDOWN)
        self._loop.request_stop()
        if self._task is not None:
            await asyncio.shield(self._task)
