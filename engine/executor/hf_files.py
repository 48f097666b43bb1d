"""Files of a Hugging Face model directory. Nothing in them is executed: JSON, text and safetensors, never pickle."""

import json
from pathlib import Path

JSON_BYTES_MAX = 256 * 2**20
"""The largest published tokenizers are a tenth of it."""

CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
PICKLED_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")

JsonObject = dict[str, object]


class HfFileError(Exception):
    """A file of the directory is missing or is not what it should be: the message names it."""


def read_json(path: Path) -> JsonObject:
    """The object in `path`. Raises HfFileError when it is too large, no JSON or no object; OSError when unreadable."""
    text = read_text(path)
    try:
        loaded: object = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise HfFileError(f"{path.name} is not valid JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise HfFileError(f"{path.name} does not hold an object")
    return loaded


def read_json_if_there(path: Path) -> JsonObject:
    """`read_json`, or an empty object where there is no such file."""
    return read_json(path) if path.exists() else {}


def read_text(path: Path) -> str:
    """Raises HfFileError when `path` is too large or not UTF-8; OSError when it is not readable."""
    size_bytes = path.stat().st_size
    if size_bytes > JSON_BYTES_MAX:
        raise HfFileError(f"{path.name} has {size_bytes} bytes; at most {JSON_BYTES_MAX} are read")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise HfFileError(f"{path.name} is not UTF-8") from error


def find_weight_files(directory: Path) -> tuple[Path, ...]:
    """The safetensors files of the model, shards in order of name. Raises HfFileError when there are none."""
    if (directory / INDEX_FILE).exists():
        return tuple(directory / name for name in _shard_names(read_json(directory / INDEX_FILE)))
    if (directory / SINGLE_FILE).exists():
        return (directory / SINGLE_FILE,)
    pickled = sorted(path.name for path in directory.iterdir() if path.suffix in PICKLED_SUFFIXES)
    if pickled:
        raise HfFileError(
            f"{directory.name} holds its weights as {pickled[0]}, a format that can run code when it is read, and is "
            "refused: convert it to safetensors"
        )
    raise HfFileError(f"{directory.name} has neither {SINGLE_FILE} nor {INDEX_FILE}")


def _shard_names(index: JsonObject) -> list[str]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise HfFileError(f"{INDEX_FILE} has no weight_map")
    names = {str(name) for name in weight_map.values()}
    for name in sorted(names):
        # A shard lies beside its index: a path in its name would reach files that are none of the model's.
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise HfFileError(f"{INDEX_FILE} names {name!r}, which is not a safetensors file of the same directory")
    return sorted(names)
