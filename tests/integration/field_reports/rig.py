"""The rig of the field reports: page 16, the full check after every step, a second set of books, and forwards by hand.

Every trial ends with the same five checks, `FieldRig.require_sound`.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from engine.core.commands import AbortReason, FinishReason
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.errors import Refusal
from engine.core.events import (
    CoreEvent,
    KvMoved,
    Numbered,
    SlotChanged,
    SlotState,
    StepAnswered,
    TurnAccepted,
    TurnEnded,
    TurnRetracted,
)
from engine.core.ids import SessionId, TurnId, unpack_ids
from engine.core.ownership import Move, PoolKind
from engine.core.plan import StepPlan
from engine.core.snapshot import PoolBooks, SessionState, Snapshot
from engine.executor.protocol import Capabilities
from engine.runtime.clock import Clock
from engine.runtime.config import RuntimeConfig
from engine.runtime.engine import LocalEngine
from engine.runtime.handle import DEFAULT_OPTIONS, TurnOptions
from engine.runtime.lifecycle import EngineState
from engine.runtime.streams import LiveStream
from tests.kit.book import Book
from tests.kit.runtime_rig import (
    QUICK,
    Answer,
    ByteVocabulary,
    EventLogSink,
    RuntimeRig,
    end_of,
    ids_of,
    oracle,
    read_all,
    wait_until,
)
from tests.kit.shadow_device import ShadowDevice
from tests.kit.shadow_executor import Faults, ShadowExecutor, shadow_capabilities

PAGE = 16
VOCAB_SIZE = 256
DEFAULT = CoreConfig(
    page_size=PAGE,
    pool_pages=65,
    num_rows=17,
    context_len=1024,
    vocab_size=VOCAB_SIZE,
    chunk_tokens=32,
    step_tokens=128,
    waiting_max=64,
)
"""The pool holds 1024 tokens; `replace` what a report says."""
WINDOWS = replace(DEFAULT, window=PAGE, swa_pages=65)
STATES = replace(DEFAULT, state_slots=33, state_interval=PAGE)
BOTH = replace(WINDOWS, state_slots=33, state_interval=PAGE)
KINDS = pytest.mark.parametrize(
    "config", [DEFAULT, WINDOWS, STATES, BOTH], ids=["full", "windows", "states", "windows+states"]
)
"""Models with full attention alone, with windows of 16 tokens, with recurrent layers, and with both."""
DEPTHS = pytest.mark.parametrize("depth", [1, 2], ids=["alone", "overlap"])
"""Plans that may be in flight: overlap off and on."""
PROBE = (201, 3, 77, 140, 9)
NEVER_S = 3600.0
Outcome = FinishReason | AbortReason


def pages_of(pool_tokens: int) -> int:
    """`pool_pages` of a pool that holds so many tokens: with the padding page."""
    return 1 + pool_tokens // PAGE


def prompt(seed: int, length: int) -> list[int]:
    """Ids that look random, and are the same for the same seed; different seeds differ in the first id."""
    return [(seed * 37 + 11 * place + place * place * (seed + 1)) % VOCAB_SIZE for place in range(length)]


class ManualClock:
    """Stands still until it is turned."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now(self) -> float:
        return self._now_s

    def turn(self, seconds: float) -> None:
        self._now_s += seconds


class BookKeeper:
    """An `EventSink` that replays the stream into its own books, and poisons pages on the device as they come free."""

    def __init__(self, book: Book, device: ShadowDevice) -> None:
        self._book = book
        self._device = device

    def publish(self, events: tuple[Numbered, ...], _now: float) -> None:
        facts = [numbered.event for numbered in events]
        self._book.replay(facts)
        self._device.observe(facts)


class Gate:
    """Lets forwards be answered one by one."""

    def __init__(self, executor: ShadowExecutor) -> None:
        self._executor = executor
        self._until: int | None = None
        executor.faults.delay_s = self._delay_s

    def open(self, until: int | None = None) -> None:
        """Answers plans up to step `until`; None: all."""
        self._until = until
        self._executor.hold()
        self._executor.let_go()

    def _delay_s(self, plan: StepPlan) -> float:
        return 0.0 if self._until is None or plan.step <= self._until else NEVER_S


@dataclass(frozen=True, slots=True)
class FieldRig(RuntimeRig):
    """A `RuntimeRig` with what the trials need on top."""

    book: Book
    gate: Gate
    others: frozenset["asyncio.Task[object]"]
    """Tasks that ran before the engine did."""

    # Forwards by hand

    @property
    def answered(self) -> int:
        """Steps answered so far."""
        return sum(isinstance(numbered.event, StepAnswered) for numbered in self.sink.events)

    async def let_steps(self, num_steps: int) -> None:
        """Lets so many more forwards be answered, then holds. Raises TimeoutError when there are not so many."""
        until = self.answered + num_steps
        self.gate.open(until)

        async def are_answered() -> bool:
            return self.answered >= until

        await wait_until(are_answered)

    def pause(self) -> None:
        """Answers no further forward until `let_steps` or `go_on`."""
        self.gate.open(0)

    def go_on(self) -> None:
        self.gate.open()

    # Turns

    async def collect(self, stream: LiveStream) -> Answer:
        events = await read_all(stream)
        return Answer(ids_of(events), end_of(events))

    async def read_some(self, stream: LiveStream, num_ids: int) -> list[int]:
        """The first ids of a stream: `num_ids` or more."""
        ids: list[int] = []
        while len(ids) < num_ids:
            ids += ids_of([await anext(stream)])
        return ids

    async def alone(
        self,
        turn_id: str,
        new_ids: Sequence[int],
        max_tokens: int | None = 8,
        options: TurnOptions = DEFAULT_OPTIONS,
    ) -> Answer:
        """One turn without a session, to its end."""
        return await self.collect(await self.submit(turn_id, new_ids, max_tokens=max_tokens, options=options))

    async def refused(
        self,
        new_ids: Sequence[int],
        *,
        session: str | None = None,
        max_tokens: int | None = 8,
        options: TurnOptions = DEFAULT_OPTIONS,
    ) -> Refusal:
        """A turn that must be refused, and change nothing. To be called while nothing else moves."""
        before, told = await self.engine.snapshot(), len(self.sink.events)
        with pytest.raises(Refusal) as caught:
            await self.submit("refused", new_ids, session=session, max_tokens=max_tokens, options=options)
        after = await self.engine.snapshot()
        assert (after.turns, after.sessions, after.pools) == (before.turns, before.sessions, before.pools)
        assert not [each for each in self.sink.events[told:] if isinstance(each.event, TurnAccepted)]
        return caught.value

    async def abort(self, turn_id: str, session: str | None = None) -> None:
        await self.engine.abort(None if session is None else SessionId(session), TurnId(turn_id))

    async def history(self, session: str, parent: str | None = None) -> list[int]:
        """The ids that a session's next turn would follow."""
        point = None if parent is None else TurnId(parent)
        return list(unpack_ids(await self.engine.find_base(SessionId(session), point)))

    async def snapshot(self) -> Snapshot:
        return await self.engine.snapshot()

    async def wait_in_flight(self, num_plans: int) -> None:
        """Until so many forwards are out. With as many as may be, and none answered, nothing moves any more."""

        async def are_out() -> bool:
            planned = (await self.engine.snapshot()).in_flight
            return planned == self.executor.num_in_flight == num_plans

        await wait_until(are_out)

    async def state_of(self, session: str) -> SessionState:
        states = (await self.engine.snapshot()).sessions
        return next(state for state in states if state.session_id == session)

    async def slots(self) -> dict[str, SlotState | None]:
        """Where each open session's KV is."""
        return {state.session_id: state.slot for state in (await self.engine.snapshot()).sessions}

    async def full_books(self) -> PoolBooks:
        """The books of the pages at this instant, forwards in flight or not."""
        return await self.books(PoolKind.FULL)

    async def books(self, pool: PoolKind) -> PoolBooks:
        """The books of a pool at this instant."""
        return next(books for books in (await self.engine.snapshot()).pools if books.pool is pool)

    async def wait_phase(self, turn_id: str, phase: str) -> None:
        async def is_there() -> bool:
            return any((it.turn_id, it.phase) == (turn_id, phase) for it in (await self.engine.snapshot()).turns)

        await wait_until(is_there)

    # What was told

    def facts(self) -> list[CoreEvent]:
        return [numbered.event for numbered in self.sink.events]

    def moves(self, *moves: Move, pool: PoolKind = PoolKind.FULL) -> list[KvMoved]:
        facts = (fact for fact in self.facts() if isinstance(fact, KvMoved))
        return [fact for fact in facts if fact.pool is pool and (not moves or fact.move in moves)]

    def slots_of(self, session: str) -> list[SlotChanged]:
        return [fact for fact in self.facts() if isinstance(fact, SlotChanged) and fact.session_id == session]

    def ended(self, turn_id: str) -> list[TurnEnded]:
        return [fact for fact in self.facts() if isinstance(fact, TurnEnded) and fact.turn_id == turn_id]

    @property
    def retractions(self) -> int:
        return sum(isinstance(fact, TurnRetracted) for fact in self.facts())

    # The five checks

    async def require_sound(self, ends: Iterable[Outcome]) -> None:
        """What must hold after every trial. `ends`: how the trial's turns ended, in any order.

        Closes what sessions are left. Raises AssertionError, or TimeoutError when the engine doesn't come to rest.
        """
        self.go_on()
        await self.wait_no_turns()
        await self._require_exact_books()
        await self._require_counts(ends)
        await self._require_nothing_left()
        probes = [await self.alone(f"probe-{number}", PROBE, 6) for number in range(2)]
        assert [probe.ids for probe in probes] == [oracle(PROBE, 6)] * 2
        await self._require_exact_books()
        assert self.engine.state is EngineState.SERVING
        assert self.executor.device.violations == []

    async def _require_exact_books(self) -> None:
        """(a) Two sets of books agree, unit by unit, and nothing is in the hands of a turn."""
        await self.full_pool()
        assert (await self.engine.check()).is_clean
        for books in (await self.engine.snapshot()).pools:
            assert books == self.book.terms(books.pool)
            assert books.is_balanced
            assert (books.uncached, books.draining, books.quarantined) == (0, 0, 0)
            for unit in range(1, books.total + 1):
                assert (await self.engine.explain(books.pool, unit)).owner == self.book.owner(books.pool, unit)

    async def _require_counts(self, ends: Iterable[Outcome]) -> None:
        """(c) Every turn that was accepted has ended, once, and as the trial says."""
        accepted = [fact.rid for fact in self.facts() if isinstance(fact, TurnAccepted)]
        ended = [fact for fact in self.facts() if isinstance(fact, TurnEnded)]
        assert sorted(accepted) == sorted(fact.rid for fact in ended)
        assert Counter(fact.outcome for fact in ended) == Counter(ends)
        assert (await self.snapshot()).steps == self.answered == len(self.executor.submitted)
        assert [numbered.seq for numbered in self.sink.events] == list(range(1, len(self.sink.events) + 1))

    async def _require_nothing_left(self) -> None:
        """(b) No request, no task, and with the last session the last lock, page and row."""
        snapshot = await self.engine.snapshot()
        assert not snapshot.turns
        assert not [session for session in snapshot.sessions if session.live_turns]
        for session in snapshot.sessions:
            await self.engine.close_session(session.session_id)
        await self.full_pool()
        closed = await self.engine.snapshot()
        assert not closed.sessions
        for books in closed.pools:
            assert (books.session_held, books.protected) == (0, 0)
            assert books.available + books.evictable == books.total
            assert books.pool is not PoolKind.ROWS or books.available == books.total
        mine = asyncio.current_task()
        left = {task.get_name() for task in asyncio.all_tasks() - self.others if task is not mine}
        assert left == {"engine-loop"}


@asynccontextmanager
async def field_rig(
    config: CoreConfig = DEFAULT, *, clock: Clock | None = None, runtime: RuntimeConfig = QUICK
) -> AsyncIterator[FieldRig]:
    """An engine that serves over the shadow executor, whose device is held against the second set of books."""
    book, sink = Book.of(config), EventLogSink()
    executor = ShadowExecutor(capabilities_for(config), faults=Faults())
    executor.device = ShadowDevice(
        executor.device.model,
        page_size=config.page_size,
        pool_pages=config.pool_pages,
        num_rows=config.num_rows,
        swa_pages=config.swa_pages,
        state_slots=config.state_slots,
        book=book,
    )
    keeper = BookKeeper(book, executor.device)
    engine = LocalEngine(Core(config), executor, ByteVocabulary(), sinks=(sink, keeper), clock=clock, config=runtime)
    others = frozenset(asyncio.all_tasks())
    await engine.start()
    rig = FieldRig(engine, executor, sink, book, Gate(executor), others)
    try:
        yield rig
    finally:
        rig.go_on()
        if engine.state is not EngineState.FAILED:
            await engine.stop()
    assert executor.device.violations == []


def capabilities_for(config: CoreConfig) -> Capabilities:
    return shadow_capabilities(
        page_size=config.page_size,
        pool_pages=config.pool_pages,
        num_rows=config.num_rows,
        context_len=config.context_len,
        vocab_size=config.vocab_size,
        window=config.window,
        swa_pages=config.swa_pages,
        state_slots=config.state_slots,
    )
