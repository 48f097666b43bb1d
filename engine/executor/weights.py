"""Float32 weights of a Llama, from a source of tensors under their GGUF names; and a GGUF file as that source."""

from collections.abc import Callable, Set
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.executor.gguf import GgufFile
from engine.executor.linear import Linear
from engine.executor.model_config import ModelConfig, UnsupportedModelError

TensorSource = Callable[[str], NDArray[np.float32]]
"""GGUF tensor name → row-major array. Rows of q and k are in the order in which `engine.executor.rope` turns them."""
Progress = Callable[[float, str], None]
"""Called with the fraction done, from 0 to 1, and what is being done."""

_LAYER_TENSORS = (
    "attn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_norm",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Products that share an input are one matrix."""

    attn_norm: torch.Tensor
    qkv: Linear
    """Rows of q, then k, then v; q and k rotate by halves."""
    attn_output: Linear
    ffn_norm: torch.Tensor
    gate_up: Linear
    ffn_down: Linear


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    embedding: torch.Tensor
    """[vocab_size, hidden_size]"""
    layers: tuple[LayerWeights, ...]
    output_norm: torch.Tensor
    head: Linear
    """[vocab_size, hidden_size]; the embedding's values where they are tied."""


def tensor_names(config: ModelConfig) -> tuple[str, ...]:
    """Every tensor that a model of `config` consists of."""
    names = ["token_embd.weight", "output_norm.weight"]
    if not config.has_tied_embeddings:
        names.append("output.weight")
    names += [f"blk.{layer}.{name}.weight" for layer in range(config.num_layers) for name in _LAYER_TENSORS]
    return tuple(names)


def weights_from_gguf(file: GgufFile, config: ModelConfig, progress: Progress) -> LlamaWeights:
    """Dequantizes the whole model. Raises UnsupportedModelError when the file has other tensors than it should."""
    refuse_other_tensors(file.path.name, set(tensor_names(config)), file.tensors.keys())
    return build_weights(config, rotated_by_halves(config, file.dequantize), progress)


def refuse_other_tensors(file_name: str, expected: Set[str], held: Set[str]) -> None:
    """Raises UnsupportedModelError that names a tensor which is missing, or one that is not known."""
    missing = sorted(expected - held)
    if missing:
        raise UnsupportedModelError(f"{file_name}: tensor {missing[0]} is missing ({len(missing)} in all)")
    unknown = sorted(held - expected)
    if unknown:
        raise UnsupportedModelError(f"{file_name}: tensor {unknown[0]} is unknown ({len(unknown)} in all)")


def build_weights(config: ModelConfig, source: TensorSource, progress: Progress) -> LlamaWeights:
    """Fetches each tensor once and lays it out for the forward."""
    embedding = _fetch(source, "token_embd.weight", (config.vocab_size, config.hidden_size))
    layers = []
    for layer in range(config.num_layers):
        progress((layer + 1) / (config.num_layers + 1), f"layer {layer + 1} of {config.num_layers}")
        layers.append(_build_layer(config, source, layer))
    tied = config.has_tied_embeddings
    weights = LlamaWeights(
        embedding=embedding,
        layers=tuple(layers),
        output_norm=_fetch(source, "output_norm.weight", (config.hidden_size,)),
        head=Linear(embedding if tied else _fetch(source, "output.weight", (config.vocab_size, config.hidden_size))),
    )
    progress(1.0, "weights loaded")
    return weights


def _build_layer(config: ModelConfig, source: TensorSource, layer: int) -> LayerWeights:
    hidden, ffn = config.hidden_size, config.ffn_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def fetch(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return _fetch(source, f"blk.{layer}.{name}.weight", shape)

    query, key = fetch("attn_q", (q_size, hidden)), fetch("attn_k", (kv_size, hidden))
    return LayerWeights(
        attn_norm=fetch("attn_norm", (hidden,)),
        qkv=Linear(torch.cat((query, key, fetch("attn_v", (kv_size, hidden))))),
        attn_output=Linear(fetch("attn_output", (hidden, q_size))),
        ffn_norm=fetch("ffn_norm", (hidden,)),
        gate_up=Linear(torch.cat((fetch("ffn_gate", (ffn, hidden)), fetch("ffn_up", (ffn, hidden))))),
        ffn_down=Linear(fetch("ffn_down", (hidden, ffn))),
    )


def rotated_by_halves(config: ModelConfig, source: TensorSource) -> TensorSource:
    """`source` with the order undone in which GGUF stores the rows of q and k for arch llama.

    GGUF pairs neighbours (0, 1), (2, 3), …; `engine.executor.rope` pairs i with i + head_dim / 2.
    """
    num_heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}

    def read(name: str) -> NDArray[np.float32]:
        array = source(name)
        kind = name.removesuffix(".weight").rpartition(".")[2]
        if kind not in num_heads or array.size % (num_heads[kind] * 2):
            return array  # a shape that does not divide is refused where shapes are checked
        pairs = array.reshape(num_heads[kind], -1, 2, array.shape[-1])
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)

    return read


def _fetch(source: TensorSource, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    array = source(name)
    if array.shape != shape:
        raise UnsupportedModelError(f"tensor {name} has shape {array.shape}, not {shape}")
    return torch.from_numpy(array)
