"""The shape of a model and the names of its files, from a Hugging Face directory."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.executor.hf_config import HfConfig, open_hf_config
from engine.executor.hf_files import HfFileError, find_weight_files
from engine.executor.model_config import KvLayer, ModelConfig, UnsupportedModelError
from engine.executor.models.pre_norm import norm_eps
from engine.executor.models.registry import read_blueprint
from engine.executor.rope import LinearScaling, Llama3Scaling, RopeSpec
from engine.executor.tensors import TensorReader, Tensors
from tests.kit.tiny_llama import FFN_SIZE, random_tensors, tiny_llama_shapes
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
) -> HfConfig:
    held = {key: value for key, value in {**CONFIG, **(changed or {})}.items() if key != without}
    files = {"config.json": held, **({} if generation is None else {"generation_config.json": generation})}
    return open_hf_config(write_json(tmp_path / "the-model", files))


def read_config(tmp_path: Path, changed: JsonObject | None = None, *, without: str = "") -> ModelConfig:
    """What the family makes of it."""
    return read_blueprint(read(tmp_path, changed, without=without)).config


def told_by(**keys: object) -> HfConfig:
    return HfConfig("told", keys, {})


def test_config_when_read_then_has_all_that_the_files_say(tmp_path: Path) -> None:
    generation: JsonObject = {"eos_token_id": 2, "do_sample": True}
    assert read(tmp_path, generation=generation) == HfConfig("the-model", CONFIG, generation)
    assert read(tmp_path).model_type == "llama"


def test_config_when_read_by_its_family_then_has_every_number_of_the_file(tmp_path: Path) -> None:
    assert read_config(tmp_path) == ModelConfig(
        name="the-model",
        arch="llama",
        vocab_size=256,
        hidden_size=64,
        num_heads=4,
        context_len=128,
        eos_ids=(2,),
        bos_id=1,
        kv_layers=(KvLayer(2, 16), KvLayer(2, 16)),
    )
    assert read(tmp_path).rope(16, 128) == RopeSpec(16, 500.0, 128)


def test_config_when_optional_keys_are_absent_or_null_then_takes_the_familys_defaults(tmp_path: Path) -> None:
    plain, no_groups = read_config(tmp_path), (KvLayer(4, 16), KvLayer(4, 16))
    assert read_config(tmp_path, without="num_key_value_heads") == replace(plain, kv_layers=no_groups)
    nulls: JsonObject = {"num_key_value_heads": None, "head_dim": None}
    assert read_config(tmp_path, nulls) == replace(plain, kv_layers=no_groups)
    assert read_config(tmp_path, {"head_dim": 32}) == replace(plain, kv_layers=(KvLayer(2, 32), KvLayer(2, 32)))
    assert read_config(tmp_path, without="bos_token_id") == replace(plain, bos_id=None)
    assert read_config(tmp_path, {"bos_token_id": True}) == replace(plain, bos_id=None)
    assert read(tmp_path, without="rope_parameters").rope(16, 128) == RopeSpec(16, 10000.0, 128)


def test_eps_when_absent_then_is_the_familys_default(tmp_path: Path) -> None:
    assert norm_eps(read(tmp_path)) == 0.5
    assert norm_eps(read(tmp_path, without="rms_norm_eps")) == 1e-6


@pytest.mark.parametrize(("changed", "is_tied"), [({"tie_word_embeddings": None}, False), ({}, True)])
def test_head_when_the_configuration_ties_it_then_is_the_embedding_else_a_tensor_of_its_own(
    tmp_path: Path, changed: JsonObject, is_tied: bool
) -> None:
    held = random_tensors(tiny_llama_shapes(256), seed=0)
    readers: dict[str, TensorReader] = {name: array.copy for name, array in held.items()}
    blueprint = read_blueprint(read(tmp_path, {"intermediate_size": FFN_SIZE, **changed}))
    hidden = torch.eye(64)[:8]
    logits = blueprint.build(Tensors("tiny", readers), lambda _fraction, _text: None).logits(hidden)
    expected = held["model.embed_tokens.weight" if is_tied else "lm_head.weight"]
    torch.testing.assert_close(logits, torch.from_numpy(expected)[:, :8].t())


def test_counts_when_absent_or_null_then_are_the_default_else_what_is_told() -> None:
    hf = told_by(layers=3, null=None)
    assert [hf.count("layers", 7), hf.count("null", 7), hf.count("absent", 7), hf.count("layers")] == [3, 7, 7, 3]


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "3", [3], None])
def test_counts_when_not_whole_and_positive_then_refused_by_key(value: object) -> None:
    with pytest.raises(UnsupportedModelError, match=r"^config\.json: layers is .*, not a whole number of at least 1$"):
        told_by(layers=value).count("layers")


def test_numbers_when_absent_or_null_then_are_the_default_or_none_else_what_is_told() -> None:
    hf = told_by(eps=1, half=0.5, null=None)
    assert [hf.number("eps"), hf.number("half", 3.0), hf.number("null", 3.0), hf.number("absent", 3.0)] == [
        1,
        0.5,
        3,
        3,
    ]
    assert isinstance(hf.number("eps"), float)
    assert [hf.number_or_none("half"), hf.number_or_none("null"), hf.number_or_none("absent")] == [0.5, None, None]


@pytest.mark.parametrize("value", [0, 0.0, -0.5, True, "0.5", float("inf"), float("nan"), 10**400])
def test_numbers_when_not_finite_and_positive_then_refused_by_key(value: object) -> None:
    for get in (told_by(eps=value).number, told_by(eps=value).number_or_none):
        with pytest.raises(UnsupportedModelError, match=r"^config\.json: eps is .*, not a number above 0$"):
            get("eps")


def test_numbers_when_absent_without_a_default_then_refused_by_key() -> None:
    with pytest.raises(UnsupportedModelError, match="eps is None, not a number above 0"):
        told_by().number("eps")


def test_flags_when_absent_or_null_then_are_the_default_else_what_is_told() -> None:
    hf = told_by(on=True, off=False, null=None)
    for default in (False, True):
        assert [hf.flag(key, default=default) for key in ("on", "off", "null", "absent")] == [
            True,
            False,
            default,
            default,
        ]


@pytest.mark.parametrize("value", [1, 0, "true", []])
def test_flags_when_neither_true_nor_false_then_refused_by_key(value: object) -> None:
    with pytest.raises(UnsupportedModelError, match=r"^config\.json: tied is .*, not true or false$"):
        told_by(tied=value).flag("tied", default=False)


def test_texts_when_absent_or_null_then_are_the_default_or_none_else_what_is_told() -> None:
    hf = told_by(act="gelu", types=["a", "b", "a"], none=[], null=None)
    assert [hf.text(key, "silu") for key in ("act", "null", "absent")] == ["gelu", "silu", "silu"]
    assert [hf.texts(key) for key in ("types", "none", "null", "absent")] == [("a", "b", "a"), (), None, None]


@pytest.mark.parametrize("value", [1, True, ["gelu"], {}])
def test_text_when_it_is_none_then_refused_by_key(value: object) -> None:
    with pytest.raises(UnsupportedModelError, match=r"^config\.json: act is .*, not text$"):
        told_by(act=value).text("act", "silu")


@pytest.mark.parametrize("value", [1, "full_attention", ["full_attention", 1], ["a", None], {"a": "b"}])
def test_texts_when_not_a_list_of_words_then_refused_by_key(value: object) -> None:
    with pytest.raises(UnsupportedModelError, match=r"^config\.json: types is .*, not a list of words$"):
        told_by(types=value).texts("types")


@pytest.mark.parametrize("value", [None, 7, ["llama"]])
def test_model_type_when_it_is_no_text_then_refused_by_key(value: object) -> None:
    with pytest.raises(UnsupportedModelError, match=r"^config\.json: model_type is .*, not text$"):
        _ = told_by(model_type=value).model_type


def test_refusals_when_the_keys_come_from_another_file_then_name_that() -> None:
    hf = replace(told_by(layers=0), file_name="a.gguf")
    with pytest.raises(UnsupportedModelError, match=r"^a\.gguf: layers is 0"):
        hf.count("layers")
    with pytest.raises(UnsupportedModelError, match=r"nor a\.gguf has an eos_token_id"):
        _ = hf.eos_ids


def test_required_options_when_absent_null_or_the_known_value_then_pass() -> None:
    told_by(act="silu", bias=False, null=None).require(act="silu", bias=False, null=True, absent=3, other=None)


@pytest.mark.parametrize(("key", "held"), [("act", "gelu"), ("bias", True), ("window", 16), ("scale", 0)])
def test_required_options_when_another_value_then_refused_with_both(key: str, held: object) -> None:
    known: dict[str, object] = {"act": "silu", "bias": False, "window": None, "scale": 1.0}
    with pytest.raises(UnsupportedModelError, match=rf"^{key} {held!r} is not implemented; known is {known[key]!r}$"):
        told_by(**{key: held}).require(**known)


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
    hf = read(tmp_path, {"eos_token_id": None}, generation={"eos_token_id": ["</s>"]})
    with pytest.raises(
        UnsupportedModelError, match=r"neither generation_config\.json nor config\.json has an eos_token_id"
    ):
        _ = hf.eos_ids
    with pytest.raises(UnsupportedModelError, match="eos_token_id"):
        read_config(tmp_path, without="eos_token_id")


def test_rope_when_scaled_then_is_read_from_both_forms(tmp_path: Path) -> None:
    llama3 = Llama3Scaling(8.0, 1.0, 4.0, 64)
    new: JsonObject = {"rope_parameters": {**LLAMA3, "rope_theta": 7.0, "original_max_position_embeddings": 64}}
    assert read(tmp_path, new).rope(16, 128) == RopeSpec(16, 7.0, 128, llama3)
    old: JsonObject = {"rope_parameters": None, "rope_theta": 7, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert read(tmp_path, old).rope(16, 128) == RopeSpec(16, 7.0, 128, LinearScaling(2.0))
    without_original = read(tmp_path, {"rope_parameters": LLAMA3}).rope(16, 128)
    assert without_original.scaling == replace(llama3, original_context_len=128)


def test_rope_when_it_differs_by_kind_of_layer_then_each_kind_has_its_own() -> None:
    full: JsonObject = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    hf = told_by(rope_parameters={"full_attention": full, "sliding_attention": {"rope_type": "default"}})
    assert hf.rope(16, 64, key="full_attention") == RopeSpec(16, 1e6, 64, LinearScaling(8.0))
    assert hf.rope(16, 64, key="sliding_attention", default_theta=5.0) == RopeSpec(16, 5.0, 64)
    for key in (None, "chunked_attention"):
        with pytest.raises(UnsupportedModelError, match="differ by layer"):
            hf.rope(16, 64, key=key)


def test_rope_when_it_is_the_same_for_all_kinds_then_a_kind_has_that() -> None:
    hf = told_by(rope_parameters={"rope_type": "default", "rope_theta": 7.0})
    assert hf.rope(8, 64, key="full_attention") == hf.rope(8, 64) == RopeSpec(8, 7.0, 64)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"rope_parameters": None, "rope_scaling": None, "rope_theta": None, "partial_rotary_factor": None},
        {"rope_parameters": {"rope_type": None, "type": None, "rope_theta": None, "partial_rotary_factor": None}},
        {"rope_scaling": {"rope_type": "default"}, "partial_rotary_factor": 1.0},
    ],
)
def test_rope_when_values_are_absent_or_null_then_are_the_defaults(keys: JsonObject) -> None:
    assert told_by(**keys).rope(8, 64, default_theta=9.0) == RopeSpec(8, 9.0, 64)


def test_rope_when_theta_is_null_among_the_parameters_then_is_the_one_beside_them() -> None:
    hf = told_by(rope_theta=7.0, rope_parameters={"rope_type": "default", "rope_theta": None})
    assert hf.rope(8, 64) == RopeSpec(8, 7.0, 64)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"model_type": "clip"}, r"model_type 'clip' is not implemented; known are .*\bllama\b"),
        ({"model_type": None}, "model_type is None, not text"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not implemented; known is 'silu'"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"sliding_window": 16}, "sliding_window 16 is not implemented; known is None"),
        ({"rope_parameters": {"rope_type": "none"}}, "rope type 'none' is not implemented; known are default, linear"),
        ({"rope_parameters": None, "rope_scaling": {"type": "dynamic"}}, "rope type 'dynamic'"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "differ by layer"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial rotary"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"rope_parameters": ["linear"]}, "rope_parameters is"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor is None, not a number above 0"),
        ({"hidden_size": 0}, "hidden_size is 0, not a whole number of at least 1"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"vocab_size": "256"}, "vocab_size is '256'"),
        ({"num_key_value_heads": 3}, "4 heads do not divide by 3 KV heads"),
        ({"head_dim": 15}, "even head_dim, not 15"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', not true or false"),
    ],
)
def test_config_when_the_model_needs_something_unknown_or_absurd_then_names_it(
    tmp_path: Path, changed: JsonObject, told: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=told):
        read_config(tmp_path, changed)


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000])
def test_config_when_the_file_is_broken_then_names_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(HfFileError, match=r"config\.json"):
        open_hf_config(write_json(tmp_path / "model", {"config.json": text}))


def test_config_when_the_file_is_not_text_then_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HfFileError, match=r"config\.json is not UTF-8"):
        open_hf_config(tmp_path)


def test_config_when_the_directory_has_none_then_says_that_it_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(HfFileError, match=r"no config\.json: it is no model directory"):
        open_hf_config(tmp_path)


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
