"""Float32 weights of a Llama, from the safetensors files of a Hugging Face directory."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from engine.executor.hf_files import HfFileError, find_weight_files
from engine.executor.model_config import ModelConfig, UnsupportedModelError
from engine.executor.weights import (
    LlamaWeights,
    Progress,
    TensorSource,
    build_weights,
    refuse_other_tensors,
    tensor_names,
)

DTYPES = ("F32", "F16", "BF16")
"""Names that safetensors gives to the types that can be read."""

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
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""What older files hold besides, and the configuration says already."""


def weights_from_hf(directory: Path, config: ModelConfig, progress: Progress) -> LlamaWeights:
    """Reads the whole model. Raises UnsupportedModelError when it has other tensors than it should, HfFileError when a
    file is missing or broken."""
    with _open_tensors(directory) as places:
        expected = {hf_name(name) for name in tensor_names(config)}
        ignored = {name for name in places if _DERIVED.fullmatch(name)}
        if config.has_tied_embeddings:
            ignored.add(_GLOBAL_NAMES["output.weight"])
        refuse_other_tensors(directory.name, expected, places.keys() - ignored)
        return build_weights(config, lambda name: places[hf_name(name)](hf_name(name)), progress)


def hf_name(name: str) -> str:
    """What Hugging Face's Llama calls the tensor that GGUF calls `name`."""
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    _, layer, kind, suffix = name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[kind]}.{suffix}"


@contextmanager
def _open_tensors(directory: Path) -> Iterator[dict[str, TensorSource]]:
    """Each tensor of the directory, by its name in the files, and what reads it; all files stay open meanwhile."""
    places: dict[str, TensorSource] = {}
    with ExitStack() as files:
        for path in find_weight_files(directory):
            try:
                file = files.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, FileNotFoundError) as error:
                raise HfFileError(f"{path.name} can not be read: {error}") from error
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if name in places:
                    raise HfFileError(f"tensor {name} is in two files; the second is {path.name}")
                places[name] = _reader(path.name, file)
        yield places


def _reader(file_name: str, file: safe_open) -> TensorSource:
    def read(name: str) -> NDArray[np.float32]:
        dtype = file.get_slice(name).get_dtype()
        if dtype not in DTYPES:
            raise UnsupportedModelError(f"{file_name}: tensor {name} is {dtype}; known are {', '.join(DTYPES)}")
        # Copied even where it is float32 already: what is read now must not follow the file later.
        array: NDArray[np.float32] = file.get_tensor(name).to(torch.float32, copy=True).numpy()
        return array

    return read
