"""Reports of recurrent states and windows, on tiny real models: what is compared are the bits of states and ids."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from engine.core.config import CoreConfig
from engine.core.ownership import OwnerKind, PoolKind
from engine.executor.batch import PoolGeometry
from engine.executor.decoder import Decoder
from engine.executor.model_config import ModelConfig
from engine.executor.torch_executor import TorchExecutor
from tests.integration.field_reports.test_det import RecordingRunner, Server, Told
from tests.kit.engine_rig import serving
from tests.kit.model_rig import read_model
from tests.kit.recipes import save_recipe

PAGE = 16
POOL = 65
FAMILIES = ("bamba", "gemma3", "mistral_swa")

pytestmark = [pytest.mark.exact, pytest.mark.usefixtures("one_thread")]


@dataclass(frozen=True, slots=True)
class Model:
    config: ModelConfig
    decoder: Decoder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """By family; each is read once."""
    made: dict[str, Path] = {name: tmp_path_factory.mktemp(name) for name in FAMILIES}
    return {name: Model(*read_model(save_recipe(name, path).directory)) for name, path in made.items()}


@asynccontextmanager
async def server(model: Model, *, prefix_cache: bool = True) -> AsyncIterator[Server]:
    swa_pages, state_slots = POOL if model.config.window else 0, POOL if model.config.state_layers else 0
    config = CoreConfig(
        page_size=PAGE,
        pool_pages=POOL,
        num_rows=9,
        context_len=512,
        vocab_size=model.config.vocab_size,
        chunk_tokens=16,
        step_tokens=64,
        prefix_cache=prefix_cache,
        window=model.config.window,
        swa_pages=swa_pages,
        state_slots=state_slots,
        state_interval=PAGE,
    )
    runner = RecordingRunner(model.config, model.decoder, PoolGeometry(PAGE, POOL, 9, swa_pages, state_slots))
    async with serving(TorchExecutor(runner, threads=1), config) as rig:
        yield Server(rig, runner)


def prompt(seed: int, length: int) -> list[int]:
    return [3 + (seed * 37 + 11 * place + place * place * (seed + 1)) % 250 for place in range(length)]


def require_equal(one: Told, other: Told) -> None:
    assert one.ids == other.ids
    assert torch.equal(one.logits, other.logits)


@pytest.mark.parametrize("family", FAMILIES)
async def test_prompts_when_asked_cold_and_warm_of_each_kind_of_memory_then_equal_bit_for_bit(
    family: str, models: dict[str, Model]
) -> None:
    """DET-01 (vllm-project/vllm#40896): 12 prompts of 17 to 83 tokens, of each kind of memory."""
    prompts = [prompt(number, 17 + 6 * number) for number in range(12)]
    async with server(models[family]) as it:
        cold = [await it.ask(f"cold{number}", ids) for number, ids in enumerate(prompts)]
        warm = [await it.ask(f"warm{number}", ids) for number, ids in enumerate(prompts)]
    assert [told.cached_tokens for told in cold] == [0] * 12
    assert [told.cached_tokens for told in warm] == [(len(ids) - 1) // PAGE * PAGE for ids in prompts]
    for first, second in zip(cold, warm, strict=True):
        require_equal(first, second)


async def states_of_cache(it: Server) -> dict[int, torch.Tensor]:
    """Slot of each state that the cache has, and a copy of its bits."""
    engine, storage = it.rig.engine, it.runner.states
    owners = {slot: (await engine.explain(PoolKind.MAMBA, slot)).owner.kind for slot in range(1, POOL)}
    return {
        slot: torch.cat([pool[slot].flatten() for pool in (*storage.conv, *storage.ssm)])
        for slot, owner in owners.items()
        if owner is OwnerKind.CACHE
    }


async def ask_all(it: Server, prompts: Sequence[Sequence[int]]) -> list[Told]:
    return [await it.ask(f"t{number}", ids) for number, ids in enumerate(prompts)]


async def test_prefix_when_extended_by_fewer_tokens_than_the_convolution_has_then_its_state_stays_as_it_was(
    models: dict[str, Model],
) -> None:
    """PFX-11 (vllm-project/vllm#56196): a prefix of one page, extended by 1, 2 and 3 tokens, and once more."""
    bamba, shared = models["bamba"], prompt(1, PAGE)
    prompts = [shared + prompt(2 + extra, extra) for extra in (1, 2, 3, 1, 2, 3)]
    async with server(bamba, prefix_cache=False) as it:
        without = await ask_all(it, prompts)
    async with server(bamba) as it:
        await it.ask("shared", shared)
        before = await states_of_cache(it)
        assert len(before) == 1
        found = await ask_all(it, prompts)
        after = await states_of_cache(it)
    assert [told.cached_tokens for told in found] == [PAGE] * 6
    assert after.keys() == before.keys()
    assert all(torch.equal(after[slot], state) for slot, state in before.items())
    for one, other in zip(found, without, strict=True):
        require_equal(one, other)
