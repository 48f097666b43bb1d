"""Qwen 2 and 2.5: Llama's layers with biases at q, k and v; the later ones may attend to a window."""

from dataclasses import replace

from engine.core.ownership import PoolKind
from engine.executor.hf_config import HfConfig
from engine.executor.models.blueprint import Blueprint
from engine.executor.models.layer_types import of_kinds, read_kinds, read_window
from engine.executor.models.pre_norm import PreNorm, dense, plain_attention, pre_norm

_WINDOW = 4096
_FULL_LAYERS = 28
"""Where a configuration has windows and says nothing of them."""


def read(hf: HfConfig) -> Blueprint:
    hf.require(hidden_act="silu", use_mrope=False)
    window, kinds = read_qwen_kinds(hf)
    return pre_norm(
        hf,
        PreNorm(
            attention=of_kinds(replace(plain_attention(hf), has_bias=True), kinds),
            take_feed_forward=dense(hf),
            is_tied=hf.flag("tie_word_embeddings", default=False),
            window=window,
        ),
    )


def read_qwen_kinds(hf: HfConfig) -> tuple[int | None, tuple[PoolKind, ...]]:
    """The window and each layer's kind: with `use_sliding_window`, layers from `max_window_layers` on have one."""
    window = read_window(hf, _WINDOW) if hf.flag("use_sliding_window", default=False) else None
    first = 0 if hf.keys.get("max_window_layers") == 0 else hf.count("max_window_layers", _FULL_LAYERS)
    return window, read_kinds(hf, window, lambda layer: window is not None and layer >= first)
