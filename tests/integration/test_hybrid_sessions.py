"""Sessions of models with recurrent layers: what they cost, what they hold, and that no state ever drifts.

States are compared bit for bit with those that a cold run of the same ids leaves.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from random import Random

import pytest
import torch

from engine.core.commands import Abort, AbortReason, Close, FinishReason, OnAbort, Open, Submit
from engine.core.config import CoreConfig
from engine.core.events import SlotState
from engine.core.ids import Rid, SessionId, TurnId, pack_ids
from engine.core.ownership import PoolKind
from engine.executor.batch import PoolGeometry
from engine.executor.decoder import Decoder
from engine.executor.device_faults import DeviceFaults, ForwardDrill, ForwardFault
from engine.executor.model_config import ModelConfig
from engine.executor.torch_executor import TorchExecutor
from tests.kit.exactness.devices import ExecutorBackend
from tests.kit.exactness.driver import Driver, TurnRun
from tests.kit.exactness.state_runner import StateRunner
from tests.kit.model_rig import read_model
from tests.kit.recipes import save_recipe

NAMES = ("bamba", "granite_hybrid")
CONTEXT_LEN = 512
PAGE_SIZE = 4
INTERVAL = 8
CHUNK = 7
MAX_TOKENS = 5

pytestmark = [pytest.mark.exact, pytest.mark.usefixtures("one_thread")]


@dataclass(frozen=True, slots=True)
class Model:
    config: ModelConfig
    decoder: Decoder

    def core_config(self, *, state_slots: int, in_flight_max: int = 1) -> CoreConfig:
        return CoreConfig(
            page_size=PAGE_SIZE,
            pool_pages=513,
            num_rows=17,
            context_len=CONTEXT_LEN,
            vocab_size=self.config.vocab_size,
            chunk_tokens=CHUNK,
            in_flight_max=in_flight_max,
            state_slots=state_slots,
            state_interval=INTERVAL,
        )


@dataclass(slots=True)
class Rig:
    """An engine by hand: its core, its executor's runner, and the faults of its device."""

    driver: Driver
    runner: StateRunner
    faults: DeviceFaults
    rids: Iterator[int]

    def start(
        self,
        turn: str,
        ids: Sequence[int],
        session: str | None = None,
        *,
        max_tokens: int = MAX_TOKENS,
        expects: FinishReason | AbortReason = FinishReason.LENGTH,
        retract_after: int | None = None,
        on_abort: OnAbort = OnAbort.ROLL_BACK,
    ) -> TurnRun:
        command = Submit(
            rid=Rid(next(self.rids)),
            turn_id=TurnId(turn),
            input_ids=pack_ids(ids),
            session_id=None if session is None else SessionId(session),
            max_tokens=max_tokens,
            on_abort=on_abort,
            ignore_eos=True,
        )
        run = TurnRun(command, tuple(ids), retract_after, expects=expects)
        self.driver.submit(run)
        return run

    def turn(
        self, turn: str, ids: Sequence[int], session: str | None = None, *, max_tokens: int = MAX_TOKENS
    ) -> TurnRun:
        run = self.start(turn, ids, session, max_tokens=max_tokens)
        self.driver.settle()
        assert run.is_done
        return run


@contextmanager
def engine(model: Model, config: CoreConfig) -> Iterator[Rig]:
    geometry = PoolGeometry(PAGE_SIZE, config.pool_pages, config.num_rows, state_slots=config.state_slots)
    runner, faults = StateRunner(model.config, model.decoder, geometry), DeviceFaults()
    with closing(ExecutorBackend(TorchExecutor(runner, threads=1, faults=faults))) as device:
        yield Rig(Driver(config, device), runner, faults, count(1))


class ColdRuns:
    """An engine that keeps nothing from one turn to the next and computes each prompt in one piece."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    def output(self, prompt: Sequence[int], max_tokens: int = MAX_TOKENS) -> list[int]:
        run = self._rig.turn("cold", prompt, max_tokens=max_tokens)
        assert run.ended is not None
        assert run.ended.usage.tokens_computed == len(prompt)
        assert run.first_chunks == 1
        return run.output

    def state(self, ids: Sequence[int]) -> torch.Tensor:
        """Behind all of them."""
        self._rig.runner.left.clear()
        self.output(ids, max_tokens=1)
        (state,) = self._rig.runner.left[len(ids)]
        return state


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    name = str(request.param)
    return Model(*read_model(save_recipe(name, tmp_path_factory.mktemp(name)).directory))


@pytest.fixture
def cold(model: Model) -> Iterator[ColdRuns]:
    config = replace(model.core_config(state_slots=8), prefix_cache=False, chunk_tokens=CONTEXT_LEN)
    with engine(model, replace(config, state_interval=CONTEXT_LEN)) as rig:
        yield ColdRuns(rig)


def random_ids(rng: Random, length: int) -> list[int]:
    return [rng.randrange(3, 256) for _ in range(length)]


@pytest.mark.parametrize("in_flight_max", [1, 2])
def test_session_of_50_turns_when_run_then_its_cost_is_flat_and_its_state_never_drifts(
    model: Model, cold: ColdRuns, in_flight_max: int
) -> None:
    rng = Random(3)
    history: list[int] = []
    with engine(model, model.core_config(state_slots=17, in_flight_max=in_flight_max)) as rig:
        rig.driver.apply(Open(SessionId("s"), streaming=True))
        for number in range(50):
            new = random_ids(rng, 4 if number else 40)
            rig.runner.started.clear()
            run = rig.turn(f"t{number}", new, "s")
            assert run.ended is not None
            if history:
                assert run.ended.usage.tokens_computed == len(new) + 1, "its new ids, and the last one before them"
                (state,) = rig.runner.started[len(history) - 1]
                assert torch.equal(state, cold.state(history[:-1]))
            history += new
            assert run.output == cold.output(history)
            history += run.output
            states = rig.driver.books(PoolKind.MAMBA)
            assert 1 <= states.session_held <= 2, "its own, and at most one that may go to the cache"
            assert states.uncached == 0
            assert states.evictable + states.protected == 1, "the checkpoint of the first prompt"
        assert len(history) == 40 + 49 * 4 + 50 * MAX_TOKENS
        rig.driver.apply(Close(SessionId("s")))
        rig.driver.settle()
        rig.driver.assert_empty()


@dataclass(frozen=True, slots=True)
class Interruption:
    """What happens in the middle of a turn, and how that turn then ends."""

    name: str
    strike: Callable[[Rig, TurnRun], None]
    ends: FinishReason | AbortReason


def _abort(rig: Rig, run: TurnRun) -> None:
    rig.driver.apply(Abort(run.rid))


def _fail(fault: ForwardFault) -> Callable[[Rig, TurnRun], None]:
    return lambda rig, _run: rig.faults.arm(ForwardDrill(fault, count=1))


INTERRUPTIONS = (
    Interruption("aborted", _abort, AbortReason.CLIENT),
    Interruption("forward_raises", _fail(ForwardFault.RAISE), AbortReason.FORWARD_FAILED),
    Interruption("forward_gives_nan", _fail(ForwardFault.NAN), AbortReason.FORWARD_FAILED),
)
MIDST = (1, 2, 4, 6)
"""Steps of the turn after which it is broken off: two in its prompt of three chunks, two in its answer."""


def _three_turns(rig: Rig, rng: Random) -> list[int]:
    history: list[int] = []
    rig.driver.apply(Open(SessionId("s"), streaming=True))
    for number in range(3):
        new = random_ids(rng, 11)
        history += [*new, *rig.turn(f"t{number}", new, "s").output]
    return history


@pytest.mark.parametrize("in_flight_max", [1, 2])
@pytest.mark.parametrize("interruption", INTERRUPTIONS, ids=lambda interruption: interruption.name)
def test_turn_when_broken_off_in_its_midst_then_the_next_one_starts_from_the_state_of_the_last_commit(
    model: Model, cold: ColdRuns, interruption: Interruption, in_flight_max: int
) -> None:
    rng = Random(4)
    with engine(model, model.core_config(state_slots=17, in_flight_max=in_flight_max)) as rig:
        history = _three_turns(rig, rng)
        committed = cold.state(history[:-1])
        rig.runner.started.clear()
        for steps in MIDST:
            run = rig.start(f"broken{steps}", random_ids(rng, 20), "s", expects=interruption.ends)
            while run.plans < steps:
                rig.driver.step()
            interruption.strike(rig, run)
            rig.driver.settle()
            assert run.ended is not None
            assert not run.ended.is_committed
        new = random_ids(rng, 20)
        run = rig.turn("next", new, "s")
        assert run.output == cold.output([*history, *new])
        assert run.ended is not None
        assert run.ended.usage.tokens_from_slot == len(history) - 1
        states = rig.runner.started[len(history) - 1]
        assert len(states) == len(MIDST) + 1
        assert all(torch.equal(state, committed) for state in states)


@pytest.mark.parametrize("in_flight_max", [1, 2])
def test_turn_when_retracted_in_its_midst_then_it_starts_again_from_the_state_of_the_last_commit(
    model: Model, cold: ColdRuns, in_flight_max: int
) -> None:
    rng = Random(5)
    with engine(model, model.core_config(state_slots=17, in_flight_max=in_flight_max)) as rig:
        history = _three_turns(rig, rng)
        for steps in MIDST:
            committed = cold.state(history[:-1])
            rig.runner.started.clear()
            new = random_ids(rng, 20)
            run = rig.start(f"retracted{steps}", new, "s", retract_after=steps)
            rig.driver.settle()
            assert run.retracted_after == steps
            assert run.output == cold.output([*history, *new])
            first, second = rig.runner.started[len(history) - 1]
            assert torch.equal(first, committed)
            assert torch.equal(second, committed)
            history += [*new, *run.output]


@pytest.mark.parametrize("in_flight_max", [1, 2])
def test_turn_when_broken_off_and_kept_then_the_next_one_starts_from_the_state_behind_what_was_given(
    model: Model, cold: ColdRuns, in_flight_max: int
) -> None:
    rng = Random(7)
    with engine(model, model.core_config(state_slots=17, in_flight_max=in_flight_max)) as rig:
        history = _three_turns(rig, rng)
        for given in (1, 2, 4):
            new = random_ids(rng, 20)
            run = rig.start(f"kept{given}", new, "s", expects=AbortReason.CLIENT, on_abort=OnAbort.KEEP)
            while len(run.output) < given:
                rig.driver.step()
            rig.driver.apply(Abort(run.rid))
            rig.driver.settle()
            assert run.ended is not None
            assert run.ended.is_committed
            history += [*new, *run.output]
            rig.runner.started.clear()
            new = random_ids(rng, 20)
            after = rig.turn(f"after{given}", new, "s")
            (state,) = rig.runner.started[len(history) - 1]
            assert torch.equal(state, cold.state(history[:-1]))
            history += new
            assert after.output == cold.output(history)
            history += after.output


NUM_SESSIONS = 40
FEW = 4
"""Sessions that have their slots still when they come back at once."""
TIGHT_SLOTS = 13
"""Twelve states, and the padding one."""


def test_sessions_when_40_share_12_states_then_all_complete_as_if_cold(model: Model, cold: ColdRuns) -> None:
    """All at once; then a few at a time, each few twice in a row; then all at once again."""
    rng = Random(6)
    names = [f"s{number}" for number in range(NUM_SESSIONS)]
    histories: dict[str, list[int]] = {name: [] for name in names}
    few_at_a_time = [names[start : start + FEW] for start in range(0, NUM_SESSIONS, FEW) for _ in range(2)]
    with engine(model, model.core_config(state_slots=TIGHT_SLOTS, in_flight_max=2)) as rig:
        for name in names:
            rig.driver.apply(Open(SessionId(name), streaming=True))
        for number, group in enumerate((names, *few_at_a_time, names)):
            said = {name: random_ids(rng, 9) for name in group}
            runs = {name: rig.start(f"t{number}", new, name) for name, new in said.items()}
            rig.driver.settle()
            for name, run in runs.items():
                histories[name] += said[name]
                assert run.output == cold.output(histories[name])
                histories[name] += run.output
            require_slots(rig)
        tally = rig.driver.tally
        print(f"\n{tally}, {tally.demotions} demotions")  # noqa: T201
        assert tally.demotions > 0
        assert tally.tokens_from_slot > 0
        assert tally.rows_max >= 2
        for name in names:
            rig.driver.apply(Close(SessionId(name)))
        rig.driver.settle()
        rig.driver.assert_empty()


def require_slots(rig: Rig) -> None:
    """Where no turn runs, each session that holds KV has its state and one that may go to the cache, at most."""
    books, sessions = rig.driver.books(PoolKind.MAMBA), rig.driver.snapshot().sessions
    num_held = sum(session.slot is SlotState.HELD for session in sessions)
    assert num_held <= books.session_held <= 2 * num_held
    assert books.uncached == 0
