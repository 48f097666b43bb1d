"""The GGUF parser: what it reads, and what it refuses."""

import struct
from pathlib import Path

import numpy as np
import pytest

from engine.executor.gguf import GgufError, open_gguf
from tests.kit.gguf_files import Value, string, tensor_entry, value, write_gguf

METADATA: dict[str, Value] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.rope.freq_base": 0.5,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.tokens": ["a", "ü", "<|end|>"],
    "tokenizer.ggml.token_type": [1, 1, -3],
}


def raw_file(path: Path, metadata: bytes = b"", num_entries: int = 0, table: bytes = b"", num_tensors: int = 0) -> Path:
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_entries) + metadata + table)
    return path


def test_open_when_the_file_is_whole_then_metadata_has_python_values(tmp_path: Path) -> None:
    assert open_gguf(write_gguf(tmp_path / "m.gguf", METADATA)).metadata == METADATA


@pytest.mark.parametrize("version", [2, 3])
def test_open_when_the_version_is_known_then_reads_it(tmp_path: Path, version: int) -> None:
    assert open_gguf(write_gguf(tmp_path / "m.gguf", METADATA, version=version)).metadata == METADATA


def test_dequantize_when_stored_as_float_then_shape_is_row_major_and_values_are_exact(tmp_path: Path) -> None:
    wide = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensors = {"norm": np.array([1.5, -2.0, 7.25], np.float32), "wide": wide}
    file = open_gguf(write_gguf(tmp_path / "m.gguf", METADATA, tensors))
    assert file.tensors["wide"].shape == (3, 4)
    for name, array in tensors.items():
        np.testing.assert_array_equal(file.dequantize(name), array)


def test_dequantize_when_stored_as_q8_0_then_is_scale_times_integer(tmp_path: Path) -> None:
    quants = np.arange(-32, 32, dtype=np.int8).reshape(2, 32)
    scales = np.array([0.5, 2.0], np.float16)
    blocks = b"".join(scale.tobytes() + row.tobytes() for scale, row in zip(scales, quants, strict=True))
    head = tensor_entry("w", (2, 32), 8, 0)
    path = raw_file(tmp_path / "m.gguf", table=head, num_tensors=1)
    path.write_bytes(path.read_bytes() + bytes(-path.stat().st_size % 32) + blocks)
    np.testing.assert_array_equal(open_gguf(path).dequantize("w"), quants * scales[:, None].astype(np.float32))


def test_dequantize_when_the_name_is_unknown_then_names_it(tmp_path: Path) -> None:
    file = open_gguf(write_gguf(tmp_path / "m.gguf", METADATA))
    with pytest.raises(GgufError, match=r"m\.gguf: no tensor 'blk\.9'"):
        file.dequantize("blk.9")


def test_open_when_the_alignment_is_told_then_tensors_start_there(tmp_path: Path) -> None:
    entry = string("general.alignment") + value(256)
    path = raw_file(tmp_path / "m.gguf", entry, 1, tensor_entry("w", (2,), 0, 0), 1)
    path.write_bytes(path.read_bytes().ljust(256, b"\xff") + struct.pack("<2f", 1.0, 2.0))
    assert open_gguf(path).dequantize("w").tolist() == [1.0, 2.0]


def test_open_when_the_file_is_empty_then_says_so(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"")
    with pytest.raises(GgufError, match="empty"):
        open_gguf(path)


def test_open_when_the_magic_is_wrong_then_shows_it(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(GgufError, match=r"not a GGUF file: it starts with b'PK"):
        open_gguf(path)


@pytest.mark.parametrize("version", [1, 4])
def test_open_when_the_version_is_unknown_then_names_it(tmp_path: Path, version: int) -> None:
    with pytest.raises(GgufError, match=f"version {version} is not supported"):
        open_gguf(write_gguf(tmp_path / "m.gguf", METADATA, version=version))


def test_open_when_cut_anywhere_then_is_refused(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "m.gguf", METADATA, {"w": np.ones(8, np.float32)}).read_bytes()
    short = tmp_path / "short.gguf"
    for length in range(len(whole)):
        short.write_bytes(whole[:length])
        with pytest.raises(GgufError, match=r"truncated|empty"):
            open_gguf(short)


def test_open_when_a_tensor_type_is_unknown_then_names_tensor_and_type(tmp_path: Path) -> None:
    path = raw_file(tmp_path / "m.gguf", table=tensor_entry("blk.0.w", (32,), 99, 0), num_tensors=1)
    with pytest.raises(GgufError, match=r"tensor blk\.0\.w has type 99"):
        open_gguf(path)


def test_open_when_rows_are_not_whole_blocks_then_is_refused(tmp_path: Path) -> None:
    path = raw_file(tmp_path / "m.gguf", table=tensor_entry("w", (2, 33), 8, 0), num_tensors=1)
    with pytest.raises(GgufError, match="rows of 33 are not whole blocks"):
        open_gguf(path)


def test_open_when_a_metadata_type_is_unknown_then_names_key_and_type(tmp_path: Path) -> None:
    entry = string("some.key") + struct.pack("<I", 77)
    with pytest.raises(GgufError, match=r"some\.key has the unknown value type 77"):
        open_gguf(raw_file(tmp_path / "m.gguf", entry, 1))


@pytest.mark.parametrize("kind", [8, 5])
def test_open_when_an_array_tells_an_absurd_length_then_is_refused_at_once(tmp_path: Path, kind: int) -> None:
    entry = string("some.key") + struct.pack("<IIQ", 9, kind, 2**60)
    with pytest.raises(GgufError, match="truncated"):
        open_gguf(raw_file(tmp_path / "m.gguf", entry, 1))


def test_open_when_a_tensor_has_no_dimensions_then_is_refused(tmp_path: Path) -> None:
    path = raw_file(tmp_path / "m.gguf", table=tensor_entry("w", (), 0, 0), num_tensors=1)
    with pytest.raises(GgufError, match="tensor w has 0 dimensions"):
        open_gguf(path)
