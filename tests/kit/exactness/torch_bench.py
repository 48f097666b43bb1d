"""Benches over the real executor, on one thread; what is right is what a fresh engine gives in one shot."""

from collections.abc import Iterator
from contextlib import contextmanager

from engine.core.commands import Submit
from engine.core.config import CoreConfig
from engine.core.ids import Rid, TurnId, pack_ids
from engine.executor.batch import PoolGeometry
from engine.executor.model_config import ModelConfig
from engine.executor.model_runner import ModelRunner
from engine.executor.torch_executor import TorchExecutor
from engine.executor.weights import LlamaWeights
from tests.kit.exactness.bench import POOL_TOKENS, WHOLE, Bench
from tests.kit.exactness.conversation import Texts
from tests.kit.exactness.devices import Device, ExecutorBackend
from tests.kit.exactness.driver import Driver, TurnRun

COLD_PAGE_SIZE = 16
CONTEXT_LEN = 512


class TorchModel:
    """A loaded model. Cold runs are kept: the same prompts come again in each cell."""

    def __init__(self, config: ModelConfig, weights: LlamaWeights) -> None:
        self._config = config
        self._weights = weights
        self._cold: dict[tuple[tuple[int, ...], int], list[int]] = {}

    def bench(self, texts: Texts) -> Bench:
        return Bench(self.device, self.cold_run, texts, self._config.vocab_size, CONTEXT_LEN)

    @property
    def num_cold_runs(self) -> int:
        return len(self._cold)

    @contextmanager
    def device(self, config: CoreConfig) -> Iterator[Device]:
        """A fresh executor, with pools of that configuration."""
        geometry = PoolGeometry(config.page_size, config.pool_pages, config.num_rows)
        backend = ExecutorBackend(TorchExecutor(ModelRunner(self._config, self._weights, geometry), threads=1))
        try:
            yield backend
        finally:
            backend.close()

    def cold_run(self, prompt: tuple[int, ...], max_tokens: int) -> list[int]:
        """The greedy ids behind a prompt: one turn without a session on a fresh engine, its prompt in one piece."""
        key = (prompt, max_tokens)
        if key not in self._cold:
            self._cold[key] = self._run_cold(prompt, max_tokens)
        return self._cold[key]

    def _run_cold(self, prompt: tuple[int, ...], max_tokens: int) -> list[int]:
        config = CoreConfig(
            page_size=COLD_PAGE_SIZE,
            pool_pages=POOL_TOKENS // COLD_PAGE_SIZE + 1,
            num_rows=2,
            context_len=CONTEXT_LEN,
            vocab_size=self._config.vocab_size,
            chunk_tokens=WHOLE,
        )
        with self.device(config) as device:
            driver = Driver(config, device)
            command = Submit(Rid(1), TurnId("cold"), pack_ids(prompt), max_tokens=max_tokens, ignore_eos=True)
            run = TurnRun(command, prompt)
            driver.submit(run)
            driver.settle()
            assert run.first_chunks == 1
            assert driver.tally.tokens_from_slot == driver.tally.tokens_from_tree == 0
            assert len(run.output) == max_tokens
        return run.output
