"""Thirty-two conversations at once in a pool that holds a third of them: all are served, and the books balance.

The run counts what it did: a full check after each step, demotions, and how often a waiting turn was passed over.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import pytest

from engine.core.commands import Close, Command, FinishReason
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.events import CoreEvent, Numbered, SlotState, TurnAccepted, TurnAdmitted, TurnEnded, TurnRetracted
from engine.core.ids import Rid, SessionId, TurnId, pages_for
from engine.core.invariants import CheckLevel, Report
from engine.core.ownership import Move, Owner, PoolKind
from engine.core.plan import StepOutcome
from engine.core.pools import Pools
from engine.core.snapshot import PoolBooks
from engine.executor.batch import PoolGeometry
from engine.executor.decoder import Decoder
from engine.executor.model_config import ModelConfig
from engine.executor.model_runner import ModelRunner
from engine.executor.torch_executor import TorchExecutor
from engine.runtime.config import RuntimeConfig
from engine.runtime.engine import LocalEngine
from tests.integration.conftest import LoadedModel
from tests.kit.engine_rig import EngineRig, Exercised, NoText
from tests.kit.tiny_llama import tiny_llama_config, tiny_llama_decoder

NUM_SESSIONS = 32
NUM_TURNS = 5
NEW_LEN = 7
MAX_TOKENS = 6
SYSTEM = (11, 12, 13, 14, 15, 16)
"""What all conversations begin with."""
PAGE_SIZE = 4
NUM_ROWS = 13
HISTORY_LEN = len(SYSTEM) + NUM_TURNS * (NEW_LEN + MAX_TOKENS)
POOL_PAGES = 1 + NUM_SESSIONS * pages_for(HISTORY_LEN, PAGE_SIZE) // 3
OVERTAKEN_MAX = 32
LOST_RELEASE = 20
"""Of the one planted leak: which release of pages forgets a page."""


@dataclass(frozen=True, slots=True)
class Model:
    config: ModelConfig
    decoder: Decoder
    threads: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """One turn: everything before its answer, and the answer."""

    history: tuple[int, ...]
    answer: tuple[int, ...]


class CountingCore(Core):
    """Counts the full checks that follow an answered step, apart from those of idle moments."""

    def __init__(self, config: CoreConfig) -> None:
        super().__init__(config)
        self.steps_answered = 0
        self.steps_checked = 0
        self._is_checked = True

    def advance(self, outcome: StepOutcome, now: float) -> None:
        super().advance(outcome, now)
        self.steps_answered += 1
        self._is_checked = False

    def check(self, level: CheckLevel) -> Report:
        if level is CheckLevel.FULL and not self._is_checked:
            self.steps_checked += 1
            self._is_checked = True
        return super().check(level)


class LosesOneClose(CountingCore):
    """Never hears of one session that it was closed: the KV that its slot holds stays."""

    def __init__(self, config: CoreConfig) -> None:
        super().__init__(config)
        self._lost: SessionId | None = None

    def apply(self, command: Command, now: float) -> None:
        if isinstance(command, Close) and self._is_lost(command.session_id):
            return
        super().apply(command, now)

    def _is_lost(self, session_id: SessionId) -> bool:
        held = [state.session_id for state in self.snapshot().sessions if state.slot is SlotState.HELD]
        if self._lost is None and session_id in held:
            self._lost = session_id
        return self._lost == session_id


@dataclass(slots=True)
class Fairness:
    """An `EventSink`: how many later arrivals were admitted before each turn that waited."""

    overtaken: dict[Rid, int] = field(default_factory=dict)
    """Of those that wait now, in order of arrival."""
    overtaken_max: int = 0
    arrivals: int = 0
    ends: int = 0
    _arrival: dict[Rid, int] = field(default_factory=dict)

    def publish(self, events: tuple[Numbered, ...], _now: float) -> None:
        for numbered in events:
            match numbered.event:
                case TurnAccepted(rid=rid):
                    self.arrivals += 1
                    self._arrival[rid] = self.arrivals
                    self.overtaken[rid] = 0
                case TurnRetracted(rid=rid):
                    self.overtaken[rid] = 0
                case TurnAdmitted(rid=rid):
                    del self.overtaken[rid]
                    self._pass(self._arrival[rid])
                case TurnEnded(rid=rid):
                    self.ends += 1
                    self.overtaken.pop(rid, None)
                case _:
                    pass

    def _pass(self, arrival: int) -> None:
        for rid in self.overtaken:
            if self._arrival[rid] < arrival:
                self.overtaken[rid] += 1
                self.overtaken_max = max(self.overtaken_max, self.overtaken[rid])


@dataclass(slots=True)
class Run:
    """What a run leaves to be looked at."""

    exchanges: list[Exchange]
    exercised: Exercised
    fairness: Fairness
    core: CountingCore
    full: PoolBooks
    checks_run: int


def make_config(model: Model, pool_pages: int, *, prefix_cache: bool = True, in_flight_max: int = 1) -> CoreConfig:
    return CoreConfig(
        page_size=PAGE_SIZE,
        pool_pages=pool_pages,
        num_rows=NUM_ROWS,
        context_len=128,
        vocab_size=model.config.vocab_size,
        eos_ids=model.config.eos_ids,
        chunk_tokens=16,
        step_tokens=64,
        in_flight_max=in_flight_max,
        prefix_cache=prefix_cache,
    )


def start_engine(model: Model, core: Core, sinks: Sequence[Exercised | Fairness]) -> LocalEngine:
    """An engine that checks its books page by page after every step."""
    geometry = PoolGeometry(PAGE_SIZE, core.config.pool_pages, NUM_ROWS)
    executor = TorchExecutor(ModelRunner(model.config, model.decoder, geometry), model.threads)
    runtime = RuntimeConfig(full_check_steps=1, warm_up=False)
    return LocalEngine(core, executor, NoText(), sinks=sinks, config=runtime)


async def converse(rig: EngineRig, number: int, vocab_size: int) -> list[Exchange]:
    """Opens a streaming session, takes all its turns one after the other."""
    rng = Random(number)
    name = f"s{number}"
    await rig.engine.open_session(SessionId(name), streaming=True)
    history: list[int] = []
    exchanges: list[Exchange] = []
    for turn in range(NUM_TURNS):
        new_ids = [*(SYSTEM if turn == 0 else ()), *(rng.randrange(20, vocab_size) for _ in range(NEW_LEN))]
        output = await rig.turn(f"t{turn}", new_ids, name, max_tokens=MAX_TOKENS)
        assert isinstance(output.outcome, FinishReason), f"{name} turn {turn}: {output.outcome}"
        history += new_ids
        exchanges.append(Exchange(tuple(history), tuple(output.token_ids)))
        history += output.token_ids
        assert output.history_len == len(history)
    return exchanges


async def run_sessions(model: Model, make_core: type[CountingCore], in_flight_max: int = 1) -> Run:
    """All conversations at once; then all are closed."""
    core = make_core(make_config(model, POOL_PAGES, in_flight_max=in_flight_max))
    exercised, fairness = Exercised(), Fairness()
    engine = start_engine(model, core, (exercised, fairness))
    rig = EngineRig(engine, exercised)
    await engine.start()
    try:
        numbers = range(NUM_SESSIONS)
        talks = await asyncio.gather(*(converse(rig, number, model.config.vocab_size) for number in numbers))
        for number in numbers:
            await engine.close_session(SessionId(f"s{number}"))
    finally:
        await engine.stop()
    snapshot = core.snapshot()
    full = next(books for books in snapshot.pools if books.pool is PoolKind.FULL)
    exchanges = [exchange for talk in talks for exchange in talk]
    return Run(exchanges, exercised, fairness, core, full, snapshot.checks_run)


def require_clean(run: Run) -> None:
    """All that a run has to show, but for its tokens."""
    assert run.fairness.arrivals == run.fairness.ends == NUM_SESSIONS * NUM_TURNS
    assert run.exercised.demotions > 0
    assert run.exercised.tokens_from_slot > 0
    assert run.exercised.tokens_from_tree > 0
    assert run.exercised.batch_rows_max >= 8
    assert run.fairness.overtaken_max <= OVERTAKEN_MAX
    assert run.core.steps_checked == run.core.steps_answered == run.exercised.steps > 0
    assert run.checks_run >= run.core.steps_checked, "the others are of idle moments"
    assert run.full.quarantined == 0
    assert run.full.available + run.full.evictable == run.full.total


async def run_cold(model: Model, exchanges: Sequence[Exchange]) -> list[tuple[int, ...]]:
    """The same histories, each as a plain turn on a new engine that keeps no KV between turns."""
    exercised = Exercised()
    engine = start_engine(model, Core(make_config(model, 512, prefix_cache=False)), (exercised,))
    rig = EngineRig(engine, exercised)
    await engine.start()
    try:
        outputs = await asyncio.gather(
            *(
                rig.turn(f"c{index}", exchange.history, max_tokens=MAX_TOKENS)
                for index, exchange in enumerate(exchanges)
            )
        )
    finally:
        await engine.stop()
    assert exercised.tokens_from_slot == exercised.tokens_from_tree == 0
    return [tuple(output.token_ids) for output in outputs]


def require_exact(model: Model, in_flight_max: int = 1) -> None:
    run = asyncio.run(run_sessions(model, CountingCore, in_flight_max))
    checks = f"{run.core.steps_checked} full checks after {run.core.steps_answered} steps, {run.checks_run} in all"
    print(f"{run.exercised}; {checks}; passed over at most {run.fairness.overtaken_max} times")  # noqa: T201 - with -s
    require_clean(run)
    cold = asyncio.run(run_cold(model, run.exchanges))
    assert [exchange.answer for exchange in run.exchanges] == cold


def test_fairness_when_a_later_turn_is_admitted_first_then_it_is_counted() -> None:
    accepted: list[CoreEvent] = [TurnAccepted(Rid(n), TurnId(f"t{n}"), None, 1, 1, 1, "") for n in (1, 2, 3)]
    admitted: list[CoreEvent] = [TurnAdmitted(Rid(n), 1, 0, 0, 1) for n in (2, 3, 1)]
    fairness = Fairness()
    fairness.publish(tuple(Numbered(seq, event) for seq, event in enumerate((*accepted, *admitted), 1)), 0.0)
    assert fairness.overtaken_max == 2


@pytest.fixture(scope="module")
def tiny() -> Model:
    config = tiny_llama_config()
    return Model(config, tiny_llama_decoder(), threads=1)


@pytest.mark.exact
@pytest.mark.parametrize("in_flight_max", [1, 2])
def test_sessions_when_pool_holds_a_third_then_all_complete_as_if_cold(tiny: Model, in_flight_max: int) -> None:
    require_exact(tiny, in_flight_max)


def test_sessions_when_one_close_is_lost_then_the_run_fails(tiny: Model) -> None:
    run = asyncio.run(run_sessions(tiny, LosesOneClose))
    assert run.full.session_held > 0
    with pytest.raises(AssertionError, match=r"total"):
        require_clean(run)


def test_sessions_when_one_page_is_never_released_then_it_is_quarantined_and_all_complete_as_if_cold(
    tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_up = Pools.free_up
    released = 0

    def forget_one(self: Pools, move: Move, pool: PoolKind, pages: Sequence[int], source: Owner) -> None:
        nonlocal released
        is_release = move is Move.RELEASE and pool is PoolKind.FULL and len(pages) > 0
        released += is_release
        free_up(self, move, pool, pages[1:] if is_release and released == LOST_RELEASE else pages, source)

    monkeypatch.setattr(Pools, "free_up", forget_one)
    run = asyncio.run(run_sessions(tiny, CountingCore))
    assert run.full.quarantined == 1
    with pytest.raises(AssertionError, match="quarantined"):
        require_clean(run)
    monkeypatch.undo()
    assert [exchange.answer for exchange in run.exchanges] == asyncio.run(run_cold(tiny, run.exchanges))


@pytest.mark.exact_full
def test_sessions_when_model_is_real_then_all_complete_as_if_cold(smollm2: LoadedModel) -> None:
    require_exact(Model(smollm2.config, smollm2.decoder, threads=2))
