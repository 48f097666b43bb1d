"""Writes small GGUF files, so that tests need no model."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ALIGNMENT_BYTES = 32
F32 = 0
_ARRAY_KINDS: dict[type, tuple[int, str]] = {bool: (7, "?"), int: (5, "i"), float: (6, "f")}
"""Of numbers in arrays, by the first: its type in the file, and how it is packed."""

Value = str | bool | int | float | Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]


def write_gguf(
    path: Path,
    metadata: Mapping[str, Value],
    tensors: Mapping[str, NDArray[np.float32]] | None = None,
    *,
    version: int = 3,
) -> Path:
    """Metadata numbers are written as uint32, int32 in arrays, and float32; tensors as F32."""
    tensors = tensors or {}
    parts = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(metadata))]
    parts += [string(key) + value(held) for key, held in metadata.items()]
    blobs: list[bytes] = []
    for name, array in tensors.items():
        parts.append(tensor_entry(name, array.shape, F32, sum(len(blob) for blob in blobs)))
        blobs.append(_padded(array.astype("<f4").tobytes()))
    path.write_bytes(_padded(b"".join(parts)) + b"".join(blobs))
    return path


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(held: Value) -> bytes:
    """A metadata value with its type."""
    match held:
        case str():
            return struct.pack("<I", 8) + string(held)
        case bool():
            return struct.pack("<I?", 7, held)
        case int():
            return struct.pack("<II", 4, held)
        case float():
            return struct.pack("<If", 6, held)
    if held and isinstance(held[0], str):
        return struct.pack("<IIQ", 9, 8, len(held)) + b"".join(string(str(text)) for text in held)
    kind, code = _ARRAY_KINDS[type(held[0]) if held else int]
    return struct.pack(f"<IIQ{len(held)}{code}", 9, kind, len(held), *held)


def tensor_entry(name: str, shape: Sequence[int], kind: int, offset_bytes: int) -> bytes:
    """A row of the tensor table; `shape` row-major."""
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, offset_bytes)


def _padded(raw: bytes) -> bytes:
    return raw + bytes(-len(raw) % ALIGNMENT_BYTES)
