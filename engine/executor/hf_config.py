"""A model's configuration in the terms of Hugging Face's `config.json`, whatever file it came from."""

from __future__ import annotations  # rope's names are there for type checkers alone

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.executor.hf_files import CONFIG_FILE, HfFileError, JsonObject, read_json, read_json_if_there
from engine.executor.model_config import UnsupportedModelError

if TYPE_CHECKING:
    from engine.executor.rope import RopeScaling, RopeSpec, YarnScaling

GENERATION_FILE = "generation_config.json"


@dataclass(frozen=True, slots=True)
class HfConfig:
    """The keys of a configuration. Every getter raises UnsupportedModelError, naming the key, for a bad value; null
    stands for the default, as in the files."""

    name: str
    """The model's, for people."""
    keys: JsonObject
    generation: JsonObject
    """Of `generation_config.json`."""
    file_name: str = CONFIG_FILE
    """The file that the keys come from, for messages."""

    @property
    def model_type(self) -> str:
        value = self.keys.get("model_type")
        if not isinstance(value, str):
            raise UnsupportedModelError(f"{self.file_name}: model_type is {value!r}, not text")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        return _count(self.file_name, self.keys, key, default)

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        return _number(self.file_name, self.keys, key, default)

    def number_or_none(self, key: str) -> float | None:
        """A number above 0, or nothing where the key is absent or null."""
        return None if self.keys.get(key) is None else self.number(key)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.keys.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise UnsupportedModelError(f"{self.file_name}: {key} is {value!r}, not true or false")
        return value

    def text(self, key: str, default: str) -> str:
        value = self.keys.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise UnsupportedModelError(f"{self.file_name}: {key} is {value!r}, not text")
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of words, as `layer_types`; None where it is absent or null."""
        value = self.keys.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise UnsupportedModelError(f"{self.file_name}: {key} is {value!r}, not a list of words")
        return tuple(value)

    def require(self, **known: object) -> None:
        """Options of which the forward knows one value. Raises UnsupportedModelError for another one."""
        for key, value in known.items():
            held = self.keys.get(key)
            if held is not None and held != value:
                raise UnsupportedModelError(f"{key} {held!r} is not implemented; known is {value!r}")

    def rope(
        self,
        head_dim: int,
        context_len: int,
        *,
        key: str | None = None,
        default_theta: float = 10000.0,
        turned_share: float | None = None,
    ) -> RopeSpec:
        """The angles, from `rope_parameters` or, in older files, from `rope_theta` and `rope_scaling`.

        `key`: where the parameters differ by kind of layer, which of them. `turned_share`: how much of a head turns
        where nothing is said of it; None where the family turns all of it.
        """
        # Imported here: torch takes seconds to import, and whoever reads the tokenizer's part needs no angles.
        from engine.executor.rope import RopeSpec

        held = self.keys
        told = held.get("rope_parameters") or held.get("rope_scaling") or {}
        if isinstance(told, dict) and key is not None:
            told = told.get(key, told)
        if not isinstance(told, dict):
            raise UnsupportedModelError(f"rope_parameters is {told!r}, not an object")
        if any(isinstance(value, dict) for value in told.values()):
            raise UnsupportedModelError("rope parameters that differ by layer are not implemented")
        dim = head_dim
        if turned_share is not None:
            share = _number(self.file_name, told, "partial_rotary_factor", turned_share)
            if share > 1:
                raise UnsupportedModelError(f"partial_rotary_factor is {share}, more than the whole head")
            dim = int(head_dim * share)
        elif any(part.get("partial_rotary_factor") not in (None, 1.0) for part in (told, held)):
            raise UnsupportedModelError("partial rotary embedding (partial_rotary_factor) is not implemented")
        told_theta = told if told.get("rope_theta") is not None else held
        theta = _number(self.file_name, told_theta, "rope_theta", default_theta)
        return RopeSpec(dim, theta, context_len, _rope_scaling(self.file_name, told, held))

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Every token that ends a turn: the generation's list where there is one, else the model's."""
        for held in (self.generation.get("eos_token_id"), self.keys.get("eos_token_id")):
            ids = held if isinstance(held, list) else [held]
            if ids and all(_is_int(token_id) for token_id in ids):
                return tuple(dict.fromkeys(ids))
        raise UnsupportedModelError(f"neither {GENERATION_FILE} nor {self.file_name} has an eos_token_id")

    @property
    def bos_id(self) -> int | None:
        value = self.keys.get("bos_token_id")
        return value if isinstance(value, int) and _is_int(value) else None


def open_hf_config(directory: Path) -> HfConfig:
    """Raises HfFileError for files that are missing or broken."""
    if not (directory / CONFIG_FILE).exists():
        raise HfFileError(f"{directory.name} has no {CONFIG_FILE}: it is no model directory")
    keys = read_json(directory / CONFIG_FILE)
    return HfConfig(directory.resolve().name, keys, read_json_if_there(directory / GENERATION_FILE))


def _rope_scaling(file_name: str, told: JsonObject, config: JsonObject) -> RopeScaling | None:
    from engine.executor.rope import LinearScaling, Llama3Scaling  # here, as in `HfConfig.rope`

    match next((told[key] for key in ("rope_type", "type") if told.get(key) is not None), "default"):
        case "default":
            return None
        case "linear":
            return LinearScaling(_number(file_name, told, "factor"))
        case "llama3":
            return Llama3Scaling(
                factor=_number(file_name, told, "factor"),
                low_freq_factor=_number(file_name, told, "low_freq_factor"),
                high_freq_factor=_number(file_name, told, "high_freq_factor"),
                original_context_len=_original_context_len(file_name, told, config),
            )
        case "yarn":
            return _yarn_scaling(file_name, told, config)
        case unknown:
            known = "default, linear, llama3, yarn"
            raise UnsupportedModelError(f"rope type {unknown!r} is not implemented; known are {known}")


def _yarn_scaling(file_name: str, told: JsonObject, config: JsonObject) -> YarnScaling:
    from engine.executor.rope import YarnScaling, yarn_attention_factor  # here, as in `HfConfig.rope`

    original_len = _original_context_len(file_name, told, config)
    factor = _number(file_name, told, "factor", _count(file_name, config, "max_position_embeddings") / original_len)
    # 0 stands for absent among these, as transformers has it.
    given = {key: value for key, value in told.items() if value is not None and value != 0}
    mscales = {key: _number(file_name, given, key) if key in given else None for key in ("mscale", "mscale_all_dim")}
    is_truncated = told.get("truncate", True)
    if not isinstance(is_truncated, bool):
        raise UnsupportedModelError(f"{file_name}: truncate is {is_truncated!r}, not true or false")
    return YarnScaling(
        factor=factor,
        original_context_len=original_len,
        attention_factor=_number(file_name, told, "attention_factor", yarn_attention_factor(factor, **mscales)),
        beta_fast=_number(file_name, given, "beta_fast", 32.0),
        beta_slow=_number(file_name, given, "beta_slow", 1.0),
        is_truncated=is_truncated,
    )


def _original_context_len(file_name: str, told: JsonObject, config: JsonObject) -> int:
    """The one beside the rope's parameters goes before the one among them, as transformers has it."""
    key = "original_max_position_embeddings"
    whole = _count(file_name, config, "max_position_embeddings")
    return _count(file_name, config, key, _count(file_name, told, key, whole))


def _count(file_name: str, held: Mapping[str, object], key: str, default: int | None = None) -> int:
    value = held.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or not _is_int(value) or value < 1:
        raise UnsupportedModelError(f"{file_name}: {key} is {value!r}, not a whole number of at least 1")
    return value


def _number(file_name: str, held: Mapping[str, object], key: str, default: float | None = None) -> float:
    value = held.get(key)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
        raise UnsupportedModelError(f"{file_name}: {key} is {value!r}, not a number above 0")
    return float(value)


def _is_int(value: object) -> bool:
    """Whether it is a whole number; JSON's true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)
