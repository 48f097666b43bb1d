"""Files mapped one behind the other, as if they were one: packages may cut a large file into parts."""

import mmap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class MappedFiles:
    """Read-only. The files stay mapped until this is garbage."""

    __slots__ = ("_parts", "_starts")

    def __init__(self, paths: Sequence[Path]) -> None:
        """`paths` in their order; an empty file adds nothing. Raises OSError when one can't be opened."""
        self._parts = [part for path in paths if (part := _map(path)) is not None]
        self._starts = [0]
        for part in self._parts:
            self._starts.append(self._starts[-1] + len(part))

    @property
    def size_bytes(self) -> int:
        return self._starts[-1]

    def read(self, start: int, end: int) -> bytes:
        """A copy of the bytes from `start` to before `end`, both within the size."""
        if end <= self._starts[1]:
            return self._parts[0][start:end]
        return b"".join(part[low:high] for part, low, high in self._pieces(start, end))

    def view(self, start: int, end: int) -> NDArray[np.uint8]:
        """The same bytes, copied only where they lie in more than one file."""
        views = [np.frombuffer(part, np.uint8, high - low, low) for part, low, high in self._pieces(start, end)]
        return views[0] if len(views) == 1 else np.concatenate([np.empty(0, np.uint8), *views])

    def _pieces(self, start: int, end: int) -> Iterator[tuple[mmap.mmap, int, int]]:
        """Of each file that holds some of the bytes: the file, and from where to where in it."""
        for part, (first, behind) in zip(self._parts, pairwise(self._starts), strict=True):
            low, high = max(start, first), min(end, behind)
            if low < high:
                yield part, low - first, high - first


def _map(path: Path) -> mmap.mmap | None:
    with path.open("rb") as file:
        if file.seek(0, 2) == 0:
            return None
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
