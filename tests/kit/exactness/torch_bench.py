"""Benches over the real executor, on one thread; what is right is what a fresh engine gives in one shot."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from engine.core.commands import Submit
from engine.core.config import CoreConfig
from engine.core.ids import Rid, TurnId, pack_ids
from engine.core.sampling import Sampling
from engine.executor.batch import PoolGeometry
from engine.executor.decoder import Decoder
from engine.executor.model_config import ModelConfig
from engine.executor.model_runner import ModelRunner
from engine.executor.torch_executor import TorchExecutor
from tests.kit.exactness.bench import POOL_TOKENS, WHOLE, Bench
from tests.kit.exactness.conversation import Texts
from tests.kit.exactness.devices import Device, ExecutorBackend
from tests.kit.exactness.driver import Driver, TurnRun
from tests.kit.exactness.memory import Memory

COLD_PAGE_SIZE = 16
CONTEXT_LEN = 512


class TorchModel:
    """A loaded model. Cold runs are kept: the same prompts come again in each cell."""

    def __init__(self, config: ModelConfig, decoder: Decoder) -> None:
        self._config = config
        self._decoder = decoder
        self._memory = Memory(config.window, bool(config.state_layers))
        self._cold: dict[tuple[tuple[int, ...], int, Sampling], list[int]] = {}

    def bench(self, texts: Texts) -> Bench:
        return Bench(self.device, self.cold_run, texts, self._config.vocab_size, CONTEXT_LEN, self._memory)

    @property
    def greedy_runs(self) -> tuple[tuple[tuple[int, ...], list[int]], ...]:
        """(prompt, the ids that followed it) of each cold run so far that chose the best id each time."""
        runs = self._cold.items()
        return tuple((prompt, output) for (prompt, _, sampling), output in runs if sampling.is_greedy)

    @property
    def num_cold_runs(self) -> int:
        return len(self._cold)

    @contextmanager
    def device(self, config: CoreConfig) -> Iterator[Device]:
        """A fresh executor, with pools of that configuration."""
        geometry = PoolGeometry(
            config.page_size, config.pool_pages, config.num_rows, config.swa_pages, config.state_slots
        )
        backend = ExecutorBackend(TorchExecutor(ModelRunner(self._config, self._decoder, geometry), threads=1))
        try:
            yield backend
        finally:
            backend.close()

    def cold_run(self, prompt: tuple[int, ...], max_tokens: int, sampling: Sampling) -> list[int]:
        """The ids behind a prompt: one turn without a session on a fresh engine, its prompt in one piece."""
        key = (prompt, max_tokens, sampling)
        if key not in self._cold:
            self._cold[key] = self._run_cold(prompt, max_tokens, sampling)
        return self._cold[key]

    def _run_cold(self, prompt: tuple[int, ...], max_tokens: int, sampling: Sampling) -> list[int]:
        plain = CoreConfig(
            page_size=COLD_PAGE_SIZE,
            pool_pages=POOL_TOKENS // COLD_PAGE_SIZE + 1,
            num_rows=2,
            context_len=CONTEXT_LEN,
            vocab_size=self._config.vocab_size,
            chunk_tokens=WHOLE,
        )
        config = replace(self._memory.fit(plain), state_interval=WHOLE)  # no chunk ends for a checkpoint's sake
        with self.device(config) as device:
            driver = Driver(config, device)
            command = Submit(
                Rid(1), TurnId("cold"), pack_ids(prompt), max_tokens=max_tokens, ignore_eos=True, sampling=sampling
            )
            run = TurnRun(command, prompt)
            driver.submit(run)
            driver.settle()
            assert run.first_chunks == 1
            assert driver.tally.tokens_from_slot == driver.tally.tokens_from_tree == 0
            assert len(run.output) == max_tokens
        return run.output
