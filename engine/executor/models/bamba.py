"""Bamba: each layer a Mamba2 mixer or an attention, then a feed-forward. Of a head, attention turns a part only."""

from dataclasses import replace
from functools import partial

from engine.executor.decoder import Block, Decoder, Mixer
from engine.executor.hf_config import HfConfig
from engine.executor.layers.attention import AttentionSpec, take_attention
from engine.executor.layers.feed_forward import take_gated
from engine.executor.layers.mamba2 import GatedNorm, Mamba2Spec, take_mamba2
from engine.executor.model_config import ModelConfig, UnsupportedModelError
from engine.executor.models.blueprint import Blueprint, model_config, take_blocks, take_head
from engine.executor.models.mamba_options import numbered, read_mamba2
from engine.executor.models.pre_norm import unturned_attention
from engine.executor.norm import RmsNorm, take_norm
from engine.executor.rope import RotaryTable
from engine.executor.tensors import Progress, Tensors

_TURNED_SHARE = 0.5
"""Of a head, where `rope_parameters` say nothing of it."""


def read(hf: HfConfig) -> Blueprint:
    hf.require(hidden_act="silu")
    eps = hf.number("rms_norm_eps", 1e-5)
    has_bias = hf.flag("attention_bias", default=False)
    is_attention = _attention_layers(hf)
    attention = replace(unturned_attention(hf), has_bias=has_bias, has_output_bias=has_bias)
    rope = hf.rope(attention.head_dim, hf.count("max_position_embeddings"), turned_share=_TURNED_SHARE)
    attention = replace(attention, rotary=RotaryTable(rope))
    mamba = read_mamba2(hf, hf.count("mamba_expand", 2) * hf.count("hidden_size"), GatedNorm(eps))
    config = model_config(
        hf,
        (attention.kv_layer,) * sum(is_attention),
        state_layers=(mamba.state_layer,) * (len(is_attention) - sum(is_attention)),
    )
    return Blueprint(config, partial(_build, hf, config, eps, is_attention, attention, mamba))


def _attention_layers(hf: HfConfig) -> tuple[bool, ...]:
    """Of each layer, whether it is an attention."""
    told = hf.keys.get("attn_layer_indices") or []
    num_layers = hf.count("num_hidden_layers")
    if not isinstance(told, list) or any(not isinstance(layer, int) or not 0 <= layer < num_layers for layer in told):
        raise UnsupportedModelError(f"attn_layer_indices {told!r} are not numbers of {num_layers} layers")
    return tuple(layer in told for layer in range(num_layers))


def _build(
    hf: HfConfig,
    config: ModelConfig,
    eps: float,
    is_attention: tuple[bool, ...],
    attention: AttentionSpec,
    mamba: Mamba2Spec,
    tensors: Tensors,
    progress: Progress,
) -> Decoder:
    hidden, numbers = config.hidden_size, numbered(is_attention)

    def norm(name: str) -> RmsNorm:
        return take_norm(tensors, name, hidden, eps)

    def take_mixer(prefix: str, layer: int) -> Mixer:
        if is_attention[layer]:
            return take_attention(tensors, f"{prefix}.self_attn", numbers[layer], attention, hidden)
        return take_mamba2(tensors, f"{prefix}.mamba", numbers[layer], mamba, hidden)

    def take_layer(layer: int) -> tuple[Block, ...]:
        prefix = f"model.layers.{layer}"
        feed_forward = take_gated(
            tensors,
            f"{prefix}.feed_forward",
            hidden,
            hf.count("intermediate_size"),
            has_bias=hf.flag("mlp_bias", default=False),
        )
        return (
            Block(norm(f"{prefix}.input_layernorm"), (take_mixer(prefix, layer),)),
            Block(norm(f"{prefix}.pre_ff_layernorm"), (feed_forward,)),
        )

    embedding = tensors.take("model.embed_tokens.weight", config.vocab_size, hidden)
    return Decoder(
        embedding=embedding,
        blocks=take_blocks(len(is_attention), take_layer, progress),
        output_norm=norm("model.final_layernorm"),
        head=take_head(tensors, embedding, is_tied=hf.flag("tie_word_embeddings", default=False)),
    )
