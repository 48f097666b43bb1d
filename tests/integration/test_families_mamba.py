"""Bamba, Granite 4 hybrid, Falcon-H1, Nemotron-H: what transformers computes, and the same bits however tokens are
cut. Transformers scans in chunks (of 16 tokens here), so its last bits are others."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

from engine.core.ownership import PoolKind
from engine.executor.hf_config import HfConfig
from engine.executor.model_config import ModelConfig, UnsupportedModelError
from engine.executor.models.registry import read_blueprint
from tests.kit.cuts import PROMPT_LEN, Cut, logits_cut, long_prompt, save_shaken
from tests.kit.model_rig import read_model, run_logits
from tests.kit.recipes import (
    TOLERANCE,
    Saved,
    recipe_config,
    recipe_prompt,
    reference_ids,
    reference_logits,
)

FAMILIES = ("bamba", "granite_hybrid", "falcon_h1", "nemotron_h")
NUM_NEW = 24

EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 48}
BIASES = {"attention_bias": True, "mamba_proj_bias": True}
MULTIPLIERS = {
    "embedding_multiplier": 1.7,
    "lm_head_multiplier": 0.6,
    "mlp_multipliers": [0.7, 1.3],
    "key_multiplier": 0.8,
    "attention_in_multiplier": 1.2,
    "attention_out_multiplier": 0.9,
    "ssm_in_multiplier": 1.1,
    "ssm_out_multiplier": 0.75,
    "ssm_multipliers": [0.9, 1.2, 0.8, 1.3, 0.5],
}
ODD_SIZES = {
    "vocab_size": 257,
    "intermediate_size": 135,
    "mamba_d_ssm": 33,
    "mamba_n_heads": 3,
    "mamba_d_head": 11,
    "mamba_d_state": 7,
    "mamba_d_conv": 3,
}
"""No whole vectors: the last elements of a tensor go another way through most kernels."""

pytestmark = [pytest.mark.exact, pytest.mark.usefixtures("one_thread")]


CUTS = (
    Cut(1, 16),
    Cut(1, 1, threads=2, num_tokens=9),
    Cut(7, 1),
    Cut(7, 64, threads=2, num_tokens=31),
    Cut(64, 16),
    Cut(64, 1, threads=2),
    Cut(PROMPT_LEN, 64, threads=2),
    Cut(1, 16, has_strangers=True),
    Cut(7, 16, has_strangers=True),
    Cut(5, 16, threads=2, has_strangers=True, num_tokens=17),
    Cut(64, 64, has_strangers=True),
)


def assert_equals_transformers(saved: Saved, prompt: Sequence[int]) -> torch.Tensor:
    """Returns the logits."""
    expected = reference_logits(saved, prompt)
    logits = run_logits(*read_model(saved.directory), prompt)
    assert (logits - expected).abs().max() <= TOLERANCE * expected.std()
    return logits


def read_config(name: str, changed: Mapping[str, object]) -> ModelConfig:
    return read_blueprint(HfConfig("tiny", {**recipe_config(name), **changed}, {})).config


@pytest.mark.parametrize("name", FAMILIES)
def test_family_when_read_as_its_recipe_says_then_continues_as_transformers_does(tmp_path: Path, name: str) -> None:
    saved = save_shaken(name, tmp_path)
    prompt = recipe_prompt()
    ids = reference_ids(saved, prompt, NUM_NEW)
    logits = assert_equals_transformers(saved, [*prompt, *ids])
    assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == ids


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("bamba", {"mamba_n_groups": 1, "mamba_conv_bias": False, "tie_word_embeddings": True}),
        ("bamba", {**BIASES, "mlp_bias": True, "rms_norm_eps": 1e-2, "mamba_d_conv": 2}),
        ("bamba", {"time_step_limit": [1.2, 1.5], "num_key_value_heads": 4, "mamba_d_head": "auto"}),
        ("bamba", {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 1.0}}),
        ("bamba", {"rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 4.0}}),
        ("bamba", {"attn_layer_indices": None}),
        ("granite_hybrid", {**BIASES, "mamba_n_groups": 4, "tie_word_embeddings": True, "logits_scaling": 3.0}),
        ("granite_hybrid", {"position_embedding_type": "rope", "residual_multiplier": 0.3, "rms_norm_eps": 1e-3}),
        ("granite_hybrid", EXPERTS),
        ("falcon_h1", MULTIPLIERS),
        ("falcon_h1", {"mamba_rms_norm": True, "mamba_n_groups": 2, **MULTIPLIERS}),
        ("falcon_h1", {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_n_groups": 4}),
        ("falcon_h1", {**BIASES, **MULTIPLIERS, "mlp_bias": True, "projectors_bias": True}),
        ("falcon_h1", {"mamba_d_ssm": None, "mamba_conv_bias": False, "tie_word_embeddings": True}),
        ("falcon_h1", {**ODD_SIZES, "time_step_limit": [0.0, 1.0]}),
        ("nemotron_h", {"use_bias": True, "mlp_bias": True, "layer_norm_epsilon": 1e-2, "n_groups": 8}),
        ("nemotron_h", {"use_conv_bias": False, "time_step_min": 0.05, "num_key_value_heads": 1}),
        ("nemotron_h", {"layers_block_type": None, "hybrid_override_pattern": "-M*-MM"}),
    ],
    ids=str,
)
def test_option_when_set_then_is_followed_as_transformers_follows_it(
    tmp_path: Path, name: str, changed: dict[str, object]
) -> None:
    assert_equals_transformers(save_shaken(name, tmp_path, changed), long_prompt())


@pytest.mark.parametrize(
    ("name", "changed"),
    [*((name, {}) for name in FAMILIES), ("falcon_h1", ODD_SIZES), ("granite_hybrid", EXPERTS)],
    ids=str,
)
def test_logits_when_the_tokens_are_cut_in_any_way_then_equal_bit_for_bit(
    tmp_path: Path, name: str, changed: dict[str, object]
) -> None:
    save_shaken(name, tmp_path, changed)
    config, decoder = read_model(tmp_path)
    expected = run_logits(config, decoder, long_prompt())
    different = [
        cut
        for cut in CUTS
        if not torch.equal(logits_cut(config, decoder, long_prompt(), cut), expected[: cut.num_tokens])
    ]
    assert not different


def test_nemotron_when_its_files_use_the_names_and_the_pattern_of_either_time_then_is_the_same(tmp_path: Path) -> None:
    saved = save_shaken("nemotron_h", tmp_path)
    expected = run_logits(*read_model(tmp_path), recipe_prompt())
    held = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    del held["layers_block_type"]
    held |= {"hybrid_override_pattern": "M*M-", "num_hidden_layers": 4, "time_step_limit": [0.0, float("inf")]}
    (tmp_path / "config.json").write_text(json.dumps(held), encoding="utf-8")
    saved.model.save_pretrained(tmp_path / "own", save_original_format=False)
    (tmp_path / "own" / "config.json").write_text(json.dumps(held), encoding="utf-8")
    for directory in (tmp_path, tmp_path / "own"):
        assert torch.equal(run_logits(*read_model(directory), recipe_prompt()), expected)


def test_config_when_read_then_tells_pools_and_the_shapes_of_states() -> None:
    config = read_config("bamba", {"attn_layer_indices": [2], "mamba_d_state": 24})
    assert config.pool_kinds == (PoolKind.FULL, PoolKind.MAMBA)
    assert len(config.kv_layers) == 1
    assert [layer.conv_shape for layer in config.state_layers] == [(128 + 2 * 2 * 24, 3)] * 3
    assert [layer.ssm_shape for layer in config.state_layers] == [(8, 16, 24)] * 3
    assert len(read_config("falcon_h1", {}).kv_layers) == len(read_config("falcon_h1", {}).state_layers) == 4


@pytest.mark.parametrize(
    ("name", "changed", "told"),
    [
        ("bamba", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not implemented"),
        ("bamba", {"attn_layer_indices": [4]}, r"attn_layer_indices \[4\] are not numbers of 4 layers"),
        ("bamba", {"mamba_d_head": 8}, "mamba_d_head 8 is not implemented; known is 16"),
        ("bamba", {"mamba_n_heads": 7}, "an inner size of 128 does not divide by 7 Mamba heads"),
        ("bamba", {"mamba_n_groups": 3}, "8 Mamba heads do not divide by 3 groups"),
        ("bamba", {"time_step_limit": [0.1]}, r"time_step_limit is \[0.1\]"),
        ("bamba", {"time_step_limit": [2.0, 1.0]}, r"time_step_limit is \[2.0, 1.0\]"),
        ("bamba", {"rope_parameters": {"partial_rotary_factor": 1.5}}, "partial_rotary_factor is 1.5"),
        ("bamba", {"rope_parameters": "linear"}, "rope_parameters is 'linear', not an object"),
        ("granite_hybrid", {"layer_types": ["mamba"]}, "layer_types has 1 layers, num_hidden_layers says 4"),
        ("granite_hybrid", {"layer_types": ["mamba"] * 3 + ["conv"]}, "layer type 'conv' is not implemented"),
        ("granite_hybrid", {"position_embedding_type": "alibi"}, "position_embedding_type 'alibi' is not implemented"),
        ("falcon_h1", {"ssm_multipliers": [1.0, 2.0]}, r"ssm_multipliers is \[1.0, 2.0\], not 5 numbers"),
        ("nemotron_h", {"layers_block_type": ["mamba", "moe"]}, "layer type 'moe' is not implemented"),
        ("nemotron_h", {"layers_block_type": None, "hybrid_override_pattern": "ME"}, "layer type 'moe' is not"),
        ("nemotron_h", {"layers_block_type": None, "hybrid_override_pattern": None}, "tells of layers"),
        ("nemotron_h", {"mlp_hidden_act": "silu"}, "mlp_hidden_act 'silu' is not implemented"),
        ("nemotron_h", {"tie_word_embeddings": True}, "tie_word_embeddings True is not implemented"),
        ("nemotron_h", {"num_nextn_predict_layers": 1}, "num_nextn_predict_layers 1 is not implemented"),
        ("nemotron_h", {"mamba_n_groups": 1}, "mamba_n_groups 1 is not implemented"),
    ],
)
def test_option_when_it_is_not_implemented_then_is_refused_by_name(
    name: str, changed: dict[str, object], told: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=told):
        read_config(name, changed)
