"""A model that is known by its configuration and not read yet."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.executor.decoder import Block, Decoder
from engine.executor.hf_config import HfConfig
from engine.executor.linear import Linear
from engine.executor.model_config import KvLayer, ModelConfig, StateLayer
from engine.executor.tensors import Progress, Tensors


@dataclass(frozen=True, slots=True)
class Blueprint:
    config: ModelConfig
    build: Callable[[Tensors, Progress], Decoder]
    """Fetches each tensor once and lays it out for the forward. Raises UnsupportedModelError."""


Family = Callable[[HfConfig], Blueprint]
"""Reads the configuration of one `model_type`. Raises UnsupportedModelError for an option that is not implemented."""


def model_config(
    hf: HfConfig,
    kv_layers: tuple[KvLayer, ...],
    *,
    state_layers: tuple[StateLayer, ...] = (),
    window: int | None = None,
) -> ModelConfig:
    """What all families read alike."""
    return ModelConfig(
        name=hf.name,
        arch=hf.model_type,
        vocab_size=hf.count("vocab_size"),
        hidden_size=hf.count("hidden_size"),
        num_heads=hf.count("num_attention_heads"),
        context_len=hf.count("max_position_embeddings"),
        eos_ids=hf.eos_ids,
        bos_id=hf.bos_id,
        kv_layers=kv_layers,
        state_layers=state_layers,
        window=window,
    )


def take_blocks(
    num_layers: int, take_layer: Callable[[int], tuple[Block, ...]], progress: Progress
) -> tuple[Block, ...]:
    """The blocks of all layers, in order."""
    blocks: list[Block] = []
    for layer in range(num_layers):
        progress((layer + 1) / (num_layers + 1), f"layer {layer + 1} of {num_layers}")
        blocks += take_layer(layer)
    return tuple(blocks)


def take_head(tensors: Tensors, embedding: torch.Tensor, *, is_tied: bool) -> Linear:
    """The matrix that makes logits; the embedding's where they are `is_tied`, whatever the file holds besides."""
    name = "lm_head.weight"
    if is_tied:
        tensors.ignore(name)
        return Linear(embedding)
    return Linear(tensors.take(name, *embedding.shape))
