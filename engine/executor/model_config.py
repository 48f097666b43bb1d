"""The shape of a model, and how the metadata of a GGUF file tells it."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.executor.gguf import GgufFile, MetadataValue

ARCHITECTURES = ("llama",)
"""Architectures that `engine.executor.models` implements."""


class UnsupportedModelError(Exception):
    """The model needs something that is not implemented: the message names it."""


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's: long waves divided by `factor`, short ones kept, a smooth passage between.

    A wave is long when `low_freq_factor` of it do not fit into the original context, short when `high_freq_factor` do.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_len: int


RopeScaling = LinearScaling | Llama3Scaling


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the forward needs to know of a decoder-only transformer. Lengths in tokens, sizes in elements."""

    name: str
    arch: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    rope_theta: float
    rms_eps: float
    context_len: int
    has_tied_embeddings: bool
    """Whether the head shares the matrix of the token embeddings."""
    eos_ids: tuple[int, ...]
    bos_id: int | None
    rope_scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModelError(f"{self.num_heads} heads do not divide by {self.num_kv_heads} KV heads")
        if self.head_dim % 2:
            raise UnsupportedModelError(f"rotary embedding needs an even head_dim, not {self.head_dim}")


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """Raises UnsupportedModelError for an unknown architecture or rope form, or when a key is missing."""
    metadata = file.metadata
    arch = require_str(metadata, "general.architecture")
    if arch not in ARCHITECTURES:
        raise UnsupportedModelError(f"architecture {arch!r} is not implemented; known are {', '.join(ARCHITECTURES)}")
    hidden_size = _require_int(metadata, f"{arch}.embedding_length")
    num_heads = _require_int(metadata, f"{arch}.attention.head_count")
    head_dim = _int_or(metadata, f"{arch}.attention.key_length", hidden_size // num_heads)
    _refuse_unknown_rope(file, arch, head_dim)
    bos_id = metadata.get("tokenizer.ggml.bos_token_id")
    return ModelConfig(
        name=require_str(metadata, "general.name") if "general.name" in metadata else file.path.stem,
        arch=arch,
        vocab_size=file.tensors["token_embd.weight"].shape[0] if "token_embd.weight" in file.tensors else 0,
        hidden_size=hidden_size,
        num_layers=_require_int(metadata, f"{arch}.block_count"),
        num_heads=num_heads,
        num_kv_heads=_int_or(metadata, f"{arch}.attention.head_count_kv", num_heads),
        head_dim=head_dim,
        ffn_size=_require_int(metadata, f"{arch}.feed_forward_length"),
        rope_theta=_float_or(metadata, f"{arch}.rope.freq_base", 10000.0),
        rms_eps=_float_or(metadata, f"{arch}.attention.layer_norm_rms_epsilon", 1e-5),
        context_len=_require_int(metadata, f"{arch}.context_length"),
        has_tied_embeddings="output.weight" not in file.tensors,
        eos_ids=_eos_ids(metadata),
        bos_id=bos_id if isinstance(bos_id, int) else None,
    )


def require_str(metadata: Mapping[str, MetadataValue], key: str) -> str:
    """The text under `key`. Raises UnsupportedModelError when it is missing or not text."""
    value = metadata.get(key)
    if not isinstance(value, str):
        raise UnsupportedModelError(f"the file's metadata has no text under {key!r}")
    return value


def _refuse_unknown_rope(file: GgufFile, arch: str, head_dim: int) -> None:
    scaling = file.metadata.get(f"{arch}.rope.scaling.type", "none")
    if scaling != "none":
        raise UnsupportedModelError(f"rope scaling {scaling!r} is not implemented")
    if "rope_freqs.weight" in file.tensors:
        raise UnsupportedModelError("rope frequency factors (rope_freqs.weight) are not implemented")
    rotary_dim = _int_or(file.metadata, f"{arch}.rope.dimension_count", head_dim)
    if rotary_dim != head_dim:
        raise UnsupportedModelError(f"partial rotary embedding ({rotary_dim} of {head_dim}) is not implemented")


def _eos_ids(metadata: Mapping[str, MetadataValue]) -> tuple[int, ...]:
    """The end of turn and the end of text, where the file names both, each once."""
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    found = [value for key in keys if isinstance(value := metadata.get(key), int)]
    if not found:
        raise UnsupportedModelError(f"the file's metadata has no number under {keys[0]!r}")
    return tuple(dict.fromkeys(found))


def _require_int(metadata: Mapping[str, MetadataValue], key: str) -> int:
    """Sizes and counts: at least 1."""
    value = metadata.get(key)
    if not isinstance(value, int) or value < 1:
        raise UnsupportedModelError(f"the file's metadata has no number of at least 1 under {key!r}")
    return value


def _int_or(metadata: Mapping[str, MetadataValue], key: str, default: int) -> int:
    return _require_int(metadata, key) if key in metadata else default


def _float_or(metadata: Mapping[str, MetadataValue], key: str, default: float) -> float:
    value = metadata.get(key, default)
    if not isinstance(value, float):
        raise UnsupportedModelError(f"the file's metadata has no decimal number under {key!r}")
    return value
