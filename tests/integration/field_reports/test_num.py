"""NUM: the numbers of a model are those that its configuration asks for, or it is not loaded."""

import json
import math

import pytest
import torch

from engine.core.window import window_start
from engine.executor.hf_config import HfConfig
from engine.executor.model_config import UnsupportedModelError
from engine.executor.models.blueprint import Blueprint
from engine.executor.models.registry import read_blueprint
from engine.executor.tensors import TensorReader, Tensors
from tests.kit.model_rig import run_logits
from tests.kit.tiny_llama import FFN_SIZE, HIDDEN_SIZE, NUM_LAYERS, random_tensors, tiny_llama_shapes

VOCAB_SIZE = 64
WINDOW = 8
KEYS: dict[str, object] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": FFN_SIZE,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CAPS = ("attn_logit_softcapping", "final_logit_softcapping")

pytestmark = pytest.mark.usefixtures("one_thread")


def read(model_type: str, **changed: object) -> Blueprint:
    """Raises UnsupportedModelError."""
    return read_blueprint(HfConfig("tiny", {**KEYS, "model_type": model_type, **changed}, {}))


@pytest.mark.parametrize("chunk_len", [1, 3, 40])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_token_when_changed_then_it_is_felt_as_far_as_windows_of_8_reach_and_in_no_bit_beyond(
    chunk_len: int, page_size: int
) -> None:
    """NUM-01 (vllm-project/vllm#3385): each of two layers carries it 7 positions on; with 9 keys it were 8."""
    blueprint = read("mistral", sliding_window=WINDOW)
    readers: dict[str, TensorReader] = {
        name: array.copy for name, array in random_tensors(tiny_llama_shapes(VOCAB_SIZE), 0).items()
    }
    decoder = blueprint.build(Tensors("tiny", readers), lambda _fraction, _text: None)
    ids = [3 + 7 * place % 50 for place in range(40)]
    for changed in (0, 5, 16):
        other = [*ids[:changed], ids[changed] + 1, *ids[changed + 1 :]]
        plain, felt = (
            run_logits(blueprint.config, decoder, each, chunk_len=chunk_len, page_size=page_size)
            for each in (ids, other)
        )
        places = [place for place in range(40) if not torch.equal(plain[place], felt[place])]
        assert places == list(range(changed, changed + NUM_LAYERS * (WINDOW - 1) + 1))


def test_window_when_asked_where_it_starts_then_it_has_its_own_position_and_7_before_it() -> None:
    """NUM-01 (vllm-project/vllm#3385): what masks, releases and matches asks this one function."""
    starts = [window_start(position, WINDOW) for position in range(20)]
    assert starts == [0] * 8 + list(range(1, 13))
    assert [window_start(position, 1) for position in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize(
    ("told", "named"),
    [
        ({"rope_type": "unheard-of", "factor": 2.0}, "unheard-of"),
        ({"type": "unheard-of", "factor": 2.0}, "unheard-of"),
        ({"rope_type": "linear"}, "factor"),
        ({"type": "linear"}, "factor"),
        ({"rope_type": "linear", "factor": 0.0}, "factor"),
        ({"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}, "low_freq_factor"),
    ],
)
def test_rope_when_its_type_is_unknown_or_a_field_is_missing_then_refused_by_name(
    key: str, told: dict[str, object], named: str
) -> None:
    """NUM-05 (lablup/mlxcel#1355): under the name rope_type and under the name type."""
    with pytest.raises(UnsupportedModelError, match=named):
        read("llama", **{key: told})


@pytest.mark.parametrize("key", CAPS)
@pytest.mark.parametrize("cap", [0.0, -5.0, math.nan, math.inf, -math.inf, True, "50"])
def test_soft_cap_when_no_positive_finite_number_then_refused_by_name(key: str, cap: object) -> None:
    """NUM-09 (NVIDIA/Megatron-LM#6590): none of them means off, and none of them flattens a score."""
    told = json.loads(json.dumps({key: cap}))
    with pytest.raises(UnsupportedModelError, match=key):
        read("gemma2", **told)


@pytest.mark.parametrize("key", CAPS)
@pytest.mark.parametrize("cap", [None, 1e-3, 50, 50.0])
def test_soft_cap_when_positive_or_none_then_read(key: str, cap: float | None) -> None:
    """NUM-09 (NVIDIA/Megatron-LM#6590)."""
    assert read("gemma2", **{key: cap}).config.window == 4096
