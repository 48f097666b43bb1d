"""The shape of a model, from its file's metadata."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.executor.gguf import open_gguf
from engine.executor.model_config import ModelConfig, UnsupportedModelError, config_from_gguf
from tests.kit.gguf_files import Value, write_gguf

METADATA: dict[str, Value] = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "llama.block_count": 2,
    "llama.context_length": 128,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 0.5,
    "llama.rope.freq_base": 500.0,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}
EMBEDDING = {"token_embd.weight": np.zeros((300, 64), np.float32)}


def read(
    tmp_path: Path,
    changed: Mapping[str, Value] | None = None,
    *,
    without: str = "",
    tensors: Mapping[str, NDArray[np.float32]] = EMBEDDING,
) -> ModelConfig:
    metadata = {key: held for key, held in {**METADATA, **(changed or {})}.items() if key != without}
    return config_from_gguf(open_gguf(write_gguf(tmp_path / "file-name.gguf", metadata, tensors)))


def test_config_when_read_then_has_every_number_of_the_file(tmp_path: Path) -> None:
    assert read(tmp_path) == ModelConfig(
        name="Tiny",
        arch="llama",
        vocab_size=300,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        ffn_size=96,
        rope_theta=500.0,
        rms_eps=0.5,
        context_len=128,
        has_tied_embeddings=True,
        eos_ids=(2,),
        bos_id=1,
    )


def test_config_when_optional_keys_are_absent_then_takes_the_formats_defaults(tmp_path: Path) -> None:
    plain = read(tmp_path)
    assert read(tmp_path, without="general.name") == replace(plain, name="file-name")
    assert read(tmp_path, without="llama.attention.head_count_kv") == replace(plain, num_kv_heads=4)
    assert read(tmp_path, without="llama.rope.freq_base") == replace(plain, rope_theta=10000.0)
    assert read(tmp_path, without="tokenizer.ggml.bos_token_id") == replace(plain, bos_id=None)


def test_config_when_the_file_has_a_head_then_embeddings_are_not_tied(tmp_path: Path) -> None:
    tensors = {**EMBEDDING, "output.weight": np.zeros((300, 64), np.float32)}
    assert not read(tmp_path, tensors=tensors).has_tied_embeddings


def test_config_when_the_file_names_two_ends_then_has_both_once(tmp_path: Path) -> None:
    assert read(tmp_path, {"tokenizer.ggml.eot_token_id": 7}).eos_ids == (2, 7)
    assert read(tmp_path, {"tokenizer.ggml.eot_token_id": 2}).eos_ids == (2,)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"general.architecture": "mamba2"}, "architecture 'mamba2' is not implemented; known are llama"),
        ({"llama.rope.scaling.type": "yarn"}, "rope scaling 'yarn'"),
        ({"llama.rope.dimension_count": 8}, r"partial rotary embedding \(8 of 16\)"),
        ({"llama.attention.head_count_kv": 3}, "4 heads do not divide by 3 KV heads"),
        ({"llama.attention.key_length": 15, "llama.rope.dimension_count": 15}, "even head_dim, not 15"),
    ],
)
def test_config_when_the_model_needs_something_unknown_then_names_it(
    tmp_path: Path, changed: dict[str, Value], told: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=told):
        read(tmp_path, changed)


@pytest.mark.parametrize(
    "key", ["general.architecture", "llama.block_count", "llama.embedding_length", "tokenizer.ggml.eos_token_id"]
)
def test_config_when_a_key_is_missing_then_names_it(tmp_path: Path, key: str) -> None:
    with pytest.raises(UnsupportedModelError, match=key):
        read(tmp_path, without=key)


def test_config_when_rope_has_frequency_factors_then_is_refused(tmp_path: Path) -> None:
    tensors = {**EMBEDDING, "rope_freqs.weight": np.ones(8, np.float32)}
    with pytest.raises(UnsupportedModelError, match="rope_freqs"):
        read(tmp_path, tensors=tensors)
