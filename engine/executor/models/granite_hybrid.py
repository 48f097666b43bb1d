"""Granite 4 hybrid: each layer a Mamba2 mixer or an attention, then experts beside one feed-forward that all share."""

from dataclasses import replace
from functools import partial

from engine.executor.decoder import Block, Decoder, Mixer
from engine.executor.hf_config import HfConfig
from engine.executor.layers.attention import AttentionSpec, take_attention
from engine.executor.layers.feed_forward import GatedFeedForward
from engine.executor.layers.mamba2 import GatedNorm, Mamba2Spec, take_mamba2
from engine.executor.layers.moe import Expert, MixtureOfExperts, MoeSpec, softmax_of_picked
from engine.executor.linear import Linear
from engine.executor.model_config import ModelConfig, UnsupportedModelError
from engine.executor.models.blueprint import Blueprint, model_config, take_blocks, take_head
from engine.executor.models.mamba_options import numbered, read_attention_layers, read_mamba2
from engine.executor.models.pre_norm import norm_eps, plain_attention, unturned_attention
from engine.executor.norm import RmsNorm, take_norm
from engine.executor.tensors import Progress, Tensors

_LAYER_TYPES = {"linear_attention": False, "mamba": False, "full_attention": True, "attention": True}
"""Whether it is an attention; `mamba` and `attention` in older files."""


def read(hf: HfConfig) -> Blueprint:
    hf.require(hidden_act="silu")
    has_bias = hf.flag("attention_bias", default=False)
    has_turns = hf.keys.get("position_embedding_type") == "rope"
    if not has_turns:
        hf.require(position_embedding_type="nope")
    attention = replace(
        plain_attention(hf) if has_turns else unturned_attention(hf),
        scale=hf.number("attention_multiplier", 1.0),
        has_bias=has_bias,
        has_output_bias=has_bias,
    )
    mamba = read_mamba2(hf, hf.count("mamba_expand", 2) * hf.count("hidden_size"), GatedNorm(norm_eps(hf)))
    is_attention = _attention_layers(hf)
    config = model_config(
        hf,
        (attention.kv_layer,) * sum(is_attention),
        state_layers=(mamba.state_layer,) * (len(is_attention) - sum(is_attention)),
    )
    return Blueprint(config, partial(_build, hf, config, is_attention, attention, mamba, _experts(hf)))


def _attention_layers(hf: HfConfig) -> tuple[bool, ...]:
    num_layers = hf.count("num_hidden_layers")
    told = hf.texts("layer_types") or hf.texts("layers_block_type") or ("linear_attention",) * num_layers
    if len(told) != num_layers:
        raise UnsupportedModelError(f"layer_types has {len(told)} layers, num_hidden_layers says {num_layers}")
    return read_attention_layers(told, _LAYER_TYPES)


def _experts(hf: HfConfig) -> MoeSpec | None:
    """None for a model without them."""
    if hf.keys.get("num_local_experts") == 0:
        return None
    num_experts, top_k = hf.count("num_local_experts", 8), hf.count("num_experts_per_tok", 2)
    return MoeSpec(num_experts, top_k, hf.count("intermediate_size"), softmax_of_picked)


def _build(
    hf: HfConfig,
    config: ModelConfig,
    is_attention: tuple[bool, ...],
    attention: AttentionSpec,
    mamba: Mamba2Spec,
    experts: MoeSpec | None,
    tensors: Tensors,
    progress: Progress,
) -> Decoder:
    hidden, numbers = config.hidden_size, numbered(is_attention)
    scale = hf.number("residual_multiplier", 1.0)

    def norm(name: str) -> RmsNorm:
        return take_norm(tensors, name, hidden, norm_eps(hf))

    def take_mixer(prefix: str, layer: int) -> Mixer:
        if is_attention[layer]:
            return take_attention(tensors, f"{prefix}.self_attn", numbers[layer], attention, hidden)
        return take_mamba2(tensors, f"{prefix}.mamba", numbers[layer], mamba, hidden)

    def take_feed_forward(prefix: str) -> tuple[Mixer, ...]:
        shared = _take_shared(tensors, f"{prefix}.shared_mlp", hidden, hf.count("shared_intermediate_size"))
        if experts is None:
            return (shared,)
        return _take_experts(tensors, f"{prefix}.block_sparse_moe", hidden, experts), shared

    def take_layer(layer: int) -> tuple[Block, ...]:
        prefix = f"model.layers.{layer}"
        return (
            Block(norm(f"{prefix}.input_layernorm"), (take_mixer(prefix, layer),), scale=scale),
            Block(norm(f"{prefix}.post_attention_layernorm"), take_feed_forward(prefix), scale=scale),
        )

    embedding = tensors.take("model.embed_tokens.weight", config.vocab_size, hidden)
    return Decoder(
        embedding=embedding,
        blocks=take_blocks(len(is_attention), take_layer, progress),
        output_norm=norm("model.norm"),
        head=take_head(tensors, embedding, is_tied=hf.flag("tie_word_embeddings", default=False)),
        embedding_scale=hf.number("embedding_multiplier", 1.0),
        logit_scale=1.0 / hf.number("logits_scaling", 1.0),
    )


def _take_shared(tensors: Tensors, prefix: str, hidden: int, size: int) -> GatedFeedForward:
    gate_up = tensors.take(f"{prefix}.input_linear.weight", 2 * size, hidden)
    return GatedFeedForward(Linear(gate_up), Linear(tensors.take(f"{prefix}.output_linear.weight", hidden, size)))


def _take_experts(tensors: Tensors, prefix: str, hidden: int, spec: MoeSpec) -> MixtureOfExperts:
    gate_up = tensors.take(f"{prefix}.input_linear.weight", spec.num_experts, 2 * spec.size, hidden)
    down = tensors.take(f"{prefix}.output_linear.weight", spec.num_experts, hidden, spec.size)
    experts = tuple(Expert(Linear(pair[0]), Linear(pair[1])) for pair in zip(gate_up, down, strict=True))
    router = Linear(tensors.take(f"{prefix}.router.layer.weight", spec.num_experts, hidden))
    return MixtureOfExperts(spec, router, experts)
