"""Directories that transformers wrote: loaded here they compute what transformers computes."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from engine.executor.batch import PoolGeometry, build_batch
from engine.executor.decoder import Decoder
from engine.executor.hf_config import open_hf_config
from engine.executor.hf_files import HfFileError
from engine.executor.loading import load_executor, open_model
from engine.executor.model_config import ModelConfig, UnsupportedModelError
from engine.executor.model_runner import ModelRunner
from engine.executor.pool_size import PoolPolicy
from engine.executor.rope import RopeSpec, inverse_freq
from engine.executor.torch_executor import TorchExecutor
from services.config import ServeConfig
from services.loading import load_model
from services.tokenization.chat import ChatMessage
from tests.kit.executor_contract import PAGE_SIZE, Driver
from tests.kit.gguf_files import Value, write_gguf
from tests.kit.gguf_llama import gguf_llama_tensors
from tests.kit.model_rig import read_model
from tests.kit.paged_sequence import PagedSequence, make_plan
from tests.kit.tiny_tokenizer_json import byte_level_tokenizer, write_json
from tests.kit.tiny_vocabulary import CHATML

RECIPE = Path(__file__).parent / "data" / "tiny_llama.json"
POOL = PoolGeometry(PAGE_SIZE, pool_pages=40, num_rows=3)
TOLERANCE = 1e-4
"""Of the standard deviation of the logits."""
NUM_NEW = 24

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 500.0}

pytestmark = [pytest.mark.exact, pytest.mark.usefixtures("one_thread")]


@dataclass(frozen=True, slots=True)
class Saved:
    """A model of transformers, and the directory that it was saved to."""

    model: Any
    directory: Path


def recipe() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(RECIPE.read_text(encoding="utf-8"))
    return loaded


def save(
    tmp_path: Path,
    changed: Mapping[str, object] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
) -> Saved:
    """The recipe's model with `changed` in its configuration, stored as `dtype` and computing in float32."""
    transformers_logging.disable_progress_bar()
    held = {**recipe()["config"], **(changed or {})}
    config = AutoConfig.for_model(held.pop("model_type"), **held)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(dtype)
    directory = tmp_path / "tiny"
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    # Read back rather than cast back: a cast would leave the rotary table at the lower precision.
    return Saved(AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval(), directory)


def ignore(_fraction: float, _text: str) -> None: ...


def rope_of(directory: Path) -> RopeSpec:
    hf = open_hf_config(directory)
    return hf.rope(hf.count("hidden_size") // hf.count("num_attention_heads"), hf.count("max_position_embeddings"))


def logits_of(config: ModelConfig, decoder: Decoder) -> torch.Tensor:
    """Of every token of the recipe's prompt."""
    prompt = recipe()["meta"]["prompt"]
    batch = build_batch(make_plan(1, PAGE_SIZE, [PagedSequence(1, range(1, 40)).chunk(prompt)]), POOL)
    return ModelRunner(config, decoder, POOL).forward(batch, np.arange(len(prompt)))


def reference_logits(saved: Saved) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = saved.model(torch.tensor([recipe()["meta"]["prompt"]])).logits[0]
    return logits


def reference_ids(saved: Saved) -> list[int]:
    """Greedy, without a cache: the whole sequence anew for each token."""
    token_ids: list[int] = list(recipe()["meta"]["prompt"])
    for _ in range(NUM_NEW):
        with torch.no_grad():
            token_ids.append(int(saved.model(torch.tensor([token_ids]), use_cache=False).logits[0, -1].argmax()))
    return token_ids[-NUM_NEW:]


def load(directory: Path) -> TorchExecutor:
    pool = PoolPolicy(
        page_size=PAGE_SIZE,
        pool_tokens=(POOL.pool_pages - 1) * PAGE_SIZE,
        memory_fraction=0.5,
        running_max=1,
        num_rows=2,
        context_len=64,
    )
    return load_executor(directory, pool=pool, num_rows=3, threads=1, progress=ignore).executor


async def assert_equal(saved: Saved) -> None:
    expected = reference_logits(saved)
    worst = (logits_of(*read_model(saved.directory)) - expected).abs().max() / expected.std()
    assert worst <= TOLERANCE
    executor = load(saved.directory)
    try:
        ids = await Driver(executor).generate(PagedSequence(1, range(1, 40)), recipe()["meta"]["prompt"], NUM_NEW)
    finally:
        executor.close()
    assert ids == reference_ids(saved)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1, "head_dim": 32},
        {"rope_parameters": DEFAULT_ROPE, "rms_norm_eps": 1e-3},
        {"rope_parameters": LINEAR_ROPE},
        {"rope_parameters": LLAMA3_ROPE},
    ],
    ids=["recipe", "tied", "no groups", "one group, wide heads", "theta, eps", "linear", "llama3"],
)
async def test_directory_when_loaded_then_computes_what_transformers_computes(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    await assert_equal(save(tmp_path, changed))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
async def test_directory_when_stored_in_half_precision_then_computes_in_float32(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    await assert_equal(save(tmp_path, dtype=dtype))


async def test_directory_when_sharded_then_is_the_same_model(tmp_path: Path) -> None:
    saved = save(tmp_path, max_shard_size="300KB")
    assert len(list(saved.directory.glob("*.safetensors"))) > 1
    await assert_equal(saved)


@pytest.mark.parametrize("rope", [DEFAULT_ROPE, LINEAR_ROPE, LLAMA3_ROPE], ids=lambda rope: rope["rope_type"])
@pytest.mark.parametrize("type_key", ["rope_type", "type"])
def test_rope_when_told_in_the_old_form_then_is_that_of_the_new(
    tmp_path: Path, rope: dict[str, Any], type_key: str
) -> None:
    saved = save(tmp_path, {"rope_parameters": rope})
    new, new_config = rope_of(saved.directory), open_model(saved.directory).blueprint.config
    torch.testing.assert_close(inverse_freq(new), saved.model.model.rotary_emb.inv_freq, rtol=1e-6, atol=0)
    scaling = {key: value for key, value in rope.items() if key not in ("rope_theta", "rope_type")}
    held = json.loads((saved.directory / "config.json").read_text(encoding="utf-8"))
    del held["rope_parameters"]
    held |= {"rope_theta": rope["rope_theta"], "rope_scaling": {**scaling, type_key: rope["rope_type"]}}
    write_json(saved.directory, {"config.json": held})
    assert rope_of(saved.directory) == new
    assert open_model(saved.directory).blueprint.config == new_config


def test_same_weights_when_in_a_gguf_file_then_give_the_same_logits_bit_for_bit(tmp_path: Path) -> None:
    directory = save(tmp_path).directory
    expected = logits_of(*read_model(directory))
    hf = open_hf_config(directory)
    num_heads, num_kv_heads = hf.count("num_attention_heads"), hf.count("num_key_value_heads")
    held = {name: tensor.numpy() for name, tensor in load_file(directory / "model.safetensors").items()}
    metadata: dict[str, Value] = {
        "general.architecture": "llama",
        "llama.block_count": hf.count("num_hidden_layers"),
        "llama.context_length": hf.count("max_position_embeddings"),
        "llama.embedding_length": hf.count("hidden_size"),
        "llama.feed_forward_length": hf.count("intermediate_size"),
        "llama.attention.head_count": num_heads,
        "llama.attention.head_count_kv": num_kv_heads,
        "llama.attention.layer_norm_rms_epsilon": hf.number("rms_norm_eps"),
        "tokenizer.ggml.eos_token_id": 2,
    }
    tensors = gguf_llama_tensors(held, num_heads=num_heads, num_kv_heads=num_kv_heads)
    assert torch.equal(logits_of(*read_model(write_gguf(tmp_path / "tiny.gguf", metadata, tensors))), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_bytes_when_a_directory_is_opened_then_what_the_tensors_take_as_float32(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    saved = save(tmp_path, dtype=dtype, max_shard_size="100KB")
    assert len(list(saved.directory.glob("*.safetensors"))) > 1
    expected = sum(parameter.numel() * 4 for parameter in saved.model.parameters())
    assert open_model(saved.directory).weight_bytes == expected


def test_tied_model_when_its_files_hold_a_head_all_the_same_then_the_embedding_is_used(tmp_path: Path) -> None:
    saved = save(tmp_path, {"tie_word_embeddings": True})
    expected = logits_of(*read_model(saved.directory))
    _rewrite(saved.directory, lambda held: held | {"lm_head.weight": torch.zeros(256, 64)})
    assert torch.equal(logits_of(*read_model(saved.directory)), expected)


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        (
            lambda held: {name: tensor for name, tensor in held.items() if "layers.2.mlp.up" not in name},
            UnsupportedModelError,
            r"tensor model\.layers\.2\.mlp\.up_proj\.weight is missing",
        ),
        (
            lambda held: held | {"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)},
            UnsupportedModelError,
            r"tensor model\.layers\.0\.self_attn\.q_proj\.bias is unknown",
        ),
        (
            lambda held: held | {"model.norm.weight": torch.ones(63)},
            UnsupportedModelError,
            r"tensor model\.norm\.weight has shape \(63,\), not \(64,\)",
        ),
        (
            lambda held: held | {"model.norm.weight": torch.ones(64, dtype=torch.int8)},
            UnsupportedModelError,
            r"tensor model\.norm\.weight is I8; known are F32, F16, BF16",
        ),
    ],
)
def test_directory_when_its_tensors_are_not_the_models_then_names_one(
    tmp_path: Path,
    change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]],
    error: type[Exception],
    told: str,
) -> None:
    saved = save(tmp_path)
    _rewrite(saved.directory, change)
    with pytest.raises(error, match=told):
        read_model(saved.directory)


def test_directory_when_a_file_is_cut_missing_or_repeats_a_tensor_then_names_the_file(tmp_path: Path) -> None:
    directory = save(tmp_path, max_shard_size="300KB").directory
    shard = sorted(directory.glob("*.safetensors"))[1]
    whole = shard.read_bytes()
    for cut in (0, 7, 100, len(whole) - 1):
        shard.write_bytes(whole[:cut])
        with pytest.raises(HfFileError, match=shard.name):
            read_model(directory)
    shard.write_bytes(sorted(directory.glob("*.safetensors"))[0].read_bytes())
    with pytest.raises(HfFileError, match=rf"is in two files; the second is {shard.name}"):
        read_model(directory)
    shard.unlink()
    with pytest.raises(HfFileError, match=shard.name):
        read_model(directory)


def test_old_rotary_buffers_when_in_the_files_then_are_ignored(tmp_path: Path) -> None:
    directory = save(tmp_path).directory
    expected = logits_of(*read_model(directory))
    _rewrite(directory, lambda held: held | {"model.layers.1.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    assert torch.equal(logits_of(*read_model(directory)), expected)


async def test_load_model_when_given_a_directory_then_executor_tokenizer_template_and_ends_are_its_own(
    tmp_path: Path,
) -> None:
    saved = save(tmp_path, {"vocab_size": 300})
    definition = byte_level_tokenizer()
    write_json(
        saved.directory,
        {
            "tokenizer.json": definition,
            "chat_template.jinja": CHATML,
            "generation_config.json": {"eos_token_id": [2, 0, 2]},
        },
    )
    loaded = load_model(ServeConfig(model=saved.directory, page_size=4, pool_tokens=64, rows=3), ignore)
    try:
        assert loaded.executor.capabilities.name == "tiny, cpu torch float32"
        assert loaded.executor.capabilities.vocab_size == len(loaded.tokenizer.vocabulary) == 300
        assert loaded.eos_ids == (2, 0)
        assert loaded.template is not None
        theirs = PreTrainedTokenizerFast(tokenizer_file=str(saved.directory / "tokenizer.json"))
        theirs.chat_template = CHATML
        told = [{"role": "user", "content": "hello world 12"}]
        expected = theirs.apply_chat_template(told, add_generation_prompt=True)["input_ids"]
        assert loaded.template.first_turn_ids([ChatMessage("user", "hello world 12")]) == expected
        assert loaded.tokenizer.encode_text("hello world 日") == theirs("hello world 日").input_ids
    finally:
        loaded.executor.close()


def _rewrite(directory: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    path = directory / "model.safetensors"
    save_file(change(load_file(path)), path)
