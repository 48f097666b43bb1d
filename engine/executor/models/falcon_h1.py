"""Falcon-H1: in each layer an attention and a Mamba2 mixer side by side, with multipliers all over."""

import math
from dataclasses import dataclass, replace
from functools import partial

import torch

from engine.executor.decoder import Block, Decoder, Mixer, Multiplied
from engine.executor.hf_config import HfConfig
from engine.executor.layers.attention import AttentionSpec, take_attention
from engine.executor.layers.feed_forward import take_gated
from engine.executor.layers.mamba2 import GatedNorm, Mamba2Spec, take_mamba2
from engine.executor.model_config import ModelConfig, UnsupportedModelError
from engine.executor.models.blueprint import Blueprint, model_config, take_blocks, take_head
from engine.executor.models.mamba_options import read_mamba2
from engine.executor.models.pre_norm import plain_attention
from engine.executor.norm import RmsNorm, silu_and_mul, take_norm
from engine.executor.tensors import Progress, Tensors


def read(hf: HfConfig) -> Blueprint:
    hf.require(hidden_act="silu")
    attention = plain_attention(hf)
    has_bias = hf.flag("attention_bias", default=False)
    # A key that is turned and then multiplied is what a score is multiplied by.
    key_multiplier = hf.number("key_multiplier", 1.0)
    attention = replace(attention, scale=attention.scale * key_multiplier, has_bias=has_bias, has_output_bias=has_bias)
    mamba = _mamba2(hf)
    num_layers = hf.count("num_hidden_layers")
    config = model_config(hf, (attention.kv_layer,) * num_layers, state_layers=(mamba.state_layer,) * num_layers)
    return Blueprint(config, partial(_build, hf, config, attention, mamba))


@dataclass(frozen=True, slots=True)
class MultipliedGate:
    """silu(multiplier · gate) · up"""

    multiplier: float

    def __call__(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return silu_and_mul(torch.cat((gate * self.multiplier, up), dim=-1))


def _mamba2(hf: HfConfig) -> Mamba2Spec:
    inner_size = hf.count("mamba_d_ssm", hf.count("mamba_expand", 2) * hf.count("hidden_size"))
    norm = None
    if hf.flag("mamba_rms_norm", default=False):
        norm = GatedNorm(_norm_eps(hf), is_before_gate=hf.flag("mamba_norm_before_gate", default=True))
    gate, x, b, c, time_step = _multipliers(hf, "ssm_multipliers", 5)
    return replace(
        read_mamba2(hf, inner_size, norm),
        has_output_bias=hf.flag("projectors_bias", default=False),
        multipliers=(gate, x, b, c, time_step),
    )


def _norm_eps(hf: HfConfig) -> float:
    return hf.number("rms_norm_eps", 1e-5)


def _multipliers(hf: HfConfig, key: str, count: int) -> tuple[float, ...]:
    """A list of `count` numbers; ones where it is absent or null."""
    told = hf.keys.get(key)
    if told is None:
        return (1.0,) * count
    values = told if isinstance(told, list) else []
    found = tuple(float(value) for value in values if isinstance(value, int | float) and math.isfinite(value))
    if len(found) != count or len(values) != count:
        raise UnsupportedModelError(f"{key} is {told!r}, not {count} numbers")
    return found


def _build(
    hf: HfConfig, config: ModelConfig, attention: AttentionSpec, mamba: Mamba2Spec, tensors: Tensors, progress: Progress
) -> Decoder:
    hidden = config.hidden_size
    gate_multiplier, down_multiplier = _multipliers(hf, "mlp_multipliers", 2)

    def norm(name: str) -> RmsNorm:
        return take_norm(tensors, name, hidden, _norm_eps(hf))

    def take_mixers(prefix: str, layer: int) -> tuple[Mixer, Mixer]:
        recurrent = take_mamba2(tensors, f"{prefix}.mamba", layer, mamba, hidden)
        attending = take_attention(tensors, f"{prefix}.self_attn", layer, attention, hidden)
        return (
            Multiplied(hf.number("ssm_in_multiplier", 1.0), recurrent, hf.number("ssm_out_multiplier", 1.0)),
            Multiplied(
                hf.number("attention_in_multiplier", 1.0), attending, hf.number("attention_out_multiplier", 1.0)
            ),
        )

    def take_layer(layer: int) -> tuple[Block, ...]:
        prefix = f"model.layers.{layer}"
        feed_forward = take_gated(
            tensors,
            f"{prefix}.feed_forward",
            hidden,
            hf.count("intermediate_size"),
            MultipliedGate(gate_multiplier),
            has_bias=hf.flag("mlp_bias", default=False),
        )
        return (
            Block(norm(f"{prefix}.input_layernorm"), take_mixers(prefix, layer)),
            Block(norm(f"{prefix}.pre_ff_layernorm"), (feed_forward,), scale=down_multiplier),
        )

    embedding = tensors.take("model.embed_tokens.weight", config.vocab_size, hidden)
    return Decoder(
        embedding=embedding,
        blocks=take_blocks(len(config.kv_layers), take_layer, progress),
        output_norm=norm("model.final_layernorm"),
        head=take_head(tensors, embedding, is_tied=hf.flag("tie_word_embeddings", default=False)),
        embedding_scale=hf.number("embedding_multiplier", 1.0),
        logit_scale=hf.number("lm_head_multiplier", 1.0),
    )
