"""The tensors of a GGUF file under their Hugging Face names, laid out and meant as there."""

import math
import re
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from engine.executor.gguf import GgufFile
from engine.executor.gguf_config import config_from_gguf
from engine.executor.model_config import UnsupportedModelError
from engine.executor.tensors import TensorReader, Tensors

_Array = NDArray[np.float32]

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAMES_OF_ARCH = {
    "gemma3": {
        "ffn_norm": "pre_feedforward_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
}
"""What an architecture has besides, or calls otherwise."""
_LAYER = re.compile(r"blk\.(?P<number>\d+)\.(?P<kind>\w+)\.(?P<what>weight|bias)")
_HF_LAYER = re.compile(r"model\.layers\.(?P<number>\d+)\.(?P<kind>[\w.]+)\.(?P<what>weight|bias)")
_OFFSET_NORM_ARCHS = ("gemma3",)
"""Norms whose weights Hugging Face stores as the difference from 1, and GGUF as they are."""
_PAIRED_ARCHS = ("llama",)
"""Architectures whose rows of q and k are in GGUF's own order: see `_unpaired`."""


def gguf_tensors(file: GgufFile) -> Tensors:
    """All tensors of a file whose configuration could be read. Raises UnsupportedModelError for one whose name is none
    of GGUF's."""
    arch = str(file.metadata["general.architecture"])
    config = config_from_gguf(file)
    heads = {"attn_q": config.count("num_attention_heads"), "attn_k": config.count("num_key_value_heads")}
    for name in file.tensors:
        if gguf_name(name, arch) != name:
            raise UnsupportedModelError(f"{file.path.name}: tensor {name} is unknown")
    readers = {hf_name(name, arch): _reader(file, name, arch, heads) for name in file.tensors}
    return Tensors(file.path.name, readers, partial(gguf_name, arch=arch))


def gguf_weight_bytes(file: GgufFile) -> int:
    """What all tensors of the file take as float32."""
    return sum(math.prod(tensor.shape) for tensor in file.tensors.values()) * np.dtype(np.float32).itemsize


def hf_name(name: str, arch: str) -> str:
    """What Hugging Face calls the tensor that GGUF calls `name`; the name itself where it is not known."""
    layer = _LAYER.fullmatch(name)
    if layer is None:
        return _GLOBAL_NAMES.get(name, name)
    kind = _layer_names(arch).get(layer["kind"])
    return name if kind is None else f"model.layers.{layer['number']}.{kind}.{layer['what']}"


def gguf_name(name: str, arch: str) -> str:
    """What GGUF calls the tensor that Hugging Face calls `name`; the name itself where it is not known."""
    layer = _HF_LAYER.fullmatch(name)
    if layer is None:
        return {hf: gguf for gguf, hf in _GLOBAL_NAMES.items()}.get(name, name)
    kinds = {hf: gguf for gguf, hf in _layer_names(arch).items()}
    return f"blk.{layer['number']}.{kinds[layer['kind']]}.{layer['what']}" if layer["kind"] in kinds else name


def _layer_names(arch: str) -> dict[str, str]:
    return _LAYER_NAMES | _NAMES_OF_ARCH.get(arch, {})


def _reader(file: GgufFile, name: str, arch: str, num_heads: Mapping[str, int]) -> TensorReader:
    kind = name.removesuffix(".weight").rpartition(".")[2]
    change: Callable[[_Array], _Array] = _unchanged
    if arch in _PAIRED_ARCHS and kind in num_heads:
        change = _unpaired(num_heads[kind])
    elif arch in _OFFSET_NORM_ARCHS and kind.endswith("_norm"):
        change = _offset
    return lambda: change(file.dequantize(name))


def _unchanged(array: _Array) -> _Array:
    return array


def _offset(array: _Array) -> _Array:
    return array - np.float32(1.0)


def _unpaired(num_heads: int) -> Callable[[_Array], _Array]:
    """Undoes the order in which GGUF stores the rows of q and k.

    It pairs neighbours (0, 1), (2, 3), …; `engine.executor.rope` pairs i with i + head_dim / 2.
    """

    def change(array: _Array) -> _Array:
        if array.size % (num_heads * 2):
            return array  # a shape that does not divide is refused where shapes are checked
        pairs = array.reshape(num_heads, -1, 2, array.shape[-1])
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)

    return change
