"""Files that are read as if they were one."""

import random
from pathlib import Path

import numpy as np
import pytest

from engine.executor.gguf import GgufError, open_gguf
from engine.executor.mapped_files import MappedFiles
from tests.kit.gguf_files import write_gguf


def cut(folder: Path, whole: bytes, places: list[int]) -> list[Path]:
    """Files that hold `whole` from each place to the next."""
    paths = []
    for number, (start, end) in enumerate(zip([0, *places], [*places, len(whole)], strict=True)):
        paths.append(folder / f"part{number}")
        paths[-1].write_bytes(whole[start:end])
    return paths


@pytest.mark.parametrize("places", [[], [1], [7, 7, 9], [0, 5], [20], [3, 6, 9, 12, 15]])
def test_bytes_when_read_anywhere_then_are_those_of_the_joined_file(tmp_path: Path, places: list[int]) -> None:
    whole = bytes(range(20))
    mapped = MappedFiles(cut(tmp_path, whole, places))
    assert mapped.size_bytes == len(whole)
    for start in range(len(whole) + 1):
        for end in range(start, len(whole) + 1):
            assert mapped.read(start, end) == whole[start:end]
            assert mapped.view(start, end).tobytes() == whole[start:end]


def test_bytes_when_there_are_none_then_the_size_is_0(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert MappedFiles([tmp_path / "empty"] * 2).size_bytes == 0


def test_gguf_when_cut_anywhere_then_is_the_same_file(tmp_path: Path) -> None:
    tensor = np.arange(24, dtype=np.float32).reshape(2, 12)
    metadata = {"general.name": "cut", "tokenizer.ggml.tokens": ["a", "bc"]}
    whole = write_gguf(tmp_path / "whole.gguf", metadata, {"w": tensor}).read_bytes()
    for place in random.Random(6).sample(range(1, len(whole)), 40):
        first, *rest = cut(tmp_path, whole, [place])
        file = open_gguf(first, rest)
        assert file.metadata == metadata
        np.testing.assert_array_equal(file.dequantize("w"), tensor)


def test_gguf_when_its_last_part_is_missing_then_is_refused(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf", {}, {"w": np.ones(8, np.float32)}).read_bytes()
    first, _ = cut(tmp_path, whole, [len(whole) - 4])
    with pytest.raises(GgufError, match="truncated: tensor w"):
        open_gguf(first)
