"""What a GGUF file says of its model, in the terms of Hugging Face."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.executor.gguf import open_gguf
from engine.executor.gguf_config import config_from_gguf
from engine.executor.gguf_tensors import gguf_name, gguf_tensors, gguf_weight_bytes, hf_name
from engine.executor.hf_config import HfConfig
from engine.executor.model_config import KvLayer, ModelConfig, UnsupportedModelError
from engine.executor.models.registry import read_blueprint
from engine.executor.rope import RopeSpec
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
) -> HfConfig:
    metadata = {key: held for key, held in {**METADATA, **(changed or {})}.items() if key != without}
    return config_from_gguf(open_gguf(write_gguf(tmp_path / "file-name.gguf", metadata, tensors)))


def with_keys(hf: HfConfig, **changed: object) -> HfConfig:
    return replace(hf, keys={**hf.keys, **changed})


def test_config_when_read_then_has_every_number_of_the_file(tmp_path: Path) -> None:
    keys: dict[str, object] = {
        "model_type": "llama",
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_theta": 500.0,
        "rms_norm_eps": 0.5,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": [2],
    }
    assert read(tmp_path) == HfConfig("Tiny", keys, {}, "file-name.gguf")


def test_config_when_read_by_its_family_then_is_the_files_model(tmp_path: Path) -> None:
    hf = read(tmp_path)
    assert hf.rope(16, 128) == RopeSpec(16, 500.0, 128)
    assert read_blueprint(hf).config == ModelConfig(
        name="Tiny",
        arch="llama",
        vocab_size=300,
        hidden_size=64,
        num_heads=4,
        context_len=128,
        eos_ids=(2,),
        bos_id=1,
        kv_layers=(KvLayer(2, 16), KvLayer(2, 16)),
    )


def test_config_when_optional_keys_are_absent_then_takes_the_formats_defaults(tmp_path: Path) -> None:
    plain = read(tmp_path)
    assert read(tmp_path, without="general.name") == replace(plain, name="file-name")
    assert read(tmp_path, without="llama.attention.head_count_kv") == with_keys(plain, num_key_value_heads=4)
    assert read(tmp_path, without="llama.rope.freq_base") == with_keys(plain, rope_theta=10000.0)
    assert read(tmp_path, without="llama.attention.layer_norm_rms_epsilon") == with_keys(plain, rms_norm_eps=1e-5)
    assert read(tmp_path, without="tokenizer.ggml.bos_token_id") == with_keys(plain, bos_token_id=None)
    assert read(tmp_path, without="tokenizer.ggml.bos_token_id").bos_id is None


def test_config_when_heads_are_wider_than_their_share_then_has_their_width(tmp_path: Path) -> None:
    wide: dict[str, Value] = {"llama.attention.key_length": 32, "llama.rope.dimension_count": 32}
    assert read(tmp_path, wide) == with_keys(read(tmp_path), head_dim=32)


def test_config_when_the_file_has_a_head_then_embeddings_are_not_tied(tmp_path: Path) -> None:
    tensors = {**EMBEDDING, "output.weight": np.zeros((300, 64), np.float32)}
    assert not read(tmp_path, tensors=tensors).flag("tie_word_embeddings", default=True)
    assert read(tmp_path).flag("tie_word_embeddings", default=False)


def test_config_when_the_file_names_two_ends_then_has_both_once(tmp_path: Path) -> None:
    assert read(tmp_path, {"tokenizer.ggml.eot_token_id": 7}).eos_ids == (2, 7)
    assert read(tmp_path, {"tokenizer.ggml.eot_token_id": 2}).eos_ids == (2,)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"general.architecture": "clip"}, "architecture 'clip' is not implemented; known are gemma3, llama"),
        ({"llama.rope.scaling.type": "yarn"}, "rope scaling 'yarn'"),
        ({"llama.rope.dimension_count": 8}, r"partial rotary embedding \(8 of 16\)"),
        ({"llama.attention.head_count_kv": 3}, "4 heads do not divide by 3 KV heads"),
        ({"llama.attention.key_length": 15, "llama.rope.dimension_count": 15}, "even head_dim, not 15"),
        ({"llama.rope.freq_base": -1.0}, r"^file-name\.gguf: rope_theta is -1\.0, not a number above 0$"),
        ({"llama.embedding_length": 3}, r"^file-name\.gguf: head_dim is 0, not a whole number of at least 1$"),
    ],
)
def test_model_when_it_needs_something_unknown_or_absurd_then_names_it(
    tmp_path: Path, changed: dict[str, Value], told: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=told):
        read_blueprint(read(tmp_path, changed))


def test_config_when_the_file_has_no_vocabulary_then_names_the_tensor_that_tells_it(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"^file-name\.gguf: tensor token_embd\.weight is missing$"):
        read(tmp_path, tensors={"output_norm.weight": np.zeros(64, np.float32)})


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


@pytest.mark.parametrize(
    ("name", "hugging_face"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.11.attn_k.weight", "model.layers.11.self_attn.k_proj.weight"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
        ("blk.3.attn_q.bias", "model.layers.3.self_attn.q_proj.bias"),
    ],
)
def test_names_when_both_formats_have_one_then_lead_to_each_other(name: str, hugging_face: str) -> None:
    assert hf_name(name, "llama") == hugging_face
    assert gguf_name(hugging_face, "llama") == name


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.0.attn_q", "blk.0.ssm_in.weight", "v.blk.0.attn_q.weight"])
def test_names_when_not_known_then_stay_as_they_are(name: str) -> None:
    assert hf_name(name, "llama") == gguf_name(name, "llama") == name


def test_tensors_when_rows_of_q_and_k_are_in_pairs_then_come_in_halves_of_their_own_head(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float32)
    metadata: dict[str, Value] = {
        **METADATA,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.embedding_length": 8,
    }
    held = {name: np.outer(rows, np.ones(8, np.float32)) for name in ("blk.0.attn_q.weight", "blk.0.attn_v.weight")}
    held |= {"blk.0.attn_k.weight": held["blk.0.attn_q.weight"][:4], "token_embd.weight": np.zeros((9, 8), np.float32)}
    tensors = gguf_tensors(open_gguf(write_gguf(tmp_path / "pairs.gguf", metadata, held)))
    prefix = "model.layers.0.self_attn"
    query = tensors.take(f"{prefix}.q_proj.weight", 12, 8)
    assert query[:, 0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
    assert (query == query[:, :1]).all()
    assert tensors.take(f"{prefix}.k_proj.weight", 4, 8)[:, 0].tolist() == [0, 2, 1, 3]
    assert tensors.take(f"{prefix}.v_proj.weight", 12, 8)[:, 0].tolist() == rows.tolist()


def test_tensors_when_refused_then_have_the_names_of_the_file(tmp_path: Path) -> None:
    held = {**EMBEDDING, "blk.0.attn_norm.bias": np.zeros(64, np.float32)}
    tensors = gguf_tensors(open_gguf(write_gguf(tmp_path / "named.gguf", METADATA, held)))
    with pytest.raises(UnsupportedModelError, match=r"^named\.gguf: tensor blk\.1\.ffn_up\.weight is missing$"):
        tensors.take("model.layers.1.mlp.up_proj.weight", 96, 64)
    with pytest.raises(
        UnsupportedModelError, match=r"tensor token_embd\.weight has shape \(300, 64\), not \(300, 32\)$"
    ):
        tensors.take("model.embed_tokens.weight", 300, 32)
    with pytest.raises(UnsupportedModelError, match=r"tensor blk\.0\.attn_norm\.bias is unknown \(1 in all\)$"):
        tensors.refuse_rest()


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.0.self_attn.q_proj.weight"])
def test_tensors_when_named_as_hugging_face_does_then_are_not_taken_for_gguf_ones(tmp_path: Path, name: str) -> None:
    held = {**EMBEDDING, "output_norm.weight": np.ones(64, np.float32), name: np.ones(64, np.float32)}
    file = open_gguf(write_gguf(tmp_path / "mixed.gguf", METADATA, held))
    with pytest.raises(UnsupportedModelError, match=f"^mixed.gguf: tensor {name} is unknown$"):
        gguf_tensors(file)


def test_weight_bytes_when_counted_then_those_of_all_tensors_as_float32(tmp_path: Path) -> None:
    held = {**EMBEDDING, "output_norm.weight": np.ones(64, np.float32)}
    assert gguf_weight_bytes(open_gguf(write_gguf(tmp_path / "a.gguf", METADATA, held))) == 4 * (300 * 64 + 64)
