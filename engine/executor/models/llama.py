"""Llama: pre-norm layers, grouped-query attention, a SiLU gate; biases where the configuration asks for them."""

from dataclasses import replace

from engine.executor.hf_config import HfConfig
from engine.executor.models.blueprint import Blueprint
from engine.executor.models.pre_norm import PreNorm, dense, plain_attention, pre_norm


def read(hf: HfConfig) -> Blueprint:
    hf.require(hidden_act="silu", sliding_window=None, layer_types=None)
    has_bias = hf.flag("attention_bias", default=False)
    spec = replace(plain_attention(hf), has_bias=has_bias, has_output_bias=has_bias)
    return pre_norm(
        hf,
        PreNorm(
            attention=(spec,) * hf.count("num_hidden_layers"),
            take_feed_forward=dense(hf, has_bias=hf.flag("mlp_bias", default=False)),
            is_tied=hf.flag("tie_word_embeddings", default=False),
        ),
    )
