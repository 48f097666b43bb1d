"""The shape of a model, read from the JSON files of a Hugging Face directory."""

from collections.abc import Mapping
from pathlib import Path

from engine.executor.hf_files import CONFIG_FILE, HfFileError, JsonObject, read_json, read_json_if_there
from engine.executor.model_config import (
    ARCHITECTURES,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    RopeScaling,
    UnsupportedModelError,
)

GENERATION_FILE = "generation_config.json"

_MUST_BE: dict[str, object] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "quantization_config": None,
    "sliding_window": None,
}
"""Options that the forward knows one value of."""


def config_from_hf(directory: Path) -> ModelConfig:
    """Raises UnsupportedModelError for what is not implemented, HfFileError for files that are missing or broken."""
    if not (directory / CONFIG_FILE).exists():
        raise HfFileError(f"{directory.name} has no {CONFIG_FILE}: it is no model directory")
    config = read_json(directory / CONFIG_FILE)
    arch = config.get("model_type")
    if arch not in ARCHITECTURES:
        raise UnsupportedModelError(f"model_type {arch!r} is not implemented; known are {', '.join(ARCHITECTURES)}")
    for key, known in _MUST_BE.items():
        if config.get(key, known) != known:
            raise UnsupportedModelError(f"{key} {config[key]!r} is not implemented; known is {known!r}")
    hidden_size = _count(config, "hidden_size")
    num_heads = _count(config, "num_attention_heads")
    rope_theta, rope_scaling = _rope(config)
    return ModelConfig(
        name=directory.resolve().name,
        arch=str(arch),
        vocab_size=_count(config, "vocab_size"),
        hidden_size=hidden_size,
        num_layers=_count(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_count(config, "num_key_value_heads", num_heads),
        head_dim=_count(config, "head_dim", hidden_size // num_heads),
        ffn_size=_count(config, "intermediate_size"),
        rope_theta=rope_theta,
        rms_eps=_number(config, "rms_norm_eps", 1e-6),
        context_len=_count(config, "max_position_embeddings"),
        has_tied_embeddings=config.get("tie_word_embeddings") is True,
        eos_ids=_eos_ids(config, read_json_if_there(directory / GENERATION_FILE)),
        bos_id=_token_id(config, "bos_token_id"),
        rope_scaling=rope_scaling,
    )


def _rope(config: JsonObject) -> tuple[float, RopeScaling | None]:
    """Theta and scaling, from `rope_parameters` or, in older files, from `rope_theta` and `rope_scaling`."""
    told = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(told, dict) or any(isinstance(value, dict) for value in told.values()):
        raise UnsupportedModelError("rope parameters that differ by layer are not implemented")
    if {"rope_theta": None, **config, **told}.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModelError("partial rotary embedding (partial_rotary_factor) is not implemented")
    theta = _number(told if "rope_theta" in told else config, "rope_theta", 10000.0)
    return theta, _rope_scaling(told, config)


def _rope_scaling(told: JsonObject, config: JsonObject) -> RopeScaling | None:
    match told.get("rope_type", told.get("type", "default")):
        case "default":
            return None
        case "linear":
            return LinearScaling(_number(told, "factor"))
        case "llama3":
            return Llama3Scaling(
                factor=_number(told, "factor"),
                low_freq_factor=_number(told, "low_freq_factor"),
                high_freq_factor=_number(told, "high_freq_factor"),
                original_context_len=_count(
                    told, "original_max_position_embeddings", _count(config, "max_position_embeddings")
                ),
            )
        case unknown:
            raise UnsupportedModelError(f"rope type {unknown!r} is not implemented; known are default, linear, llama3")


def _eos_ids(config: JsonObject, generation: JsonObject) -> tuple[int, ...]:
    """Every token that ends a turn: the generation's list where there is one, else the model's."""
    for held in (generation.get("eos_token_id"), config.get("eos_token_id")):
        ids = held if isinstance(held, list) else [held]
        if ids and all(_is_int(token_id) for token_id in ids):
            return tuple(dict.fromkeys(ids))
    raise UnsupportedModelError(f"neither {GENERATION_FILE} nor {CONFIG_FILE} has an eos_token_id")


def _token_id(config: JsonObject, key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and _is_int(value) else None


def _count(held: Mapping[str, object], key: str, default: int | None = None) -> int:
    """A whole number of at least 1; null stands for the default, as in the files."""
    value = held.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or not _is_int(value) or value < 1:
        raise UnsupportedModelError(f"{CONFIG_FILE}: {key} is {value!r}, not a whole number of at least 1")
    return value


def _number(held: Mapping[str, object], key: str, default: float | None = None) -> float:
    """A number above 0."""
    value = held.get(key)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise UnsupportedModelError(f"{CONFIG_FILE}: {key} is {value!r}, not a number above 0")
    return float(value)


def _is_int(value: object) -> bool:
    """Whether it is a whole number; JSON's true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)
