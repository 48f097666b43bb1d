"""The tensors of a model under their Hugging Face names, wherever they come from."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from engine.executor.model_config import UnsupportedModelError

Progress = Callable[[float, str], None]
"""Called with the fraction done, from 0 to 1, and what is being done."""
TensorReader = Callable[[], NDArray[np.float32]]
"""Reads one tensor, row-major, as a copy of its own."""


class Tensors:
    """Each tensor is fetched by name and shape. What was never asked for is not known, and refused at the end."""

    def __init__(
        self, file_name: str, readers: Mapping[str, TensorReader], own_name: Callable[[str], str] = str
    ) -> None:
        """For messages: `file_name`, and `own_name`, which gives what the file itself calls a tensor."""
        self._file_name = file_name
        self._own_name = own_name
        self._readers = readers
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._readers

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor as float32. Raises UnsupportedModelError when it is missing or has another shape."""
        reader = self._readers.get(name)
        if reader is None:
            raise UnsupportedModelError(f"{self._shown(name)} is missing")
        self._taken.add(name)
        array = reader()
        if array.shape != shape:
            raise UnsupportedModelError(f"{self._shown(name)} has shape {array.shape}, not {shape}")
        return torch.from_numpy(array)

    def ignore(self, name: str) -> None:
        """A tensor that may be there and is not needed."""
        self._taken.add(name)

    def refuse_rest(self) -> None:
        """Raises UnsupportedModelError when there are tensors that nobody asked for: the model is another one."""
        unknown = sorted(self._readers.keys() - self._taken)
        if unknown:
            raise UnsupportedModelError(f"{self._shown(unknown[0])} is unknown ({len(unknown)} in all)")

    def _shown(self, name: str) -> str:
        return f"{self._file_name}: tensor {self._own_name(name)}"
