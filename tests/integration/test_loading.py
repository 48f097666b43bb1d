"""A model file becomes an executor."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.core.plan import StepOutcome, StepResult
from engine.executor.loading import load_executor
from engine.executor.model_config import UnsupportedModelError
from engine.executor.torch_executor import TorchExecutor
from engine.executor.weights import Progress, tensor_names
from services.config import ServeConfig
from services.loading import load_model
from tests.kit.gguf_files import Value, write_gguf
from tests.kit.paged_sequence import PagedSequence, make_plan
from tests.kit.tiny_llama import tiny_llama_config, tiny_llama_executor, tiny_llama_tensor_source

CONFIG = tiny_llama_config()
METADATA: dict[str, Value] = {
    "general.architecture": CONFIG.arch,
    "general.name": CONFIG.name,
    "llama.block_count": CONFIG.num_layers,
    "llama.context_length": CONFIG.context_len,
    "llama.embedding_length": CONFIG.hidden_size,
    "llama.feed_forward_length": CONFIG.ffn_size,
    "llama.attention.head_count": CONFIG.num_heads,
    "llama.attention.head_count_kv": CONFIG.num_kv_heads,
    "llama.attention.layer_norm_rms_epsilon": CONFIG.rms_eps,
    "llama.rope.freq_base": CONFIG.rope_theta,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


def tensors() -> dict[str, NDArray[np.float32]]:
    source = tiny_llama_tensor_source(CONFIG, seed=0)
    return {name: source(name) for name in tensor_names(CONFIG)}


def load(
    tmp_path: Path, held: Mapping[str, NDArray[np.float32]], progress: Progress, name: str | None = None
) -> TorchExecutor:
    path = write_gguf(tmp_path / "tiny.gguf", METADATA, held)
    return load_executor(path, page_size=4, pool_pages=16, num_rows=4, threads=1, progress=progress, name=name)


def ignore(_fraction: float, _text: str) -> None: ...


async def answer(executor: TorchExecutor) -> StepOutcome:
    return await executor.submit(make_plan(1, 4, [PagedSequence(1, [1, 2]).chunk([5, 6, 7, 8, 9])]))


async def test_load_when_the_file_holds_known_weights_then_computes_what_they_compute(tmp_path: Path) -> None:
    loaded = load(tmp_path, tensors(), ignore)
    built = tiny_llama_executor(page_size=4, pool_pages=16, num_rows=4)
    try:
        outcome = await answer(loaded)
        assert isinstance(outcome, StepResult)
        assert outcome == await answer(built)
        assert loaded.capabilities == built.capabilities
        assert loaded.model_config.vocab_size == CONFIG.vocab_size
    finally:
        loaded.close()
        built.close()


async def test_load_when_running_then_progress_rises_from_nothing_to_all(tmp_path: Path) -> None:
    told: list[tuple[float, str]] = []
    load(tmp_path, tensors(), lambda fraction, text: told.append((fraction, text))).close()
    fractions = [fraction for fraction, _ in told]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    assert len(told) >= CONFIG.num_layers
    assert all(text for _, text in told)


def test_load_when_given_a_name_then_shows_it_in_place_of_the_files_own(tmp_path: Path) -> None:
    for name, shown in ((None, "tiny-llama"), ("Given", "Given")):
        executor = load(tmp_path, tensors(), ignore, name)
        executor.close()
        assert executor.capabilities.name == f"{shown}, cpu torch float32"


def test_load_model_when_it_is_the_embedded_one_then_shows_the_name_that_people_know() -> None:
    loaded = load_model(ServeConfig(page_size=4, pool_tokens=64, rows=3), ignore)
    loaded.executor.close()
    assert loaded.executor.capabilities.name == "SmolLM2-135M-Instruct, cpu torch float32"
    assert loaded.template is not None
    assert loaded.eos_ids == (2,)


def test_load_when_a_tensor_is_missing_then_names_it(tmp_path: Path) -> None:
    held = tensors()
    del held["blk.1.ffn_down.weight"]
    with pytest.raises(UnsupportedModelError, match=r"tensor blk\.1\.ffn_down\.weight is missing"):
        load(tmp_path, held, ignore)


def test_load_when_a_tensor_is_unknown_then_names_it(tmp_path: Path) -> None:
    held = {**tensors(), "blk.0.attn_q.bias": np.zeros(64, np.float32)}
    with pytest.raises(UnsupportedModelError, match=r"tensor blk\.0\.attn_q\.bias is unknown"):
        load(tmp_path, held, ignore)


def test_load_when_a_tensor_has_another_shape_then_names_it(tmp_path: Path) -> None:
    held = {**tensors(), "output_norm.weight": np.zeros(63, np.float32)}
    with pytest.raises(UnsupportedModelError, match=r"output_norm\.weight has shape \(63,\), not \(64,\)"):
        load(tmp_path, held, ignore)
