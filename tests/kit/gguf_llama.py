"""A Llama's tensors as GGUF holds them: other names, and the rows of q and k in another order."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

_GLOBAL = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_OF_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_llama_tensors(
    tensors: Mapping[str, NDArray[np.float32]], *, num_heads: int, num_kv_heads: int
) -> dict[str, NDArray[np.float32]]:
    """`tensors` by their Hugging Face names → the same model by its GGUF names."""
    dealt = {"attn_q": num_heads, "attn_k": num_kv_heads}
    written: dict[str, NDArray[np.float32]] = {}
    for hf_name, array in tensors.items():
        name = _gguf_name(hf_name.removesuffix(".weight"))
        heads = dealt.get(name.rpartition(".")[2])
        written[f"{name}.weight"] = array if heads is None else _dealt_out(array, heads)
    return written


def _gguf_name(hf_name: str) -> str:
    if hf_name in _GLOBAL:
        return _GLOBAL[hf_name]
    number, _, kind = hf_name.removeprefix("model.layers.").partition(".")
    return f"blk.{number}.{_OF_LAYER[kind]}"


def _dealt_out(array: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """The rows of each head's two halves in turn."""
    return array.reshape(num_heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
