"""What a GGUF file says of its model, in the terms of Hugging Face's configuration."""

from collections.abc import Callable, Mapping

from engine.executor.gguf import GgufFile, MetadataValue
from engine.executor.gguf_metadata import ArchMetadata, require_str
from engine.executor.hf_config import HfConfig
from engine.executor.model_config import UnsupportedModelError

_Keys = dict[str, object]

_NAMELESS_KEYS = ("vocab_size", "mm.tokens_per_image")
"""The vocabulary's size is the embedding's; the other is of images, which are not read."""
_GEMMA3_PERIOD = 6
"""One layer in so many is full, where a file does not say."""
_GEMMA3_LOCAL_BASE = 10000.0
_GEMMA3_LARGEST_LAYERS = 62
"""The layers of the one size, 27B, whose scores are scaled by another number than the size of a head. No key tells."""


def config_from_gguf(file: GgufFile) -> HfConfig:
    """Raises UnsupportedModelError for an architecture, an option or a rope form that is not implemented, or when a key
    is missing."""
    metadata = ArchMetadata(file.metadata)
    family = _FAMILIES.get(metadata.arch)
    if family is None:
        known = ", ".join(sorted(_FAMILIES))
        raise UnsupportedModelError(f"architecture {metadata.arch!r} is not implemented; known are {known}")
    keys = _common_keys(file, metadata)
    keys |= family(metadata, keys)
    metadata.ignore(*_NAMELESS_KEYS)
    metadata.refuse_rest()
    name = require_str(file.metadata, "general.name") if "general.name" in file.metadata else file.path.stem
    return HfConfig(name, keys, {}, file.path.name)


def _common_keys(file: GgufFile, metadata: ArchMetadata) -> _Keys:
    hidden_size = metadata.count("embedding_length")
    num_heads = metadata.count("attention.head_count")
    head_dim = metadata.count("attention.key_length", hidden_size // num_heads)
    value_dim = metadata.count("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise UnsupportedModelError(f"values of another size ({value_dim}) than keys ({head_dim}) are not implemented")
    rotary_dim = metadata.count("rope.dimension_count", head_dim)
    if rotary_dim != head_dim:
        raise UnsupportedModelError(f"partial rotary embedding ({rotary_dim} of {head_dim}) is not implemented")
    if "rope_freqs.weight" in file.tensors:
        raise UnsupportedModelError("rope frequency factors (rope_freqs.weight) are not implemented")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise UnsupportedModelError(f"{file.path.name}: tensor token_embd.weight is missing")
    return {
        "model_type": metadata.arch,
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden_size,
        "intermediate_size": metadata.count("feed_forward_length"),
        "num_hidden_layers": metadata.count("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata.count("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon", 1e-5),
        "max_position_embeddings": metadata.count("context_length"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _eos_ids(file.metadata),
    }


def _plain(metadata: ArchMetadata, keys: _Keys) -> _Keys:
    """Llama, Qwen 2 and Qwen 3: one rotary embedding for all layers."""
    base, scaling = metadata.number("rope.freq_base", 10000.0), _rope_scaling(metadata)
    return {"rope_theta": base} if scaling is None else {"rope_theta": base, "rope_scaling": scaling}


def _gemma3(metadata: ArchMetadata, keys: _Keys) -> _Keys:
    """Windows in most layers, which turn by another base and are not scaled."""
    hidden_size, num_heads, num_layers = (
        _int(keys, name) for name in ("hidden_size", "num_attention_heads", "num_hidden_layers")
    )
    is_largest = num_layers == _GEMMA3_LARGEST_LAYERS
    local_base = metadata.number("rope.freq_base_swa", _GEMMA3_LOCAL_BASE)
    changed: _Keys = {
        "model_type": "gemma3_text",
        "query_pre_attn_scalar": hidden_size // num_heads if is_largest else keys["head_dim"],
        "sliding_window": metadata.count("attention.sliding_window"),
        "layer_types": _layer_types(metadata, num_layers),
        "rope_parameters": {
            "full_attention": {"rope_theta": metadata.number("rope.freq_base"), **(_rope_scaling(metadata) or {})},
            "sliding_attention": {"rope_theta": local_base},
        },
    }
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if metadata.get(name) is not None:
            changed[name] = metadata.number(name)
    return changed


_FAMILIES: Mapping[str, Callable[[ArchMetadata, _Keys], _Keys]] = {
    "gemma3": _gemma3,
    "llama": _plain,
    "qwen2": _plain,
    "qwen3": _plain,
}
"""Architecture → what it tells beside what all do, by the keys that all told."""


def _layer_types(metadata: ArchMetadata, num_layers: int) -> list[str]:
    """One layer of each period is full, its last; or the file says of each layer whether it has a window."""
    key = "attention.sliding_window_pattern"
    told = metadata.get(key)
    if isinstance(told, list):
        if len(told) != num_layers or not all(isinstance(is_sliding, bool) for is_sliding in told):
            raise UnsupportedModelError(f"metadata '{metadata.arch}.{key}' does not say true or false of each layer")
        sliding = [bool(is_sliding) for is_sliding in told]
    else:
        period = metadata.count(key, _GEMMA3_PERIOD)
        sliding = [(layer + 1) % period != 0 for layer in range(num_layers)]
    return ["sliding_attention" if is_sliding else "full_attention" for is_sliding in sliding]


def _rope_scaling(metadata: ArchMetadata) -> _Keys | None:
    match metadata.get("rope.scaling.type"):
        case None | "none":
            return None
        case "linear":
            return {"rope_type": "linear", "factor": metadata.number("rope.scaling.factor")}
        case unknown:
            raise UnsupportedModelError(f"rope scaling {unknown!r} is not implemented; known are none, linear")


def _eos_ids(metadata: Mapping[str, MetadataValue]) -> list[int]:
    """The end of turn and the end of text, where the file names both, each once."""
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    found = [value for key in keys if isinstance(value := metadata.get(key), int)]
    if not found:
        raise UnsupportedModelError(f"the file's metadata has no number under {keys[0]!r}")
    return list(dict.fromkeys(found))


def _int(keys: _Keys, name: str) -> int:
    value = keys[name]
    assert isinstance(value, int), f"{name} was read as a count"
    return value
