"""Gemma 2: every other layer attends to a window, soft caps, norms in front of and behind each part of a layer."""

import math
from dataclasses import replace

from engine.executor.hf_config import HfConfig
from engine.executor.layers.attention import AttentionSpec
from engine.executor.models.blueprint import Blueprint
from engine.executor.models.layer_types import of_kinds, read_kinds, read_window
from engine.executor.models.pre_norm import LayerNorms, PreNorm, dense, plain_attention, pre_norm
from engine.executor.norm import gelu_tanh_and_mul

_WINDOW = 4096
_SCORE_CAP = 50.0
_LOGIT_CAP = 30.0
"""Where a configuration says nothing of them."""
_NORMS = LayerNorms(
    before_attention="input_layernorm",
    after_attention="post_attention_layernorm",
    before_feed_forward="pre_feedforward_layernorm",
    after_feed_forward="post_feedforward_layernorm",
)


def read(hf: HfConfig) -> Blueprint:
    window = read_window(hf, _WINDOW)
    kinds = read_kinds(hf, window, lambda layer: layer % 2 == 0)
    spec = replace(
        gemma_attention(hf, plain_attention(hf)), soft_cap=_read_cap(hf, "attn_logit_softcapping", _SCORE_CAP)
    )
    return gemma(
        hf, of_kinds(spec, kinds), window=window, logit_cap=_read_cap(hf, "final_logit_softcapping", _LOGIT_CAP)
    )


def gemma(
    hf: HfConfig, attention: tuple[AttentionSpec, ...], *, window: int | None, logit_cap: float | None
) -> Blueprint:
    """What Gemma 2 and Gemma 3 have in common."""
    hf.require(hidden_activation="gelu_pytorch_tanh", use_bidirectional_attention=False)
    form = PreNorm(
        attention=attention,
        take_feed_forward=dense(hf, gelu_tanh_and_mul),
        is_tied=hf.flag("tie_word_embeddings", default=True),
        window=window,
        norms=_NORMS,
        is_norm_offset=True,
        embedding_scale=math.sqrt(hf.count("hidden_size")),
        logit_cap=logit_cap,
    )
    return pre_norm(hf, form)


def gemma_attention(hf: HfConfig, spec: AttentionSpec) -> AttentionSpec:
    """Scores are scaled by a size of their own, not by the head's."""
    has_bias = hf.flag("attention_bias", default=False)
    scale = hf.number("query_pre_attn_scalar", 256.0) ** -0.5
    return replace(spec, scale=scale, has_bias=has_bias, has_output_bias=has_bias)


def _read_cap(hf: HfConfig, key: str, default: float) -> float | None:
    """`default` where the key is absent, no cap where it is null. Raises UnsupportedModelError unless positive."""
    return hf.number_or_none(key) if key in hf.keys else default
