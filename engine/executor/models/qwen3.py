"""Qwen 3: Qwen 2's layers with a norm for each head of q and k, and biases only where asked for."""

from dataclasses import replace

from engine.executor.hf_config import HfConfig
from engine.executor.layers.attention import AttentionSpec
from engine.executor.models.blueprint import Blueprint
from engine.executor.models.layer_types import of_kinds
from engine.executor.models.pre_norm import PreNorm, dense, norm_eps, plain_attention, pre_norm
from engine.executor.models.qwen2 import read_qwen_kinds


def read(hf: HfConfig) -> Blueprint:
    hf.require(hidden_act="silu")
    window, kinds = read_qwen_kinds(hf)
    return pre_norm(
        hf,
        PreNorm(
            attention=of_kinds(qwen3_attention(hf), kinds),
            take_feed_forward=dense(hf),
            is_tied=hf.flag("tie_word_embeddings", default=False),
            window=window,
        ),
    )


def qwen3_attention(hf: HfConfig) -> AttentionSpec:
    has_bias = hf.flag("attention_bias", default=False)
    return replace(plain_attention(hf), has_bias=has_bias, has_output_bias=has_bias, head_norm_eps=norm_eps(hf))
