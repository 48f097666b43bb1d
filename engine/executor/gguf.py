"""Reads GGUF files: header, metadata and tensors dequantized to float32.

Format: GGUF version 2 and 3, little endian. The header is parsed here, over mmap; only the arithmetic of the quantized
blocks is taken from the `gguf` package, whose own reader builds a numpy object a string and is 40 times slower.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.executor.mapped_files import MappedFiles

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT_BYTES = 32

MetadataValue = int | float | bool | str | list[int] | list[float] | list[bool] | list[str]

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

_SCALAR_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Metadata value type → struct code. Strings (8) and arrays (9) are read apart."""
_STRING = 8
_ARRAY = 9


@dataclass(frozen=True, slots=True)
class TensorType:
    """How a tensor is stored: `block_len` elements in `block_bytes` bytes."""

    name: str
    block_len: int
    block_bytes: int


TENSOR_TYPES = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    30: TensorType("BF16", 1, 2),
}
"""GGML type number → layout, for the types that can be dequantized here."""


class GgufError(Exception):
    """The file is not a GGUF file that can be read: the message says what and where."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. `shape` is row-major, slowest dimension first: `[out, in]` for a matrix."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset_bytes: int
    """From the start of the file."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An open file. It stays mapped until it is garbage."""

    path: Path
    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, TensorInfo]
    _mapped: MappedFiles

    def dequantize(self, name: str) -> NDArray[np.float32]:
        """The tensor as a fresh float32 array of its row-major shape. Raises GgufError for an unknown name."""
        info = self.tensors.get(name)
        if info is None:
            raise GgufError(f"{self.path.name}: no tensor {name!r}")
        raw = self._mapped.view(info.offset_bytes, info.offset_bytes + info.size_bytes)
        if info.type.name == "F32":
            return raw.view(np.float32).reshape(info.shape).copy()
        # Imported here: the package costs a quarter of a second, and a tokenizer needs only the metadata.
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        row_bytes = info.shape[-1] // info.type.block_len * info.type.block_bytes
        rows = dequantize(raw.reshape(-1, row_bytes), GGMLQuantizationType[info.type.name])
        return np.ascontiguousarray(rows, np.float32).reshape(info.shape)


def open_gguf(path: Path, rest: Sequence[Path] = ()) -> GgufFile:
    """Maps `path` and parses its header. `rest` is what follows it where one file comes in several parts.

    Raises GgufError, or OSError when it can't be opened.
    """
    mapped = MappedFiles([path, *rest])
    if mapped.size_bytes == 0:
        raise GgufError(f"{path.name}: the file is empty")
    cursor = _Cursor(mapped, path.name)
    num_tensors, num_entries = _read_preamble(cursor)
    metadata: dict[str, MetadataValue] = {}
    for _ in range(num_entries):
        key = cursor.read_string()
        metadata[key] = _read_value(cursor, key)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT_BYTES)
    if not isinstance(alignment, int) or alignment < 1:
        raise GgufError(f"{path.name}: general.alignment is {alignment!r}")
    tensors = _read_tensor_table(cursor, num_tensors, alignment)
    return GgufFile(path, metadata, tensors, mapped)


class _Cursor:
    """A read position in the mapped file that refuses to run past its end."""

    __slots__ = ("_data", "_name", "position")

    def __init__(self, data: MappedFiles, name: str) -> None:
        self._data = data
        self._name = name
        self.position = 0

    @property
    def size_bytes(self) -> int:
        return self._data.size_bytes

    def error(self, what: str) -> GgufError:
        return GgufError(f"{self._name}: {what} at byte {self.position}")

    def read_bytes(self, count: int) -> bytes:
        end = self.position + count
        if end > self.size_bytes:
            raise self.error(f"truncated: {count} bytes wanted, {self.size_bytes - self.position} left,")
        taken = self._data.read(self.position, end)
        self.position = end
        return taken

    def read_u32(self) -> int:
        return int(_U32.unpack(self.read_bytes(4))[0])

    def read_u64(self) -> int:
        return int(_U64.unpack(self.read_bytes(8))[0])

    def read_string(self) -> str:
        raw = self.read_bytes(self.read_u64())
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error("a string that is not UTF-8 ends") from error


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    magic = cursor.read_bytes(4)
    if magic != MAGIC:
        raise GgufError(f"not a GGUF file: it starts with {magic!r}, not {MAGIC!r}")
    version = cursor.read_u32()
    if version not in VERSIONS:
        raise cursor.error(f"GGUF version {version} is not supported (only {VERSIONS}), read")
    return cursor.read_u64(), cursor.read_u64()


def _read_value(cursor: _Cursor, key: str) -> MetadataValue:
    kind = cursor.read_u32()
    if kind == _STRING:
        return cursor.read_string()
    if kind == _ARRAY:
        return _read_array(cursor, key)
    scalar: MetadataValue = _scalars(cursor, key, kind, 1)[0]
    return scalar


def _read_array(cursor: _Cursor, key: str) -> list[int] | list[float] | list[bool] | list[str]:
    kind = cursor.read_u32()
    count = cursor.read_u64()
    if kind != _STRING:
        return _scalars(cursor, key, kind, count)
    if count > cursor.size_bytes:
        raise cursor.error(f"truncated: {key} tells {count} strings")
    read: Callable[[], str] = cursor.read_string
    return [read() for _ in range(count)]


def _scalars(cursor: _Cursor, key: str, kind: int, count: int) -> list[int] | list[float] | list[bool]:
    code = _SCALAR_FORMATS.get(kind)
    if code is None:
        raise cursor.error(f"metadata {key} has the unknown value type {kind},")
    raw = cursor.read_bytes(count * struct.calcsize(code))
    return list(struct.unpack(f"<{count}{code}", raw))


def _read_tensor_table(cursor: _Cursor, num_tensors: int, alignment_bytes: int) -> dict[str, TensorInfo]:
    entries = [_read_tensor_entry(cursor) for _ in range(num_tensors)]
    data_start = -(-cursor.position // alignment_bytes) * alignment_bytes
    tensors: dict[str, TensorInfo] = {}
    for name, shape, kind, offset in entries:
        tensors[name] = _place_tensor(cursor, name, shape, kind, data_start + offset)
    return tensors


def _read_tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.read_string()
    num_dims = cursor.read_u32()
    if not 1 <= num_dims <= 4:
        raise cursor.error(f"tensor {name} has {num_dims} dimensions,")
    fastest_first = tuple(cursor.read_u64() for _ in range(num_dims))
    return name, fastest_first[::-1], cursor.read_u32(), cursor.read_u64()


def _place_tensor(cursor: _Cursor, name: str, shape: tuple[int, ...], kind: int, offset_bytes: int) -> TensorInfo:
    layout = TENSOR_TYPES.get(kind)
    if layout is None:
        known = ", ".join(known.name for known in TENSOR_TYPES.values())
        raise cursor.error(f"tensor {name} has type {kind}; known are {known}; the table ends")
    if shape[-1] % layout.block_len:
        raise cursor.error(f"tensor {name} of {layout.name}: rows of {shape[-1]} are not whole blocks; the table ends")
    num_elements = 1
    for size in shape:
        num_elements *= size
    size_bytes = num_elements // layout.block_len * layout.block_bytes
    if offset_bytes + size_bytes > cursor.size_bytes:
        cursor.position = cursor.size_bytes
        raise cursor.error(f"truncated: tensor {name} ends at byte {offset_bytes + size_bytes}, the file")
    return TensorInfo(name, shape, layout, offset_bytes, size_bytes)
