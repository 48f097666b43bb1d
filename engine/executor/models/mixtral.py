"""Mixtral: Mistral's layers with a mixture of experts in each."""

from dataclasses import replace

from engine.core.ownership import PoolKind
from engine.executor.decoder import Mixer
from engine.executor.hf_config import HfConfig
from engine.executor.layers.moe import MoeSpec, share_of_picked, take_moe
from engine.executor.models.blueprint import Blueprint
from engine.executor.models.layer_types import of_kinds
from engine.executor.models.pre_norm import PreNorm, TakeFeedForward, plain_attention, pre_norm
from engine.executor.tensors import Tensors

_DEFAULTS: dict[str, object] = {"rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_key_value_heads": 8}
_EXPERT_NAMES = ("w1", "w3", "w2")


def read(hf: HfConfig) -> Blueprint:
    hf = replace(hf, keys=_DEFAULTS | hf.keys)
    hf.require(hidden_act="silu", attention_bias=False, layer_types=None)
    window = None if hf.keys.get("sliding_window") is None else hf.count("sliding_window")
    kind = PoolKind.FULL if window is None else PoolKind.SWA
    return pre_norm(
        hf,
        PreNorm(
            attention=of_kinds(plain_attention(hf), (kind,) * hf.count("num_hidden_layers")),
            take_feed_forward=_experts(hf),
            is_tied=hf.flag("tie_word_embeddings", default=False),
            window=window,
        ),
    )


def _experts(hf: HfConfig) -> TakeFeedForward:
    hidden = hf.count("hidden_size")
    spec = MoeSpec(
        num_experts=hf.count("num_local_experts", 8),
        top_k=hf.count("num_experts_per_tok", 2),
        size=hf.count("intermediate_size"),
        score=share_of_picked,
    )

    def take(tensors: Tensors, prefix: str, _layer: int) -> Mixer:
        # As Mixtral's files have it, else as transformers calls it within.
        published = f"{prefix}.block_sparse_moe"
        name = published if f"{published}.gate.weight" in tensors else f"{prefix}.mlp"
        return take_moe(tensors, name, hidden, spec, _EXPERT_NAMES)

    return take
