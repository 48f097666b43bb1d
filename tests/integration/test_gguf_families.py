"""The same weights in a GGUF file and in a directory that transformers wrote give the same logits, bit for bit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from engine.core.ownership import PoolKind
from engine.executor.gguf import open_gguf
from engine.executor.gguf_config import config_from_gguf
from engine.executor.model_config import UnsupportedModelError
from tests.kit.gguf_files import Value, write_gguf
from tests.kit.model_rig import read_model, run_logits
from tests.kit.recipes import TOLERANCE, recipe_config, recipe_prompt, reference_logits, save_recipe

Array = NDArray[np.float32]

COMMON = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Hugging Face's name → GGUF's: told apart from the code under test, by hand."""
NAMES = {
    "qwen2": {**COMMON, "post_attention_layernorm": "ffn_norm"},
    "qwen3": {**COMMON, "post_attention_layernorm": "ffn_norm"},
    "gemma3": {
        **COMMON,
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
}
KINDS = {"full_attention": PoolKind.FULL, "sliding_attention": PoolKind.SWA}

pytestmark = [pytest.mark.exact, pytest.mark.usefixtures("one_thread")]


def metadata_of(arch: str, config: Mapping[str, Any]) -> dict[str, Value]:
    """What every architecture tells."""
    num_heads = config["num_attention_heads"]
    head_dim = config.get("head_dim", config["hidden_size"] // num_heads)
    told: dict[str, Value] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": num_heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0,
        "vocab_size": config["vocab_size"],
    }
    return {
        "general.architecture": arch,
        "tokenizer.ggml.eos_token_id": 2,
        **{f"{arch}.{key}": value for key, value in told.items()},
    }


def gguf_tensors_of(arch: str, directory: Path) -> dict[str, Array]:
    return {
        _gguf_name(NAMES[arch], name): array + np.float32(1.0) if arch == "gemma3" and "norm" in name else array
        for name, array in load_file(directory / "model.safetensors").items()
    }


def _gguf_name(names: Mapping[str, str], name: str) -> str:
    stem, _, what = name.rpartition(".")
    if not stem.startswith("model.layers."):
        return f"{names[stem]}.{what}"
    number, _, kind = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{number}.{names[kind]}.{what}"


def assert_same_logits(tmp_path: Path, arch: str, changed: Mapping[str, object], told: Mapping[str, Value]) -> None:
    """Of transformers' directory, of the GGUF file that `told` completes, and of transformers itself."""
    saved = save_recipe(arch, tmp_path / "model", changed)
    _vary(saved.model)
    saved.model.save_pretrained(saved.directory)
    metadata = metadata_of(arch, {**recipe_config(arch), **changed})
    metadata |= {f"{arch}.{key}": value for key, value in told.items()}
    path = write_gguf(tmp_path / "tiny.gguf", metadata, gguf_tensors_of(arch, saved.directory))
    prompt = recipe_prompt()
    expected = run_logits(*read_model(saved.directory), prompt)
    assert torch.equal(run_logits(*read_model(path), prompt), expected)
    reference = reference_logits(saved, prompt)
    assert (expected - reference).abs().max() <= TOLERANCE * reference.std()


def _vary(model: torch.nn.Module) -> None:
    """Fresh norms are all ones or zeros, fresh biases zeros: makes each another, by eighths, which survive 1 + x."""
    for number, (name, weight) in enumerate(model.named_parameters()):
        if "norm" in name or name.endswith("bias"):
            steps = (torch.arange(weight.numel()) + number) % 5
            weight.data += steps.to(weight.dtype) / 8.0


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
def test_same_weights_when_qwen_is_in_a_gguf_file_then_give_the_same_logits(
    tmp_path: Path, arch: str, is_tied: bool
) -> None:
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    changed = {"tie_word_embeddings": is_tied, "rope_parameters": rope}
    assert_same_logits(tmp_path, arch, changed, {"rope.freq_base": 5000.0})


def test_same_weights_when_the_rope_is_scaled_then_give_the_same_logits(tmp_path: Path) -> None:
    changed = {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}
    assert_same_logits(tmp_path, "qwen3", changed, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0})


@pytest.mark.parametrize(
    ("pattern", "layer_types"),
    [
        (3, ["sliding_attention", "sliding_attention", "full_attention"] * 2),
        ([True, False] * 3, ["sliding_attention", "full_attention"] * 3),
        (None, [*["sliding_attention"] * 5, "full_attention"]),
    ],
)
def test_same_weights_when_gemma_is_in_a_gguf_file_then_give_the_same_logits(
    tmp_path: Path, pattern: Value | None, layer_types: list[str]
) -> None:
    """Bases, scaling of the full layers only, windows and their pattern, norms that are stored with 1 added."""
    changed: dict[str, object] = {
        "tie_word_embeddings": True,
        "layer_types": layer_types,
        "final_logit_softcapping": 8.0,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 80000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    }
    told: dict[str, Value] = {
        "attention.sliding_window": 16,
        "rope.freq_base": 80000.0,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
        "final_logit_softcapping": 8.0,
    }
    told |= {} if pattern is None else {"attention.sliding_window_pattern": pattern}
    assert_same_logits(tmp_path, "gemma3", changed, told)
    config, _ = read_model(tmp_path / "tiny.gguf")
    assert [layer.kind for layer in config.kv_layers] == [KINDS[layer_type] for layer_type in layer_types]
    assert config.window == 16


def test_config_when_gemma_is_of_the_largest_size_then_scores_are_scaled_by_the_share_of_a_head(tmp_path: Path) -> None:
    """27B: 32 heads of 128 over a hidden size of 5,376; the other sizes scale by the size of a head."""
    for num_layers, scalar in ((62, 168), (48, 128)):
        metadata = metadata_of(
            "gemma3",
            {**recipe_config("gemma3"), "hidden_size": 5376, "num_attention_heads": 32, "head_dim": 128}
            | {"num_hidden_layers": num_layers},
        )
        metadata["gemma3.attention.sliding_window"] = 1024
        path = write_gguf(tmp_path / "large.gguf", metadata, {"token_embd.weight": np.zeros((9, 5376), np.float32)})
        assert config_from_gguf(open_gguf(path)).keys["query_pre_attn_scalar"] == scalar


@pytest.mark.parametrize(
    ("arch", "told", "message"),
    [
        ("qwen2", {"rope.scaling.type": "yarn"}, r"rope scaling 'yarn' is not implemented; known are none, linear"),
        ("qwen3", {"expert_count": 8}, r"metadata 'qwen3\.expert_count' is not implemented \(1 such keys\)"),
        ("gemma3", {"attention.sliding_window_pattern": [True]}, "does not say true or false of each layer"),
        ("gemma3", {"attention.sliding_window_pattern": [1] * 6}, "does not say true or false of each layer"),
        ("gemma3", {"attention.value_length": 32}, r"values of another size \(32\) than keys \(16\)"),
        ("gemma3", {"attention.sliding_window": 0}, r"no number of at least 1 under 'gemma3\.attention\.sliding_windo"),
        ("gemma3", {"attention.temperature_length": 4}, r"metadata 'gemma3\.attention\.temperature_length'"),
    ],
)
def test_config_when_the_file_tells_something_unknown_then_is_refused_by_name(
    tmp_path: Path, arch: str, told: Mapping[str, Value], message: str
) -> None:
    metadata = metadata_of(arch, recipe_config(arch))
    metadata |= {"gemma3.attention.sliding_window": 16} if arch == "gemma3" else {}
    metadata |= {f"{arch}.{key}": value for key, value in told.items()}
    path = write_gguf(tmp_path / "tiny.gguf", metadata, {"token_embd.weight": np.zeros((256, 64), np.float32)})
    with pytest.raises(UnsupportedModelError, match=message):
        config_from_gguf(open_gguf(path))
