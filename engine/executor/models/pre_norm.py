"""The layout that most families share: each layer an attention and a feed-forward, each behind a norm of its own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from engine.core.ownership import PoolKind
from engine.executor.decoder import Block, Decoder, Mixer
from engine.executor.hf_config import HfConfig
from engine.executor.layers.attention import AttentionSpec, take_attention
from engine.executor.layers.feed_forward import Gate, take_gated
from engine.executor.model_config import ModelConfig
from engine.executor.models.blueprint import Blueprint, model_config, take_blocks, take_head
from engine.executor.norm import RmsNorm, silu_and_mul, take_norm
from engine.executor.rope import RotaryTable
from engine.executor.tensors import Progress, Tensors

TakeFeedForward = Callable[[Tensors, str, int], Mixer]
"""Takes a layer's feed-forward: the tensors, how the layer's names begin (`model.layers.0`), the layer's number."""


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """What a layer's norms are called behind its prefix; None: there is no such norm."""

    before_attention: str = "input_layernorm"
    after_attention: str | None = None
    before_feed_forward: str = "post_attention_layernorm"
    after_feed_forward: str | None = None


@dataclass(frozen=True, slots=True)
class PreNorm:
    """What tells a family of this layout from another one."""

    attention: tuple[AttentionSpec, ...]
    """One for each layer."""
    take_feed_forward: TakeFeedForward
    is_tied: bool
    """Whether the embedding makes the logits too."""
    window: int | None = None
    """Of the layers whose kind is SWA; of no account without one."""
    norms: LayerNorms = LayerNorms()
    is_norm_offset: bool = False
    """Whether the weights of norms are stored as the difference from 1."""
    embedding_scale: float = 1.0
    logit_cap: float | None = None


def pre_norm(hf: HfConfig, form: PreNorm) -> Blueprint:
    """The model of a family whose options have been read and checked."""
    has_windows = any(spec.kind is PoolKind.SWA for spec in form.attention)
    kv_layers = tuple(spec.kv_layer for spec in form.attention)
    config = model_config(hf, kv_layers, window=form.window if has_windows else None)
    return Blueprint(config, partial(_build, config, norm_eps(hf), form))


def plain_attention(hf: HfConfig) -> AttentionSpec:
    """Full attention with grouped queries and rotary embedding, as the usual keys say; families change the rest."""
    spec = unturned_attention(hf)
    return replace(spec, rotary=RotaryTable(hf.rope(spec.head_dim, hf.count("max_position_embeddings"))))


def unturned_attention(hf: HfConfig) -> AttentionSpec:
    """The same without a rotary embedding."""
    num_heads = hf.count("num_attention_heads")
    head_dim = hf.count("head_dim", hf.count("hidden_size") // num_heads)
    return AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=hf.count("num_key_value_heads", num_heads),
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rotary=None,
    )


def dense(hf: HfConfig, gate: Gate = silu_and_mul, *, has_bias: bool = False) -> TakeFeedForward:
    """A gated feed-forward, `mlp`, in each layer."""
    hidden, size = hf.count("hidden_size"), hf.count("intermediate_size")

    def take(tensors: Tensors, prefix: str, _layer: int) -> Mixer:
        return take_gated(tensors, f"{prefix}.mlp", hidden, size, gate, has_bias=has_bias)

    return take


def norm_eps(hf: HfConfig) -> float:
    return hf.number("rms_norm_eps", 1e-6)


def _build(config: ModelConfig, eps: float, form: PreNorm, tensors: Tensors, progress: Progress) -> Decoder:
    hidden, norms = config.hidden_size, form.norms

    def norm(name: str) -> RmsNorm:
        return take_norm(tensors, name, hidden, eps, is_offset=form.is_norm_offset)

    def block(prefix: str, before: str, mixer: Mixer, after: str | None) -> Block:
        return Block(norm(f"{prefix}.{before}"), (mixer,), None if after is None else norm(f"{prefix}.{after}"))

    def take_layer(layer: int) -> tuple[Block, ...]:
        prefix = f"model.layers.{layer}"
        attention = take_attention(tensors, f"{prefix}.self_attn", layer, form.attention[layer], hidden)
        feed_forward = form.take_feed_forward(tensors, prefix, layer)
        return (
            block(prefix, norms.before_attention, attention, norms.after_attention),
            block(prefix, norms.before_feed_forward, feed_forward, norms.after_feed_forward),
        )

    embedding = tensors.take("model.embed_tokens.weight", config.vocab_size, hidden)
    return Decoder(
        embedding=embedding,
        blocks=take_blocks(len(form.attention), take_layer, progress),
        output_norm=norm("model.norm"),
        head=take_head(tensors, embedding, is_tied=form.is_tied),
        embedding_scale=form.embedding_scale,
        logit_cap=form.logit_cap,
    )
