"""Mistral, Qwen 2 and 3, Gemma 2 and 3: what transformers computes, and the same bits however the tokens are cut."""

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from engine.core.ownership import PoolKind
from engine.executor.hf_config import HfConfig
from engine.executor.layers.feed_forward import Gate
from engine.executor.model_config import ModelConfig, UnsupportedModelError
from engine.executor.models.registry import read_blueprint
from engine.executor.norm import gelu_tanh_and_mul, silu_and_mul
from tests.kit.cuts import PROMPT_LEN, Cut, logits_cut, long_prompt, save_shaken, worst
from tests.kit.model_rig import read_model, run_logits
from tests.kit.recipes import (
    TOLERANCE,
    Saved,
    recipe_config,
    recipe_prompt,
    reference_ids,
    reference_logits,
)

FAMILIES = ("mistral_swa", "qwen2", "qwen3", "gemma2", "gemma3")
NUM_NEW = 24
WINDOW = 16
"""Of the recipes that have one."""

QWEN_WINDOWS = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}
MIXED_TYPES = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
ODD_SIZES = {"vocab_size": 257, "intermediate_size": 135}
"""No whole vectors: the last elements of a tensor go another way through most kernels."""

pytestmark = [pytest.mark.exact, pytest.mark.usefixtures("one_thread")]


CUTS = (
    Cut(1, 16),
    Cut(7, 1),
    Cut(8, 4),  # no padding rows: what lies behind the last whole vector is a token's
    Cut(7, 64),
    Cut(7, 16, threads=2),
    Cut(64, 16),
    Cut(64, 1, threads=2),
    Cut(PROMPT_LEN, 64, threads=2),
    Cut(1, 16, has_strangers=True),
    Cut(7, 16, has_strangers=True),
    Cut(64, 64, threads=2, has_strangers=True),
)


def assert_equals_transformers(saved: Saved) -> None:
    config, decoder = read_model(saved.directory)
    prompt = long_prompt()
    assert worst(run_logits(config, decoder, prompt), reference_logits(saved, prompt)) <= TOLERANCE


def read_config(name: str, changed: Mapping[str, object]) -> ModelConfig:
    return read_blueprint(HfConfig("tiny", {**recipe_config(name), **changed}, {})).config


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
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("mistral_swa", {"sliding_window": None, "tie_word_embeddings": True}),
        ("mistral_swa", {"sliding_window": 1, "rms_norm_eps": 1e-3}),
        ("mistral_swa", {"sliding_window": 65, "num_key_value_heads": 1, "head_dim": 32}),
        ("mistral_swa", {"sliding_window": 4096}),
        ("qwen2", {"tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
        ("qwen2", QWEN_WINDOWS),
        ("qwen2", {**QWEN_WINDOWS, "max_window_layers": 0}),
        ("qwen2", {**QWEN_WINDOWS, "max_window_layers": 4}),
        ("qwen2", {**QWEN_WINDOWS, "layer_types": MIXED_TYPES}),
        ("qwen2", {"sliding_window": WINDOW, "max_window_layers": 2}),
        ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
        ("qwen3", {**QWEN_WINDOWS, "num_key_value_heads": 1, "head_dim": 32, "rms_norm_eps": 1e-2}),
        ("gemma2", {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
        ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
        ("gemma2", {"tie_word_embeddings": True, "query_pre_attn_scalar": 64, "attention_bias": True}),
        ("gemma2", {"layer_types": MIXED_TYPES, "sliding_window": 7, **ODD_SIZES}),
        ("gemma3", {"tie_word_embeddings": True, "query_pre_attn_scalar": 64, "attention_bias": True}),
        ("gemma3", {"layer_types": None, "sliding_window": 7, "rms_norm_eps": 1e-2}),
        ("gemma3", {"final_logit_softcapping": 3.0, **ODD_SIZES}),
        ("gemma3", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_theta": 500.0}),
        ("gemma3", {"rope_local_base_freq": 50.0, "layer_types": ["sliding_attention"] * 6}),
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
        ("mistral_swa", {}),
        ("qwen2", QWEN_WINDOWS),
        ("qwen3", {"num_key_value_heads": 1, "intermediate_size": 135}),
        ("gemma2", {**ODD_SIZES, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
        ("gemma3", {**ODD_SIZES, "final_logit_softcapping": 3.0}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
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


@pytest.mark.parametrize("gate", [silu_and_mul, gelu_tanh_and_mul])
@pytest.mark.parametrize("size", [1, 135, 1024, 2049])
def test_gate_when_rows_are_cut_then_equal_bit_for_bit(gate: Gate, size: int) -> None:
    gate_up = 4 * torch.randn(200, 2 * size, generator=torch.Generator().manual_seed(2))
    expected = gate(gate_up)
    for threads, num_rows in itertools.product((1, 2), (1, 3, 8, 33, 64)):
        torch.set_num_threads(threads)
        for start in range(0, len(gate_up), num_rows):
            rows = gate_up[start : start + num_rows].clone()
            assert torch.equal(gate(rows), expected[start : start + num_rows]), f"{threads} {num_rows} {start}"


def test_gelu_when_values_are_far_out_then_finite_and_as_torch_has_it() -> None:
    gate = torch.tensor([-3e38, -1e30, -1e4, -12.0, -3.0, -1e-3, 0.0, 1e-30, 0.5, 3.0, 1e4, 1e30, 3e38])
    values = gelu_tanh_and_mul(torch.stack((gate, torch.ones_like(gate)), dim=-1))[:, 0]
    torch.testing.assert_close(values, functional.gelu(gate.double(), approximate="tanh").float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["mistral_swa", "gemma2", "gemma3"])
@pytest.mark.parametrize("window", [WINDOW - 1, WINDOW, WINDOW + 1])
def test_window_when_off_by_one_then_other_logits_behind_the_first_window(
    tmp_path: Path, name: str, window: int
) -> None:
    saved = save_shaken(name, tmp_path)
    config, decoder = read_model(tmp_path)
    assert config.window == WINDOW
    prompt = long_prompt()
    expected = reference_logits(saved, prompt)
    logits = run_logits(replace(config, window=window), decoder, prompt)
    inside = min(window, WINDOW)
    assert worst(logits[:inside], expected[:inside]) <= TOLERANCE
    assert (worst(logits[inside:], expected[inside:]) <= TOLERANCE) == (window == WINDOW)


@pytest.mark.parametrize(
    ("rope", "theta"),
    [({}, 10_000.0), ({"rope_local_base_freq": 50.0}, 50.0)],
    ids=["as gemma 3 has it", "another local theta"],
)
def test_gemma3_when_its_file_is_of_the_older_form_then_is_the_same_model(
    tmp_path: Path, rope: dict[str, object], theta: float
) -> None:
    saved = save_shaken("gemma3", tmp_path, {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, **rope})
    path = tmp_path / "config.json"
    keys = json.loads(path.read_text(encoding="utf-8"))
    assert keys.pop("rope_parameters")["sliding_attention"]["rope_theta"] == theta
    del keys["layer_types"]
    keys |= {"sliding_window_pattern": 3, "rope_theta": 1_000_000.0, **rope}
    keys["rope_scaling"] = {"type": "linear", "factor": 8.0}
    path.write_text(json.dumps(keys), encoding="utf-8")
    assert_equals_transformers(saved)


@pytest.mark.parametrize(
    ("name", "changed", "kinds"),
    [
        ("mistral_swa", {}, "SSSS"),
        ("mistral_swa", {"sliding_window": None}, "FFFF"),
        ("qwen2", {}, "FFFF"),
        ("qwen3", QWEN_WINDOWS, "FFSS"),
        ("gemma2", {}, "SFSF"),
        ("gemma3", {}, "SSFSSF"),
        ("gemma3", {"layer_types": None}, "SSSSSF"),
        ("gemma3", {"layer_types": None, "sliding_window_pattern": 2}, "SFSFSF"),
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


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
@pytest.mark.parametrize("cap", [0.0, 0, -5.0, float("nan"), float("inf"), True, "30"])
def test_soft_cap_when_it_is_no_positive_finite_number_then_refused_by_name(name: str, cap: object) -> None:
    with pytest.raises(UnsupportedModelError, match="final_logit_softcapping"):
        read_config(name, {"final_logit_softcapping": cap})
    if name == "gemma2":
        with pytest.raises(UnsupportedModelError, match="attn_logit_softcapping"):
            read_config(name, {"attn_logit_softcapping": cap})


@pytest.mark.parametrize(
    ("name", "changed", "named"),
    [
        ("mistral_swa", {"layer_types": MIXED_TYPES}, "layer_types"),
        ("mistral_swa", {"hidden_act": "gelu"}, "hidden_act"),
        ("mistral_swa", {"attention_bias": True}, "attention_bias"),
        ("mistral_swa", {"sliding_window": 0}, "sliding_window"),
        ("qwen2", {"layer_types": MIXED_TYPES}, "sliding_window"),
        ("qwen2", {"layer_types": ["full_attention"] * 3}, "layer_types"),
        ("qwen2", {"layer_types": ["full_attention"] * 3 + ["chunked_attention"]}, "chunked_attention"),
        ("qwen2", {"use_mrope": True}, "use_mrope"),
        ("qwen3", {"hidden_act": "relu"}, "hidden_act"),
        ("gemma2", {"sliding_window": None}, "sliding_window"),
        ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("gemma3", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}, "sliding_attention"),
        ("gemma3", {"model_type": "gemma3"}, "gemma3"),
    ],
    ids=str,
)
def test_option_when_not_implemented_then_refused_by_name(name: str, changed: dict[str, object], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        read_config(name, changed)
