"""DET: greedy output is a function of the prompt: of no cache, no neighbour, no history of the server.

The server has one mode, and it is the deterministic one: what is compared are all bits of the logits that tokens were
chosen from. Each trial shows what the cache gave it.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
import torch

from engine.core.config import CoreConfig
from engine.core.ids import SessionId
from engine.executor.batch import Batch, Int64Array, PoolGeometry
from engine.executor.decoder import Decoder
from engine.executor.model_config import ModelConfig
from engine.executor.model_runner import ModelRunner, Tamper
from engine.executor.torch_executor import TorchExecutor
from tests.kit.engine_rig import EngineRig, serving
from tests.kit.tiny_llama import tiny_llama_config, tiny_llama_decoder

PAGE = 8
NUM_ROWS = 9
MAX_TOKENS = 8

pytestmark = [pytest.mark.exact, pytest.mark.usefixtures("one_thread")]


class RecordingRunner(ModelRunner):
    """Keeps the logits of every token that was to be chosen, in order."""

    def __init__(self, config: ModelConfig, decoder: Decoder, pool: PoolGeometry) -> None:
        super().__init__(config, decoder, pool)
        self.sampled: list[torch.Tensor] = []

    def forward(self, batch: Batch, logit_idx: Int64Array, tamper: Tamper | None = None) -> torch.Tensor:
        logits = super().forward(batch, logit_idx, tamper)
        assert np.array_equal(logit_idx, batch.sample_idx)
        self.sampled.append(logits.clone())
        return logits


@dataclass(frozen=True, slots=True)
class Told:
    ids: list[int]
    logits: torch.Tensor
    """[num ids, vocab_size]"""
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Server:
    rig: EngineRig
    runner: RecordingRunner

    async def ask(
        self, turn_id: str, new_ids: Sequence[int], session: str | None = None, max_tokens: int = MAX_TOKENS
    ) -> Told:
        """One turn while nothing else runs."""
        self.runner.sampled.clear()
        output = await self.rig.turn(turn_id, new_ids, session, max_tokens=max_tokens, ignore_eos=True)
        assert output.usage is not None
        assert len(output.token_ids) == max_tokens
        logits = torch.cat(self.runner.sampled)
        assert logits[:max_tokens].argmax(-1).tolist() == output.token_ids, "these are the logits of these ids"
        cached = output.usage.tokens_from_slot + output.usage.tokens_from_tree
        return Told(output.token_ids, logits[:max_tokens], cached)


@asynccontextmanager
async def server(*, prefix_cache: bool = True) -> AsyncIterator[Server]:
    """A fresh one over the tiny model; chunks of 16 tokens, so that prompts are cut."""
    model = tiny_llama_config()
    pool = PoolGeometry(PAGE, 513, NUM_ROWS)
    runner = RecordingRunner(model, tiny_llama_decoder(), pool)
    config = CoreConfig(
        page_size=PAGE,
        pool_pages=pool.pool_pages,
        num_rows=NUM_ROWS,
        context_len=model.context_len,
        vocab_size=model.vocab_size,
        eos_ids=model.eos_ids,
        chunk_tokens=16,
        step_tokens=64,
        prefix_cache=prefix_cache,
    )
    async with serving(TorchExecutor(runner, threads=1), config) as rig:
        yield Server(rig, runner)


def prompt(seed: int, length: int) -> list[int]:
    rng = Random(seed)
    return [rng.randrange(20, 300) for _ in range(length)]


def require_equal(one: Told, other: Told) -> None:
    assert one.ids == other.ids
    assert torch.equal(one.logits, other.logits)


async def test_prompts_when_asked_cold_and_warm_then_equal_bit_for_bit() -> None:
    """DET-01 (vllm-project/vllm#40896): 40 prompts of 17 to 95 tokens; all their whole pages were cached by then."""
    prompts = [prompt(number, 17 + 2 * number) for number in range(40)]
    async with server() as it:
        cold = [await it.ask(f"cold{number}", ids) for number, ids in enumerate(prompts)]
        warm = [await it.ask(f"warm{number}", ids) for number, ids in enumerate(prompts)]
    assert not any(told.cached_tokens for told in cold)
    assert [told.cached_tokens for told in warm] == [(len(ids) - 1) // PAGE * PAGE for ids in prompts]
    for first, second in zip(cold, warm, strict=True):
        require_equal(first, second)
    assert len({tuple(told.ids) for told in cold}) == 40, "the prompts are told apart"


async def test_payload_when_10_unrelated_requests_came_before_then_equal_bit_for_bit() -> None:
    """DET-03 (kekzl/imp#1314): on five fresh servers, other requests before it on each; twice, the second time warm."""
    payload = prompt(1000, 61)
    async with server() as it:
        alone = await it.ask("alone", payload)
    for trial in range(5):
        async with server() as it:
            for number in range(10):
                rng = Random(100 * trial + number)
                await it.ask(f"before{number}", prompt(rng.randrange(1000), rng.randrange(1, 90)))
            first, second = await it.ask("first", payload), await it.ask("second", payload)
        assert (first.cached_tokens, second.cached_tokens) == (0, 56)
        require_equal(first, alone)
        require_equal(second, alone)


@pytest.mark.parametrize("prefix_cache", [False, True])
async def test_session_when_held_against_one_shot_then_equal_with_the_cache_on_either_side_or_neither(
    prefix_cache: bool,
) -> None:
    """DET-05 (sgl-project/sglang#3184): what each side found cached is counted; the tolerance is none."""
    history: list[int] = []
    turns: list[tuple[list[int], Told]] = []
    async with server(prefix_cache=prefix_cache) as it:
        await it.rig.engine.open_session(SessionId("s"), streaming=True)
        for number in range(4):
            new_ids = prompt(number, 21)
            told = await it.ask(f"t{number}", new_ids, "s")
            assert told.cached_tokens == max(0, len(history) - 1), "all but the last token that the slot has"
            history += new_ids
            turns.append((list(history), told))
            history += told.ids
        await it.rig.engine.close_session(SessionId("s"))
        for number, (ids, told) in enumerate(turns):
            again = await it.ask(f"same{number}", ids)
            assert bool(again.cached_tokens) == prefix_cache
            require_equal(again, told)
    async with server(prefix_cache=False) as it:
        for number, (ids, told) in enumerate(turns):
            one_shot = await it.ask(f"one-shot{number}", ids)
            assert one_shot.cached_tokens == 0
            require_equal(one_shot, told)
