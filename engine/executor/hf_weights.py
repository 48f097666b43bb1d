"""Float32 tensors from the safetensors files of a Hugging Face directory."""

import math
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from engine.executor.hf_files import HfFileError, find_weight_files
from engine.executor.model_config import UnsupportedModelError
from engine.executor.tensors import TensorReader, Tensors

DTYPES = ("F32", "F16", "BF16")
"""Names that safetensors gives to the types that can be read."""

_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""What older files hold besides, and the configuration says already."""


@contextmanager
def open_hf_tensors(directory: Path) -> Iterator[Tensors]:
    """All tensors of a model; its files stay open meanwhile. Raises HfFileError when one is missing or broken."""
    with _open_files(directory) as places:
        readers = {name: _reader(file_name, file, name) for name, (file_name, file) in places.items()}
        tensors = Tensors(directory.resolve().name, readers)
        for name in places:
            if _DERIVED.fullmatch(name):
                tensors.ignore(name)
        yield tensors


def hf_weight_bytes(directory: Path) -> int:
    """What all tensors of the files take as float32. Raises as `open_hf_tensors`."""
    with _open_files(directory) as places:
        shapes: list[list[int]] = [file.get_slice(name).get_shape() for name, (_, file) in places.items()]
    return sum(math.prod(shape) for shape in shapes) * torch.float32.itemsize


@contextmanager
def _open_files(directory: Path) -> Iterator[dict[str, tuple[str, safe_open]]]:
    """Each tensor of the directory, by its name: the file that has it, and its name."""
    places: dict[str, tuple[str, safe_open]] = {}
    with ExitStack() as files:
        for path in find_weight_files(directory):
            try:
                file = files.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, FileNotFoundError) as error:
                raise HfFileError(f"{path.name} can not be read: {error}") from error
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if name in places:
                    raise HfFileError(f"tensor {name} is in two files; the second is {path.name}")
                places[name] = (path.name, file)
        yield places


def _reader(file_name: str, file: safe_open, name: str) -> TensorReader:
    def read() -> NDArray[np.float32]:
        dtype = file.get_slice(name).get_dtype()
        if dtype not in DTYPES:
            raise UnsupportedModelError(f"{file_name}: tensor {name} is {dtype}; known are {', '.join(DTYPES)}")
        # Copied even where it is float32 already: what is read now must not follow the file later.
        array: NDArray[np.float32] = file.get_tensor(name).to(torch.float32, copy=True).numpy()
        return array

    return read
