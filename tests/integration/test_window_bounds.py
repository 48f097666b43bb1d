"""What a turn holds of the pool of sliding windows: a window and what is being computed, however long it becomes.

Counted by books of their own, which the core's events are replayed into, after every plan and every answer. Lengths in
tokens; W the window, P a page, c the chunk, f the plans in flight, k the tokens by which a turn that generates may be
cut back and still find its window:

    a prompt     W + f · c + P             a turn of a session          besides, the window of the last commit
    an answer    W + W / 4 + f + k + P     a session between turns      W, and a page

What the turn has locked in the cache counts like its own; of that it gives up a quarter of a window at a time.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from random import Random

import pytest

from engine.core.commands import Close, Open, Submit
from engine.core.config import CoreConfig
from engine.core.ids import Rid, SessionId, TurnId, pack_ids, pages_for
from engine.core.ownership import CACHE, Owner, OwnerKind, PoolKind
from engine.core.sampling import GREEDY
from engine.executor.batch import PoolGeometry
from engine.executor.decoder import Decoder
from engine.executor.model_config import ModelConfig
from engine.executor.model_runner import ModelRunner
from engine.executor.torch_executor import TorchExecutor
from tests.kit.exactness.booked_backend import BookedBackend
from tests.kit.exactness.driver import Driver, TurnRun
from tests.kit.exactness.torch_bench import TorchModel
from tests.kit.model_rig import read_model
from tests.kit.recipes import save_recipe

WINDOW = 16
CONTEXT_LEN = 512
PAGE_SIZES = (1, 4, 16)
MAX_TOKENS = 40
PROMPT_LEN = 300

pytestmark = [pytest.mark.exact, pytest.mark.usefixtures("one_thread")]


@dataclass(frozen=True, slots=True)
class Model:
    config: ModelConfig
    decoder: Decoder
    cold: TorchModel


@dataclass(slots=True)
class Rig:
    driver: Driver
    device: BookedBackend
    rids: Iterator[int]

    def start(self, ids: Sequence[int], session: str | None = None) -> TurnRun:
        rid = next(self.rids)
        command = Submit(
            rid=Rid(rid),
            turn_id=TurnId(f"t{rid}"),
            input_ids=pack_ids(ids),
            session_id=None if session is None else SessionId(session),
            max_tokens=MAX_TOKENS,
            ignore_eos=True,
        )
        run = TurnRun(command, tuple(ids))
        self.driver.submit(run)
        return run

    def most_of(self, run: TurnRun) -> int:
        return self.device.most_of_request(run.rid)


@dataclass(frozen=True, slots=True)
class Setting:
    page_size: int
    chunk_tokens: int
    in_flight_max: int

    def __str__(self) -> str:
        return f"page{self.page_size}-chunk{self.chunk_tokens}-{self.in_flight_max}ahead"

    def pages(self, length: int) -> int:
        return pages_for(length, self.page_size)

    def core_config(self, model: Model, swa_pages: int) -> CoreConfig:
        return CoreConfig(
            page_size=self.page_size,
            pool_pages=self.pages(4 * CONTEXT_LEN) + 1,
            num_rows=9,
            context_len=CONTEXT_LEN,
            vocab_size=model.config.vocab_size,
            chunk_tokens=self.chunk_tokens,
            in_flight_max=self.in_flight_max,
            window=WINDOW,
            swa_pages=swa_pages,
        )

    def most(self, config: CoreConfig) -> int:
        """Pages that a turn may use, by the table at the head of this file."""
        prompt = self.in_flight_max * self.chunk_tokens
        answer = WINDOW // 4 + self.in_flight_max + config.cut_back_max
        return self.pages(WINDOW + max(prompt, answer) + self.page_size)

    @property
    def kept(self) -> int:
        """Pages of a session between turns."""
        return self.pages(WINDOW + self.page_size)


SETTINGS = [Setting(page, chunk, ahead) for page in PAGE_SIZES for chunk in (7, 40) for ahead in (1, 2)]


@contextmanager
def engine(model: Model, config: CoreConfig) -> Iterator[Rig]:
    geometry = PoolGeometry(config.page_size, config.pool_pages, config.num_rows, config.swa_pages)
    executor = TorchExecutor(ModelRunner(model.config, model.decoder, geometry), threads=1)
    with closing(BookedBackend(executor, config)) as device:
        yield Rig(Driver(config, device), device, count(1))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = save_recipe("gemma3", tmp_path_factory.mktemp("gemma3")).directory
    config, decoder = read_model(path)
    assert config.window == WINDOW
    return Model(config, decoder, TorchModel(config, decoder))


def random_ids(rng: Random, length: int) -> list[int]:
    return [rng.randrange(3, 256) for _ in range(length)]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_windows_of_a_stateless_turn_when_it_runs_then_are_a_window_a_step_and_a_page(
    model: Model, setting: Setting
) -> None:
    config = setting.core_config(model, setting.pages(CONTEXT_LEN) + 3)
    with engine(model, config) as rig:
        run = rig.start(random_ids(Random(1), PROMPT_LEN))
        rig.driver.settle()
        assert run.is_done
        most = rig.device.most_in_use
        assert rig.most_of(run) <= most <= setting.most(config) < setting.pages(PROMPT_LEN) // 2
        in_flight = setting.in_flight_max * setting.chunk_tokens
        assert most * setting.page_size >= WINDOW + in_flight - setting.page_size, "the bound is not far from the truth"
        cached = len(rig.device.book.owned(PoolKind.SWA, CACHE))
        assert cached >= PROMPT_LEN // setting.page_size, "all of its prompt can be found again"


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_windows_of_a_session_when_it_runs_and_rests_then_are_those_of_a_turn_and_of_the_last_commit(
    model: Model, setting: Setting
) -> None:
    config = setting.core_config(model, setting.pages(CONTEXT_LEN) + 3)
    rng = Random(2)
    with engine(model, config) as rig:
        rig.driver.apply(Open(SessionId("s"), streaming=True))
        (uid,) = [session.number for session in rig.driver.snapshot().sessions]
        slot = Owner(OwnerKind.SESSION, uid)
        for number in range(5):
            run = rig.start(random_ids(rng, 50), "s")
            rig.driver.settle()
            assert run.is_done
            pinned = setting.kept if number else 0
            assert rig.most_of(run) <= rig.device.most_in_use <= pinned + setting.most(config)
            assert 0 < len(rig.device.book.owned(PoolKind.SWA, slot)) <= setting.kept
        assert 0 < rig.device.most[slot] <= setting.kept
        rig.driver.apply(Close(SessionId("s")))
        rig.driver.settle()
        rig.driver.assert_empty()


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_long_turns_when_the_pool_holds_windows_only_then_all_run_at_once_as_if_cold(
    model: Model, page_size: int
) -> None:
    setting = Setting(page_size, 40, 2)
    roomy = setting.core_config(model, setting.pages(CONTEXT_LEN) + 3)
    config = setting.core_config(model, 1 + 3 * roomy.swa_span_pages + roomy.swa_pin_pages)
    assert (config.swa_pages - 1) * page_size < 3 * PROMPT_LEN, "three prompts have no room there"
    rng = Random(3)
    with engine(model, config) as rig:
        runs = [rig.start(random_ids(rng, PROMPT_LEN)) for _ in range(3)]
        rig.driver.settle()
        assert rig.driver.tally.rows_max == 3
        assert rig.driver.tally.retractions == 0
    for run in runs:
        assert run.output == model.cold.cold_run(run.prompt, MAX_TOKENS, GREEDY)


def test_turn_when_the_core_keeps_one_token_less_than_the_window_then_its_ids_show_it(model: Model) -> None:
    """The pair of the tests on ids: what is released too early is missed."""
    setting = Setting(1, 7, 2)
    config = setting.core_config(model, setting.pages(CONTEXT_LEN) + 3)
    with engine(model, replace(config, window=WINDOW - 1)) as rig:
        run = rig.start(random_ids(Random(1), PROMPT_LEN))
        rig.driver.settle()
    assert run.output != model.cold.cold_run(run.prompt, MAX_TOKENS, GREEDY)
