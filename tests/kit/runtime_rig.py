"""A `LocalEngine` over the shadow executor and the real core: for tests of the runtime."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.events import EventSink, Numbered, TurnEnded
from engine.core.ids import Rid, SessionId, TurnId, pack_ids
from engine.core.ownership import PoolKind
from engine.core.snapshot import PoolBooks
from engine.executor.protocol import Executor
from engine.runtime.config import RuntimeConfig
from engine.runtime.engine import LocalEngine
from engine.runtime.handle import DEFAULT_OPTIONS, Delta, Finished, TurnEvent, TurnOptions, TurnRequest
from engine.runtime.lifecycle import EngineState
from engine.runtime.step_times import StepListener
from engine.runtime.streams import LiveStream
from tests.kit.shadow_executor import Faults, ShadowExecutor, shadow_capabilities
from tests.kit.shadow_model import ShadowModel

VOCAB_SIZE = 256
MODEL = ShadowModel(VOCAB_SIZE)
QUICK = RuntimeConfig(full_check_steps=1, expire_interval_s=0.01, stop_timeout_s=5.0, warm_up=False)


class ByteVocabulary:
    """Each id is one byte."""

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])

    def is_special(self, token_id: int) -> bool:
        return False


@dataclass(slots=True)
class EventLogSink:
    """Keeps every event."""

    events: list[Numbered] = field(default_factory=list)

    def publish(self, events: tuple[Numbered, ...], now: float) -> None:
        self.events += events

    def endings(self) -> list[Rid]:
        """The rid of each terminal event, in order."""
        return [each.event.rid for each in self.events if isinstance(each.event, TurnEnded)]


@dataclass(frozen=True, slots=True)
class Answer:
    ids: list[int]
    end: Finished


@dataclass(frozen=True, slots=True)
class RuntimeRig:
    engine: LocalEngine
    executor: ShadowExecutor
    sink: EventLogSink

    async def submit(
        self,
        turn_id: str,
        new_ids: Sequence[int],
        *,
        session: str | None = None,
        parent: str | None = None,
        max_tokens: int | None = 8,
        deadline_s: float | None = None,
        stop: Sequence[str] = (),
        content: bytes = b"",
        options: TurnOptions = DEFAULT_OPTIONS,
    ) -> LiveStream:
        return await self.engine.submit(
            TurnRequest(
                turn_id=TurnId(turn_id),
                input_ids=pack_ids(new_ids),
                session_id=None if session is None else SessionId(session),
                parent=None if parent is None else TurnId(parent),
                max_tokens=max_tokens,
                deadline_s=deadline_s,
                stop_strings=tuple(stop),
                content=content,
                options=options,
            )
        )

    async def open(self, name: str, idle_timeout_s: float | None = None, *, streaming: bool = True) -> None:
        await self.engine.open_session(SessionId(name), streaming=streaming, idle_timeout_s=idle_timeout_s)

    async def run(
        self,
        turn_id: str,
        new_ids: Sequence[int],
        session: str,
        parent: str | None = None,
        max_tokens: int = 8,
        options: TurnOptions = DEFAULT_OPTIONS,
    ) -> "Answer":
        """One turn of a session, to its end."""
        stream = await self.submit(
            turn_id, new_ids, session=session, parent=parent, max_tokens=max_tokens, options=options
        )
        events = await read_all(stream)
        return Answer(ids_of(events), end_of(events))

    async def full_pool(self) -> PoolBooks:
        """The books of the pages, once no forward is in flight."""
        await wait_until(self._is_quiet)
        snapshot = await self.engine.snapshot()
        return next(books for books in snapshot.pools if books.pool is PoolKind.FULL)

    async def wait_no_turns(self) -> None:
        async def has_none() -> bool:
            return self.engine.num_live_turns == 0

        await wait_until(has_none)

    async def wait_no_sessions(self) -> None:
        async def has_none() -> bool:
            return not (await self.engine.snapshot()).sessions

        await wait_until(has_none)

    async def _is_quiet(self) -> bool:
        return not self.executor.num_in_flight and not (await self.engine.snapshot()).in_flight


async def wait_until(holds: Callable[[], Awaitable[bool]], timeout_s: float = 5.0) -> None:
    """Raises TimeoutError when it does not come to hold in time."""
    async with asyncio.timeout(timeout_s):
        while not await holds():  # noqa: ASYNC110 - seen from outside only, there is no event to wait for
            await asyncio.sleep(0.001)


@asynccontextmanager
async def running(
    *,
    in_flight_max: int = 1,
    pool_pages: int = 64,
    context_len: int = 256,
    runtime: RuntimeConfig = QUICK,
    sinks: Sequence[EventSink] = (),
    step_listeners: Sequence[StepListener] = (),
    waiting_max: int = 64,
    vocab_size: int = VOCAB_SIZE,
    window: int | None = None,
    swa_pages: int = 0,
    state_slots: int = 0,
    prefix_cache: bool = True,
) -> AsyncIterator[RuntimeRig]:
    """An engine that serves; stopped at the end, unless it has failed by then."""
    capabilities = shadow_capabilities(
        pool_pages=pool_pages,
        context_len=context_len,
        vocab_size=vocab_size,
        window=window,
        swa_pages=swa_pages,
        state_slots=state_slots,
    )
    executor = ShadowExecutor(capabilities, faults=Faults())
    sink = EventLogSink()
    config = replace(core_config(executor, in_flight_max, waiting_max), prefix_cache=prefix_cache)
    engine = LocalEngine(
        Core(config),
        executor,
        ByteVocabulary(),
        sinks=(sink, *sinks),
        step_listeners=step_listeners,
        config=runtime,
    )
    await engine.start()
    try:
        yield RuntimeRig(engine, executor, sink)
    finally:
        executor.let_go()
        if engine.state is not EngineState.FAILED:
            await engine.stop()
    assert executor.device.violations == []


def core_config(executor: Executor, in_flight_max: int = 1, waiting_max: int = 64) -> CoreConfig:
    """A core that fits the executor, with chunks of 8 tokens."""
    sizes = executor.capabilities
    return CoreConfig(
        page_size=sizes.page_size,
        pool_pages=sizes.pool_pages,
        num_rows=sizes.num_rows,
        context_len=sizes.context_len,
        vocab_size=sizes.vocab_size,
        chunk_tokens=8,
        step_tokens=16,
        in_flight_max=in_flight_max,
        waiting_max=waiting_max,
        window=sizes.window,
        swa_pages=sizes.swa_pages,
        state_slots=sizes.state_slots,
        state_interval=8,
    )


async def read_all(stream: LiveStream) -> list[TurnEvent]:
    return [event async for event in stream]


def ids_of(events: Sequence[TurnEvent]) -> list[int]:
    return [token_id for event in events if isinstance(event, Delta) for token_id in event.token_ids]


def end_of(events: Sequence[TurnEvent]) -> Finished:
    """The last event, which must be the one end of the turn."""
    ends = [event for event in events if isinstance(event, Finished)]
    assert ends == [events[-1]], "a turn has one end, and it comes last"
    return ends[0]


def oracle(history: Sequence[int], count: int) -> list[int]:
    """The ids that the shadow model generates after `history`, from the history alone."""
    ids = list(history)
    for _ in range(count):
        ids.append(MODEL.next_id(MODEL.digest(ids)))
    return ids[len(history) :]
