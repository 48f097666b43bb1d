"""Qwen 3 MoE: Qwen 3's attention, and a mixture of experts in each layer that is not asked to be dense."""

from dataclasses import replace

from engine.core.ownership import PoolKind
from engine.executor.decoder import Mixer
from engine.executor.hf_config import HfConfig
from engine.executor.layers.moe import MoeSpec, share_of_all, share_of_picked, take_moe
from engine.executor.model_config import UnsupportedModelError
from engine.executor.models.blueprint import Blueprint
from engine.executor.models.layer_types import of_kinds, read_window
from engine.executor.models.pre_norm import PreNorm, TakeFeedForward, dense, pre_norm
from engine.executor.models.qwen3 import qwen3_attention
from engine.executor.tensors import Tensors

_DEFAULTS: dict[str, object] = {"num_key_value_heads": 4, "intermediate_size": 6144}
_WINDOW = 4096


def read(hf: HfConfig) -> Blueprint:
    """With `use_sliding_window` all layers have one: `max_window_layers` is no key of this family."""
    hf = replace(hf, keys=_DEFAULTS | hf.keys)
    hf.require(hidden_act="silu", layer_types=None)
    window = read_window(hf, _WINDOW) if hf.flag("use_sliding_window", default=False) else None
    kind = PoolKind.FULL if window is None else PoolKind.SWA
    return pre_norm(
        hf,
        PreNorm(
            attention=of_kinds(qwen3_attention(hf), (kind,) * hf.count("num_hidden_layers")),
            take_feed_forward=_feed_forward(hf),
            is_tied=hf.flag("tie_word_embeddings", default=False),
            window=window,
        ),
    )


def _feed_forward(hf: HfConfig) -> TakeFeedForward:
    hidden, take_dense = hf.count("hidden_size"), dense(hf)
    sparse_step, dense_layers = hf.count("decoder_sparse_step", 1), _dense_layers(hf)
    spec = MoeSpec(
        num_experts=hf.count("num_experts", hf.count("num_local_experts", 128)),
        top_k=hf.count("num_experts_per_tok", 8),
        size=hf.count("moe_intermediate_size", 768),
        score=share_of_picked if hf.flag("norm_topk_prob", default=False) else share_of_all,
    )

    def take(tensors: Tensors, prefix: str, layer: int) -> Mixer:
        if layer in dense_layers or (layer + 1) % sparse_step:
            return take_dense(tensors, prefix, layer)
        return take_moe(tensors, f"{prefix}.mlp", hidden, spec)

    return take


def _dense_layers(hf: HfConfig) -> frozenset[int]:
    told = hf.keys.get("mlp_only_layers") or []
    if not isinstance(told, list) or not all(type(layer) is int for layer in told):
        raise UnsupportedModelError(f"mlp_only_layers is {told!r}, not a list of layers")
    return frozenset(told)
