"""The metadata of a GGUF file, read key by key with its kind checked."""

from collections.abc import Mapping

from engine.executor.gguf import MetadataValue
from engine.executor.model_config import UnsupportedModelError


class ArchMetadata:
    """What a file says of its architecture: the keys that begin with its name. What was never asked for is not known,
    and refused at the end."""

    def __init__(self, metadata: Mapping[str, MetadataValue]) -> None:
        """Raises UnsupportedModelError for a file that names no architecture."""
        self.arch = require_str(metadata, "general.architecture")
        self._metadata = metadata
        self._asked: set[str] = set()

    def get(self, key: str) -> MetadataValue | None:
        """The value under `key` of the architecture, as in `block_count`; None where it is absent."""
        self._asked.add(full := f"{self.arch}.{key}")
        return self._metadata.get(full)

    def count(self, key: str, default: int | None = None) -> int:
        """Sizes and counts: at least 1. Raises UnsupportedModelError."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._error("number of at least 1", key)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A decimal number. Raises UnsupportedModelError."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, float):
            raise self._error("decimal number", key)
        return value

    def ignore(self, *keys: str) -> None:
        """Keys that may be there and change nothing."""
        self._asked.update(f"{self.arch}.{key}" for key in keys)

    def refuse_rest(self) -> None:
        """Raises UnsupportedModelError for a key that nobody asked for: the model may need what it tells."""
        unknown = sorted(key for key in self._metadata if key.startswith(f"{self.arch}.") and key not in self._asked)
        if unknown:
            raise UnsupportedModelError(f"metadata {unknown[0]!r} is not implemented ({len(unknown)} such keys)")

    def _error(self, kind: str, key: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"the file's metadata has no {kind} under '{self.arch}.{key}'")


def require_str(metadata: Mapping[str, MetadataValue], key: str) -> str:
    """The text under `key`. Raises UnsupportedModelError when it is missing or not text."""
    value = metadata.get(key)
    if not isinstance(value, str):
        raise UnsupportedModelError(f"the file's metadata has no text under {key!r}")
    return value
