"""Mixtral, Qwen 3 MoE, GPT-OSS: what transformers computes, and the same bits however the tokens are cut."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.core.ownership import PoolKind
from engine.executor.hf_config import HfConfig
from engine.executor.model_config import ModelConfig, UnsupportedModelError
from engine.executor.models.gpt_oss import ClampedGate
from engine.executor.models.registry import read_blueprint
from engine.executor.rope import YarnScaling, inverse_freq
from tests.kit.cuts import CUTS, logits_cut, long_prompt, save_shaken, worst
from tests.kit.model_rig import read_model, run_logits
from tests.kit.recipes import TOLERANCE, Saved, recipe_config, recipe_prompt, reference_ids, reference_logits

FAMILIES = ("mixtral", "qwen3_moe", "gpt_oss")
NUM_NEW = 24
WINDOW = 16
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
PLAIN = {"rope_type": "default", "rope_theta": 500.0}
MANY_EXPERTS = {"num_local_experts": 7, "num_experts_per_tok": 3}

pytestmark = [pytest.mark.exact, pytest.mark.usefixtures("one_thread")]


def assert_equals_transformers(saved: Saved) -> None:
    config, decoder = read_model(saved.directory)
    prompt = long_prompt()
    assert worst(run_logits(config, decoder, prompt), reference_logits(saved, prompt)) <= TOLERANCE


def read_config(name: str, changed: Mapping[str, object]) -> ModelConfig:
    return read_blueprint(HfConfig("tiny", {**recipe_config(name), **changed}, {})).config


def rewrite_config(directory: Path, changed: dict[str, object], *without: str) -> None:
    path = directory / "config.json"
    keys = json.loads(path.read_text(encoding="utf-8"))
    kept = {key: value for key, value in keys.items() if key not in without}
    path.write_text(json.dumps(kept | changed), encoding="utf-8")


@pytest.mark.parametrize("name", FAMILIES)
def test_family_when_read_as_its_recipe_says_then_continues_as_transformers_does(tmp_path: Path, name: str) -> None:
    saved = save_shaken(name, tmp_path)
    prompt = recipe_prompt()
    ids = reference_ids(saved, prompt, NUM_NEW)
    config, decoder = read_model(tmp_path)
    logits = run_logits(config, decoder, [*prompt, *ids])
    assert worst(logits, reference_logits(saved, [*prompt, *ids])) <= TOLERANCE
    assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == ids


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("mixtral", {"num_experts_per_tok": 1, "tie_word_embeddings": True}),
        ("mixtral", {**MANY_EXPERTS, "sliding_window": WINDOW}),
        ("mixtral", {"head_dim": 32, "num_key_value_heads": 1, "rms_norm_eps": 1e-2, "intermediate_size": 132}),
        ("mixtral", {"rope_parameters": YARN, "head_dim": 16}),
        ("qwen3_moe", {"norm_topk_prob": False, "attention_bias": True}),
        ("qwen3_moe", {"num_experts": 11, "num_experts_per_tok": 5, "moe_intermediate_size": 44}),
        ("qwen3_moe", {"decoder_sparse_step": 2, "tie_word_embeddings": True}),
        ("qwen3_moe", {"mlp_only_layers": [0, 3], "rms_norm_eps": 1e-2}),
        ("qwen3_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [1], "rope_parameters": YARN}),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": WINDOW}),
        ("qwen3_moe", {"use_sliding_window": False, "sliding_window": WINDOW}),
        ("gpt_oss", {"num_experts_per_tok": 1, "tie_word_embeddings": True}),
        ("gpt_oss", {**MANY_EXPERTS, "intermediate_size": 132}),
        ("gpt_oss", {"swiglu_alpha": 0.7, "swiglu_limit": 0.5}),
        ("gpt_oss", {"attention_bias": False, "rms_norm_eps": 1e-2, "rope_parameters": PLAIN}),
        ("gpt_oss", {"sliding_window": 7, "layer_types": None, "rope_parameters": {**YARN, "truncate": False}}),
        ("gpt_oss", {"layer_types": ["full_attention"] * 4, "head_dim": 32, "num_key_value_heads": 1}),
        ("gpt_oss", {"layer_types": ["sliding_attention"] * 4, "rope_parameters": {**YARN, "attention_factor": 2.5}}),
    ],
    ids=str,
)
def test_family_when_an_option_is_changed_then_computes_what_transformers_computes(
    tmp_path: Path, name: str, changed: dict[str, object]
) -> None:
    assert_equals_transformers(save_shaken(name, tmp_path, changed))


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("mixtral", MANY_EXPERTS),
        ("qwen3_moe", {"num_experts": 7, "norm_topk_prob": False, "moe_intermediate_size": 45}),
        ("gpt_oss", {**MANY_EXPERTS, "intermediate_size": 135}),
    ],
    ids=FAMILIES,
)
def test_family_when_cut_in_every_way_then_equal_bit_for_bit(
    tmp_path: Path, name: str, changed: dict[str, object]
) -> None:
    save_shaken(name, tmp_path, changed)
    config, decoder = read_model(tmp_path)
    prompt = long_prompt()
    expected = run_logits(config, decoder, prompt)
    different = [cut for cut in CUTS if not torch.equal(logits_cut(config, decoder, prompt, cut), expected)]
    assert not different


@pytest.mark.parametrize(("name", "num_experts"), [("mixtral", 5), ("mixtral", 64), ("qwen3_moe", 5), ("gpt_oss", 5)])
def test_experts_when_all_are_as_good_then_those_are_picked_that_transformers_picks(
    tmp_path: Path, name: str, num_experts: int
) -> None:
    saved = save_shaken(name, tmp_path, {"num_local_experts": num_experts, "num_experts": num_experts})
    with torch.no_grad():
        for parameter_name, parameter in saved.model.named_parameters():
            if "mlp.gate." in parameter_name or "mlp.router." in parameter_name:
                parameter.zero_()
    saved.model.save_pretrained(tmp_path)
    assert_equals_transformers(saved)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_experts_when_all_lie_in_one_tensor_then_are_the_same_model(tmp_path: Path, name: str) -> None:
    saved = save_shaken(name, tmp_path / "each")
    fused = tmp_path / "fused"
    saved.model.save_pretrained(fused, save_original_format=False)
    names = [(directory / "model.safetensors").read_bytes() for directory in (saved.directory, fused)]
    assert [b"experts.gate_up_proj" in held for held in names] == [False, True]
    prompt = recipe_prompt()
    each, one = (run_logits(*read_model(directory), prompt) for directory in (saved.directory, fused))
    assert torch.equal(each, one)


def test_qwen3_moe_when_its_file_counts_experts_by_the_older_key_then_is_the_same_model(tmp_path: Path) -> None:
    saved = save_shaken("qwen3_moe", tmp_path)
    rewrite_config(tmp_path, {"num_experts": 4}, "num_local_experts")
    assert_equals_transformers(saved)


def test_gpt_oss_when_its_file_is_of_the_published_form_then_is_the_same_model(tmp_path: Path) -> None:
    saved = save_shaken("gpt_oss", tmp_path)
    scaling = {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    }
    rewrite_config(tmp_path, {"rope_theta": 150000, "rope_scaling": scaling}, "rope_parameters")
    assert_equals_transformers(saved)


def test_gpt_oss_when_its_experts_are_in_mxfp4_and_nothing_says_so_then_refused_by_name(tmp_path: Path) -> None:
    save_shaken("gpt_oss", tmp_path)
    path = tmp_path / "model.safetensors"
    held = {name.replace("gate_up_proj", "gate_up_proj_blocks"): tensor for name, tensor in load_file(path).items()}
    save_file(held, path)
    with pytest.raises(UnsupportedModelError, match=r"MXFP4 .*layers\.0\.mlp\.experts\.gate_up_proj_blocks"):
        read_model(tmp_path)


@pytest.mark.parametrize("name", FAMILIES)
def test_family_when_its_file_leaves_out_what_has_a_default_then_is_the_same_model(tmp_path: Path, name: str) -> None:
    left_out = {"mixtral": {"num_local_experts": 8}, "qwen3_moe": {}, "gpt_oss": {"head_dim": 64}}[name]
    kv_heads = {"mixtral": 8, "qwen3_moe": 4, "gpt_oss": 8}[name]
    changed = {**left_out, "num_attention_heads": 8, "num_key_value_heads": kv_heads}
    saved = save_shaken(name, tmp_path, changed)
    rewrite_config(tmp_path, {}, *left_out, "num_key_value_heads", "rms_norm_eps", "rope_parameters", "layer_types")
    assert_equals_transformers(saved)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"truncate": False},
        {"factor": 1.0},
        {"factor": None},
        {"beta_fast": 8.0, "beta_slow": 2.0},
        {"beta_fast": 2.0, "beta_slow": 2.0},
        {"beta_fast": None, "beta_slow": 0},
        {"attention_factor": 0.5},
        {"mscale": 0.707, "mscale_all_dim": 1.0},
        {"mscale": 0.707},
        {"mscale": 0.707, "mscale_all_dim": 0},
        {"original_max_position_embeddings": 32768, "rope_theta": 1e6},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore")
def test_yarn_when_its_options_are_changed_then_is_the_table_of_transformers(changed: dict[str, Any]) -> None:
    held = {**recipe_config("mixtral"), "head_dim": 64, "rope_parameters": {**YARN, **changed}}
    theirs = AutoConfig.for_model(**held)
    freq, attention_factor = ROPE_INIT_FUNCTIONS["yarn"](theirs)
    spec = HfConfig("tiny", held, {}).rope(64, 512)
    assert isinstance(spec.scaling, YarnScaling)
    assert spec.scaling.attention_factor == pytest.approx(attention_factor, rel=1e-12)
    torch.testing.assert_close(inverse_freq(spec), freq, rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", [1, 45, 128])
def test_clamped_gate_when_rows_are_cut_then_equal_bit_for_bit(size: int) -> None:
    gate, gate_up = ClampedGate(1.702, 7.0), 8 * torch.randn(64, 2 * size, generator=torch.Generator().manual_seed(2))
    expected = gate(gate_up)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for num_rows in (1, 3, 8, 33):
            rows = [gate(part.clone()) for part in gate_up.split(num_rows)]
            assert torch.equal(torch.cat(rows), expected), f"{num_rows} rows, {threads} threads"


def test_clamped_gate_when_values_are_far_out_then_is_the_formula_in_float64() -> None:
    gate = torch.tensor([-3e38, -1e30, -100.0, -7.5, -1.0, 0.0, 1.0, 6.9, 7.1, 1e30])
    up = torch.tensor([-3e38, 0.5, -7.5, 7.5, -6.9, 6.9, 2.0, -1.0, 3e38, 0.0])
    clamped_gate, clamped_up = gate.double().clamp(max=7.0), up.double().clamp(-7.0, 7.0)
    expected = clamped_gate * torch.sigmoid(1.702 * clamped_gate) * (clamped_up + 1)
    got = ClampedGate(1.702, 7.0)(torch.stack((gate, up), dim=-1))[:, 0]
    torch.testing.assert_close(got, expected.float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "changed", "kinds"),
    [
        ("mixtral", {}, "FFFF"),
        ("mixtral", {"sliding_window": WINDOW}, "SSSS"),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": WINDOW}, "SSSS"),
        ("qwen3_moe", {"sliding_window": WINDOW}, "FFFF"),
        ("gpt_oss", {}, "SFSF"),
        ("gpt_oss", {"layer_types": None}, "SFSF"),
    ],
    ids=str,
)
def test_layers_when_read_then_are_of_the_pools_that_the_configuration_says(
    name: str, changed: dict[str, object], kinds: str
) -> None:
    config = read_config(name, changed)
    expected = [PoolKind.SWA if letter == "S" else PoolKind.FULL for letter in kinds]
    assert [layer.kind for layer in config.kv_layers] == expected
    assert config.window == (WINDOW if "S" in kinds else None)


@pytest.mark.parametrize(
    ("name", "changed", "named"),
    [
        ("mixtral", {"hidden_act": "gelu"}, "hidden_act"),
        ("mixtral", {"attention_bias": True}, "attention_bias"),
        ("mixtral", {"num_experts_per_tok": 5}, "passes 5 experts, of which there are 4"),
        ("mixtral", {"sliding_window": 0}, "sliding_window"),
        ("qwen3_moe", {"hidden_act": "gelu"}, "hidden_act"),
        ("qwen3_moe", {"mlp_only_layers": 3}, "mlp_only_layers"),
        ("qwen3_moe", {"mlp_only_layers": ["3"]}, "mlp_only_layers"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ("qwen3_moe", {"num_experts": 0}, "num_experts"),
        ("qwen3_moe", {"layer_types": ["full_attention"] * 4}, "layer_types"),
        ("gpt_oss", {"hidden_act": "gelu"}, "hidden_act"),
        ("gpt_oss", {"sliding_window": None}, "sliding_window"),
        ("gpt_oss", {"swiglu_limit": 0}, "swiglu_limit"),
        ("gpt_oss", {"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
        ("gpt_oss", {"rope_parameters": {**YARN, "truncate": 1}}, "truncate"),
        ("gpt_oss", {"rope_parameters": {**YARN, "factor": "4"}}, "factor"),
        ("gpt_oss", {"rope_parameters": {**YARN, "mscale": -1}}, "mscale"),
    ],
    ids=str,
)
def test_option_when_not_implemented_then_refused_by_name(name: str, changed: dict[str, object], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        read_config(name, changed)
