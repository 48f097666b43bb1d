"""Mistral: Llama's layers, all of which attend to a window where there is one."""

from engine.core.ownership import PoolKind
from engine.executor.hf_config import HfConfig
from engine.executor.models.blueprint import Blueprint
from engine.executor.models.layer_types import of_kinds, read_window
from engine.executor.models.pre_norm import PreNorm, dense, plain_attention, pre_norm

_WINDOW = 4096
"""Where a configuration says nothing of windows."""


def read(hf: HfConfig) -> Blueprint:
    hf.require(hidden_act="silu", attention_bias=False, mlp_bias=False, layer_types=None)
    window = read_window(hf, _WINDOW)
    kind = PoolKind.FULL if window is None else PoolKind.SWA
    return pre_norm(
        hf,
        PreNorm(
            attention=of_kinds(plain_attention(hf), (kind,) * hf.count("num_hidden_layers")),
            take_feed_forward=dense(hf),
            is_tied=hf.flag("tie_word_embeddings", default=False),
            window=window,
        ),
    )
