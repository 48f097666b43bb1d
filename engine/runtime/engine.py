"""The engine in this process: an `EngineHandle` around core, executor and loop, with a beginning and an end."""

import asyncio
import gc
import itertools
import logging
from collections.abc import Sequence

from engine.core.commands import AbortReason, Close, Open, Submit
from engine.core.core import Core
from engine.core.errors import Refusal
from engine.core.events import EventSink
from engine.core.ids import Rid, SessionId, TurnId, pack_ids
from engine.core.snapshot import Snapshot
from engine.executor.protocol import Capabilities, Executor
from engine.runtime.clock import Clock, MonotonicClock
from engine.runtime.config import RuntimeConfig
from engine.runtime.detokenizer import Detokenizer, TokenBytes
from engine.runtime.handle import EngineClosed, EngineFailed, Finished, TurnRequest
from engine.runtime.inbox import Inbox
from engine.runtime.lifecycle import EngineState, Lifecycle
from engine.runtime.loop import EngineLoop
from engine.runtime.streams import LiveStream
from engine.runtime.turns import LiveTurns

_log = logging.getLogger(__name__)

_ACCEPTING = (EngineState.WARMING, EngineState.SERVING)


class LocalEngine:
    """Implements `EngineHandle`. Start it once, stop it once; in between any task of its event loop may call it.

    The core is changed by the loop's task alone. What only reads it (`history`, `snapshot`) is called at once: between
    two awaits of the loop the core is always whole.
    """

    def __init__(
        self,
        core: Core,
        executor: Executor,
        vocabulary: TokenBytes,
        *,
        sinks: Sequence[EventSink] = (),
        clock: Clock | None = None,
        config: RuntimeConfig | None = None,
        lifecycle: Lifecycle | None = None,
    ) -> None:
        """Raises ValueError when core and executor do not fit each other."""
        _require_fit(core, executor.capabilities)
        self._core = core
        self._executor = executor
        self._vocabulary = vocabulary
        self._config = config or RuntimeConfig()
        self._lifecycle = lifecycle or Lifecycle()
        self._inbox = Inbox(self._config.inbox_max)
        self._turns = LiveTurns()
        self._loop = EngineLoop(
            core,
            executor,
            self._inbox,
            self._turns,
            sinks=sinks,
            clock=clock or MonotonicClock(),
            config=self._config,
        )
        self._task: asyncio.Task[None] | None = None
        self._rids = itertools.count(1)

    @property
    def capabilities(self) -> Capabilities:
        return self._executor.capabilities

    @property
    def state(self) -> EngineState:
        return self._lifecycle.state

    @property
    def num_live_turns(self) -> int:
        return len(self._turns)

    async def start(self) -> None:
        """Starts the loop and warms up. Raises EngineFailed when the first forward does not work."""
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

        Idempotent. After `drain_s` it takes at most `stop_timeout_s`; raises EngineFailed when that was not enough, or
        when the engine had halted.
        """
        if self._lifecycle.state in _ACCEPTING:
            self._lifecycle.move(EngineState.DRAINING)
        try:
            await self._drain(drain_s)
            async with asyncio.timeout(self._config.stop_timeout_s):
                try:
                    await self._end_turns()
                finally:
                    await asyncio.to_thread(self._executor.close)
        except TimeoutError:
            if not self._lifecycle.is_over:
                self._lifecycle.move(EngineState.FAILED)
            raise EngineFailed(f"the engine did not stop within {self._config.stop_timeout_s} s") from None
        finally:
            # The counterpart of the freeze in `start`: a process that goes on (tests do) gets its objects back.
            gc.unfreeze()
        if not self._lifecycle.is_over:
            self._lifecycle.move(EngineState.STOPPED)

    async def open_session(
        self, session_id: SessionId, *, streaming: bool, idle_timeout_s: float | None = None
    ) -> None:
        self._require_accepting()
        await self._inbox.send(Open(session_id, streaming, idle_timeout_s))

    async def close_session(self, session_id: SessionId) -> None:
        turns = self._turns.find_of_session(session_id)
        await self._inbox.send(Close(session_id))
        await self._turns.wait_ended(turns)

    async def submit(self, turn: TurnRequest) -> LiveStream:
        self._require_accepting()
        rid = Rid(next(self._rids))
        stream = LiveStream(
            Detokenizer(self._vocabulary),
            self._config.unread_ids_max,
            on_leave=lambda: self._inbox.post_abort(rid, AbortReason.DISCONNECT),
        )
        self._turns.add(rid, turn.turn_id, turn.session_id, stream)
        try:
            await self._inbox.send(_to_submit(rid, turn))
        except asyncio.CancelledError:
            await stream.aclose()  # it may have been accepted already, and nobody is left to read it
            raise
        except (Refusal, EngineClosed):
            self._turns.discard(rid)
            raise
        if turn.deadline_s is not None:
            self._turns.arm_deadline(rid, turn.deadline_s, lambda: self._inbox.post_abort(rid, AbortReason.DEADLINE))
        return stream

    async def abort(self, session_id: SessionId | None, turn_id: TurnId) -> None:
        turns = self._turns.find_named(session_id, turn_id)
        for turn in turns:
            self._inbox.post_abort(turn.rid, AbortReason.CLIENT)
        await self._turns.wait_ended(turns)

    async def history(self, session_id: SessionId, parent: TurnId | None) -> bytes:
        return self._core.find_history(session_id, parent)

    async def snapshot(self) -> Snapshot:
        return self._core.snapshot()

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
            self._inbox.post_abort(turn.rid, AbortReason.SHUTDOWN)
        self._loop.request_stop()
        if self._task is not None:
            await asyncio.shield(self._task)


def _to_submit(rid: Rid, turn: TurnRequest) -> Submit:
    return Submit(
        rid=rid,
        turn_id=turn.turn_id,
        input_ids=turn.input_ids,
        session_id=turn.session_id,
        parent=turn.parent,
        max_tokens=turn.max_tokens,
        ignore_eos=turn.ignore_eos,
        sampling=turn.sampling,
        trace_id=turn.trace_id,
    )


def _require_fit(core: Core, capabilities: Capabilities) -> None:
    config = core.config
    pairs = {
        "page_size": (config.page_size, capabilities.page_size),
        "pool_pages": (config.pool_pages, capabilities.pool_pages),
        "num_rows": (config.num_rows, capabilities.num_rows),
        "vocab_size": (config.vocab_size, capabilities.vocab_size),
    }
    for name, (planned, available) in pairs.items():
        if planned != available:
            raise ValueError(f"{name}: the core plans for {planned}, the executor has {available}")
    if config.context_len > capabilities.context_len:
        raise ValueError(f"context_len {config.context_len} is above the executor's {capabilities.context_len}")
