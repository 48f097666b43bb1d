"""Nemotron-H: one mixer a layer, which is a Mamba2, an attention that knows no positions, or a plain feed-forward."""

import math
from functools import partial

from engine.executor.decoder import Block, Decoder, Mixer
from engine.executor.hf_config import HfConfig
from engine.executor.layers.attention import AttentionSpec, take_attention
from engine.executor.layers.mamba2 import GatedNorm, Mamba2Spec, take_mamba2
from engine.executor.layers.plain_feed_forward import take_squared_relu
from engine.executor.model_config import ModelConfig, UnsupportedModelError
from engine.executor.models.blueprint import Blueprint, model_config, take_blocks, take_head
from engine.executor.models.mamba_options import numbered
from engine.executor.models.pre_norm import unturned_attention
from engine.executor.norm import take_norm
from engine.executor.tensors import Progress, Tensors

_MAMBA, _ATTENTION, _FEED_FORWARD = "linear_attention", "full_attention", "mlp"
_OLD_NAMES = {"mamba": _MAMBA, "attention": _ATTENTION}
_LETTERS = {"M": _MAMBA, "*": _ATTENTION, "-": _FEED_FORWARD, "E": "moe"}
"""Of `hybrid_override_pattern`."""


def read(hf: HfConfig) -> Blueprint:
    hf.require(
        mlp_hidden_act="relu2",
        mamba_hidden_act="silu",
        attention_bias=False,
        mamba_proj_bias=False,
        sliding_window=None,
        num_nextn_predict_layers=0,
        tie_word_embeddings=False,
        mamba_n_groups=None,
        mamba_d_conv=None,
        mamba_conv_bias=None,
        mamba_dt_min=None,
    )
    layer_types = _layer_types(hf)
    attention = unturned_attention(hf)
    mamba = _mamba2(hf)
    config = model_config(
        hf,
        (attention.kv_layer,) * layer_types.count(_ATTENTION),
        state_layers=(mamba.state_layer,) * layer_types.count(_MAMBA),
    )
    return Blueprint(config, partial(_build, hf, config, layer_types, attention, mamba))


def _layer_types(hf: HfConfig) -> tuple[str, ...]:
    told = hf.texts("layers_block_type") or hf.texts("layer_types")
    if told is None:
        told = tuple(_LETTERS.get(letter, letter) for letter in hf.text("hybrid_override_pattern", ""))
    if not told:
        raise UnsupportedModelError("neither layers_block_type nor hybrid_override_pattern tells of layers")
    layer_types = tuple(_OLD_NAMES.get(name, name) for name in told)
    known = (_MAMBA, _ATTENTION, _FEED_FORWARD)
    unknown = sorted(set(layer_types) - set(known))
    if unknown:
        raise UnsupportedModelError(f"layer type {unknown[0]!r} is not implemented; known are {', '.join(known)}")
    return layer_types


def _mamba2(hf: HfConfig) -> Mamba2Spec:
    has_bias = hf.flag("use_bias", default=False)
    return Mamba2Spec(
        num_heads=hf.count("mamba_num_heads"),
        head_dim=hf.count("mamba_head_dim"),
        state_size=hf.count("ssm_state_size"),
        num_groups=hf.count("n_groups"),
        kernel_size=hf.count("conv_kernel", 4),
        norm=GatedNorm(_norm_eps(hf)),
        # As transformers has it, whatever `time_step_limit` says.
        time_step_min=hf.number("time_step_min", 0.001),
        time_step_max=math.inf,
        has_conv_bias=hf.flag("use_conv_bias", default=True),
        has_input_bias=has_bias,
        has_output_bias=has_bias,
    )


def _norm_eps(hf: HfConfig) -> float:
    return hf.number("layer_norm_epsilon", 1e-5)


def _build(
    hf: HfConfig,
    config: ModelConfig,
    layer_types: tuple[str, ...],
    attention: AttentionSpec,
    mamba: Mamba2Spec,
    tensors: Tensors,
    progress: Progress,
) -> Decoder:
    hidden, eps, numbers = config.hidden_size, _norm_eps(hf), numbered(layer_types)
    # As published, or as transformers names them.
    root = "backbone" if "backbone.embeddings.weight" in tensors else "model"

    def take_mixer(prefix: str, layer: int) -> Mixer:
        match layer_types[layer]:
            case "linear_attention":
                return take_mamba2(tensors, prefix, numbers[layer], mamba, hidden)
            case "full_attention":
                return take_attention(tensors, prefix, numbers[layer], attention, hidden)
            case _:
                size, has_bias = hf.count("intermediate_size"), hf.flag("mlp_bias", default=False)
                return take_squared_relu(tensors, prefix, hidden, size, has_bias=has_bias)

    def take_layer(layer: int) -> tuple[Block, ...]:
        prefix = f"{root}.layers.{layer}"
        return (Block(take_norm(tensors, f"{prefix}.norm", hidden, eps), (take_mixer(f"{prefix}.mixer", layer),)),)

    embedding = tensors.take(f"{root}.embeddings.weight", config.vocab_size, hidden)
    return Decoder(
        embedding=embedding,
        blocks=take_blocks(len(layer_types), take_layer, progress),
        output_norm=take_norm(tensors, f"{root}.norm_f", hidden, eps),
        head=take_head(tensors, embedding, is_tied=False),
    )
