"""The shape of a model and the names of its files, from a Hugging Face directory."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.executor.hf_config import config_from_hf
from engine.executor.hf_files import HfFileError, find_weight_files
from engine.executor.model_config import LinearScaling, Llama3Scaling, ModelConfig, UnsupportedModelError
from tests.kit.tiny_tokenizer_json import JsonObject, write_json

CONFIG: JsonObject = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 0.5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3: JsonObject = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def read(
    tmp_path: Path, changed: JsonObject | None = None, *, without: str = "", generation: object = None
) -> ModelConfig:
    held = {key: value for key, value in {**CONFIG, **(changed or {})}.items() if key != without}
    files = {"config.json": held, **({} if generation is None else {"generation_config.json": generation})}
    return config_from_hf(write_json(tmp_path / "the-model", files))


def test_config_when_read_then_has_every_number_of_the_file(tmp_path: Path) -> None:
    assert read(tmp_path) == ModelConfig(
        name="the-model",
        arch="llama",
        vocab_size=256,
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


def test_config_when_optional_keys_are_absent_or_null_then_takes_the_familys_defaults(tmp_path: Path) -> None:
    plain = read(tmp_path)
    assert read(tmp_path, without="num_key_value_heads") == replace(plain, num_kv_heads=4)
    assert read(tmp_path, {"num_key_value_heads": None, "head_dim": None}) == replace(plain, num_kv_heads=4)
    assert read(tmp_path, {"head_dim": 32}) == replace(plain, head_dim=32)
    assert read(tmp_path, without="rms_norm_eps") == replace(plain, rms_eps=1e-6)
    assert read(tmp_path, without="rope_parameters") == replace(plain, rope_theta=10000.0)
    assert read(tmp_path, without="bos_token_id") == replace(plain, bos_id=None)
    assert read(tmp_path, without="tie_word_embeddings") == replace(plain, has_tied_embeddings=False)


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"eos_token_id": [7, 9, 7]}, (7, 9)),
        ({"eos_token_id": 5}, (5,)),
        ({"eos_token_id": None}, (2,)),
        ({"eos_token_id": []}, (2,)),
        ({}, (2,)),
    ],
)
def test_ends_when_the_generation_has_a_list_then_are_that_list_else_the_models(
    tmp_path: Path, generation: JsonObject, expected: tuple[int, ...]
) -> None:
    assert read(tmp_path, generation=generation).eos_ids == expected


def test_ends_when_nobody_names_one_then_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="eos_token_id"):
        read(tmp_path, without="eos_token_id")


def test_rope_when_scaled_then_is_read_from_both_forms(tmp_path: Path) -> None:
    llama3 = Llama3Scaling(8.0, 1.0, 4.0, 64)
    new: JsonObject = {"rope_parameters": {**LLAMA3, "rope_theta": 7.0, "original_max_position_embeddings": 64}}
    assert read(tmp_path, new).rope_scaling == llama3
    assert read(tmp_path, new).rope_theta == 7.0
    old: JsonObject = {"rope_parameters": None, "rope_theta": 7, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert read(tmp_path, old).rope_scaling == LinearScaling(2.0)
    assert read(tmp_path, old).rope_theta == 7.0
    without_original = read(tmp_path, {"rope_parameters": LLAMA3})
    assert without_original.rope_scaling == replace(llama3, original_context_len=128)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"model_type": "qwen2"}, "model_type 'qwen2' is not implemented; known are llama"),
        ({"model_type": None}, "model_type None"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not implemented; known is 'silu'"),
        ({"attention_bias": True}, "attention_bias True"),
        ({"mlp_bias": True}, "mlp_bias True"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope type 'yarn' is not implemented; known are default, linear"),
        ({"rope_parameters": None, "rope_scaling": {"type": "dynamic"}}, "rope type 'dynamic'"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "differ by layer"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial rotary"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor is None, not a number above 0"),
        ({"hidden_size": 0}, "hidden_size is 0, not a whole number of at least 1"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"vocab_size": "256"}, "vocab_size is '256'"),
        ({"num_key_value_heads": 3}, "4 heads do not divide by 3 KV heads"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf"),
    ],
)
def test_config_when_the_model_needs_something_unknown_or_absurd_then_names_it(
    tmp_path: Path, changed: JsonObject, told: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=told):
        read(tmp_path, changed)


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000])
def test_config_when_the_file_is_broken_then_names_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(HfFileError, match=r"config\.json"):
        config_from_hf(write_json(tmp_path / "model", {"config.json": text}))


def test_config_when_the_file_is_not_text_then_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HfFileError, match=r"config\.json is not UTF-8"):
        config_from_hf(tmp_path)


def test_config_when_the_directory_has_none_then_says_that_it_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(HfFileError, match=r"no config\.json: it is no model directory"):
        config_from_hf(tmp_path)


def test_weight_files_when_sharded_then_are_each_once_in_order(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "m-2.safetensors", "b": "m-1.safetensors", "c": "m-2.safetensors"}}
    write_json(tmp_path, {"model.safetensors.index.json": index})
    assert find_weight_files(tmp_path) == (tmp_path / "m-1.safetensors", tmp_path / "m-2.safetensors")


@pytest.mark.parametrize(
    "name", ["../other.safetensors", "/etc/passwd", "sub/m.safetensors", "..", "", "m.bin", "m.safetensors/"]
)
def test_weight_files_when_the_index_leads_elsewhere_then_is_refused(tmp_path: Path, name: str) -> None:
    write_json(tmp_path, {"model.safetensors.index.json": {"weight_map": {"a": name}}})
    with pytest.raises(HfFileError, match="not a safetensors file of the same directory"):
        find_weight_files(tmp_path)


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": []}])
def test_weight_files_when_the_index_has_no_map_then_is_refused(tmp_path: Path, index: JsonObject) -> None:
    write_json(tmp_path, {"model.safetensors.index.json": index})
    with pytest.raises(HfFileError, match="no weight_map"):
        find_weight_files(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_weight_files_when_there_is_only_pickle_then_is_refused_by_name(tmp_path: Path, name: str) -> None:
    write_json(tmp_path, {name: "x"})
    with pytest.raises(HfFileError, match=f"{name}, a format that can run code"):
        find_weight_files(tmp_path)


def test_weight_files_when_there_are_none_then_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(HfFileError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        find_weight_files(tmp_path)
