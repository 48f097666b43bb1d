"""Gemma 3, text: Gemma 2's layers with norms for the heads of q and k, and other angles in layers with a window."""

from dataclasses import replace

from engine.core.ownership import PoolKind
from engine.executor.hf_config import HfConfig
from engine.executor.model_config import UnsupportedModelError
from engine.executor.models.blueprint import Blueprint
from engine.executor.models.gemma2 import gemma, gemma_attention
from engine.executor.models.layer_types import read_kinds, read_window
from engine.executor.models.pre_norm import norm_eps, unturned_attention
from engine.executor.rope import RopeSpec, RotaryTable

_WINDOW = 4096
_PATTERN = 6
"""One layer in so many is full."""
_FULL_THETA = 1_000_000.0
_SLIDING_THETA = 10_000.0
"""Where a configuration says nothing of them."""
_ROPE_KEYS = {PoolKind.FULL: "full_attention", PoolKind.SWA: "sliding_attention"}


def read(hf: HfConfig) -> Blueprint:
    # The reference leaves a cap of scores out of account, so there is nothing that one could be compared with.
    hf.require(attn_logit_softcapping=None)
    window, pattern = read_window(hf, _WINDOW), hf.count("sliding_window_pattern", _PATTERN)
    kinds = read_kinds(hf, window, lambda layer: (layer + 1) % pattern != 0)
    spec = replace(gemma_attention(hf, unturned_attention(hf)), head_norm_eps=norm_eps(hf), is_head_norm_offset=True)
    of_kind = {
        kind: replace(spec, kind=kind, rotary=RotaryTable(_read_rope(hf, kind, spec.head_dim)))
        for kind in dict.fromkeys(kinds)
    }
    attention = tuple(of_kind[kind] for kind in kinds)
    return gemma(hf, attention, window=window, logit_cap=hf.number_or_none("final_logit_softcapping"))


def _read_rope(hf: HfConfig, kind: PoolKind, head_dim: int) -> RopeSpec:
    """From `rope_parameters` of each type of layer; in older files `rope_theta` and `rope_scaling` are of full layers,
    and `rope_local_base_freq` of those with a window."""
    key, told = _ROPE_KEYS[kind], hf.keys.get("rope_parameters")
    if told is not None:
        hf.require(rope_scaling=None)
        if not isinstance(told, dict) or not isinstance(told.get(key), dict):
            raise UnsupportedModelError(f"rope_parameters without {key!r} are not implemented")
    context_len = hf.count("max_position_embeddings")
    if kind is PoolKind.FULL:
        return hf.rope(head_dim, context_len, key=key, default_theta=_FULL_THETA)
    theta = hf.number("rope_local_base_freq", _SLIDING_THETA)
    local = replace(hf, keys={**hf.keys, "rope_theta": theta, "rope_scaling": None})
    return local.rope(head_dim, context_len, key=key)
