"""Loads a model, from a GGUF file or a Hugging Face directory, into an executor."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from engine.core.ownership import PoolKind
from engine.executor.batch import PoolGeometry
from engine.executor.decoder import Decoder
from engine.executor.device_faults import DeviceFaults
from engine.executor.gguf import GgufFile, open_gguf
from engine.executor.gguf_config import config_from_gguf
from engine.executor.gguf_tensors import gguf_tensors, gguf_weight_bytes
from engine.executor.hf_config import open_hf_config
from engine.executor.hf_weights import hf_weight_bytes, open_hf_tensors
from engine.executor.kv_storage import kv_bytes_per_token
from engine.executor.layers.attention import rotary_tables
from engine.executor.memory import FreeMemory, free_memory, show_bytes
from engine.executor.model_config import ModelConfig
from engine.executor.model_runner import ModelRunner
from engine.executor.models.blueprint import Blueprint
from engine.executor.models.registry import read_blueprint
from engine.executor.pool_size import NoRoomError, PoolPolicy, require_room_for_weights, size_pools
from engine.executor.pool_words import ModelMemory
from engine.executor.state_storage import state_bytes
from engine.executor.tensors import Progress, Tensors
from engine.executor.torch_executor import TorchExecutor


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model on disk, its weights not read yet."""

    blueprint: Blueprint
    weight_bytes: int
    """What its tensors take as float32, each once. More is in use while they are laid out."""
    open_tensors: Callable[[], AbstractContextManager[Tensors]]

    def read(self, progress: Progress) -> Decoder:
        """Reads the whole model. Raises UnsupportedModelError when it has other tensors than it should, GgufError or
        HfFileError when a file is broken."""
        with self.open_tensors() as tensors:
            decoder = self.blueprint.build(tensors, progress)
            tensors.refuse_rest()
        progress(1.0, "weights loaded")
        return decoder


def open_model(path: Path, rest: Sequence[Path] = ()) -> ModelSource:
    """A directory is read as Hugging Face lays models out, a file as GGUF, `rest` being what follows it where it comes
    in parts. Raises GgufError, HfFileError, UnsupportedModelError, OSError."""
    if path.is_dir():
        blueprint = read_blueprint(open_hf_config(path))
        return ModelSource(blueprint, hf_weight_bytes(path), partial(open_hf_tensors, path))
    file = open_gguf(path, rest)
    return ModelSource(read_blueprint(config_from_gguf(file)), gguf_weight_bytes(file), partial(_open_gguf, file))


@contextmanager
def _open_gguf(file: GgufFile) -> Iterator[Tensors]:
    yield gguf_tensors(file)


@dataclass(frozen=True, slots=True)
class LoadedExecutor:
    executor: TorchExecutor
    notes: tuple[str, ...]
    """For people: how large the pools are and why, and what of it may surprise."""


def load_executor(
    path: Path,
    *,
    rest: Sequence[Path] = (),
    pool: PoolPolicy,
    num_rows: int,
    threads: int,
    progress: Progress,
    name: str | None = None,
    faults: DeviceFaults | None = None,
    measure: Callable[[], FreeMemory] = free_memory,
) -> LoadedExecutor:
    """Loads the weights, then measures what they left, and makes the pool of it.

    Weights for which there is no room whatever are refused before they are read: a container's limit ends a process
    that goes on without a word. Blocks for the seconds that dequantizing takes: call it off the event loop. `num_rows`
    counts the padding row 0. `name` takes the place of the model's own. With `faults` its forwards can be made to go
    wrong. Raises GgufError, HfFileError, UnsupportedModelError, PoolSettingError, NoRoomError, MemoryError, OSError.
    """
    torch.set_num_threads(threads)
    progress(0.0, f"reading {path.name}")
    source = open_model(path, rest)
    config = source.blueprint.config
    require_room_for_weights(source.weight_bytes, measure())
    try:
        decoder = source.read(progress)
    except RuntimeError as error:  # torch's own way of saying that memory ran out
        if "can't allocate memory" not in str(error):
            raise
        raise NoRoomError(f"the weights do not fit into memory while they are laid out: {error}") from error
    for table in rotary_tables(decoder):  # what grew later would take memory that the pools were given
        table.reserve(min(pool.context_len, config.context_len))
    shown = config if name is None else replace(config, name=name)
    memory = _memory_of(config)
    size = size_pools(pool, memory, measure())
    progress(1.0, f"writing the KV {'pool' if memory.has_one_pool else 'pools'}, {show_bytes(size.num_bytes)}")
    geometry = PoolGeometry(pool.page_size, size.pages, num_rows, size.swa_pages, size.state_slots)
    runner = ModelRunner(shown, decoder, geometry)
    notes = (*size.summary.splitlines(), *(() if size.warning is None else (size.warning,)))
    return LoadedExecutor(TorchExecutor(runner, threads, faults), notes)


def _memory_of(config: ModelConfig) -> ModelMemory:
    return ModelMemory(
        context_len=config.context_len,
        bytes_per_token=kv_bytes_per_token(config, PoolKind.FULL),
        window=config.window,
        swa_bytes_per_token=kv_bytes_per_token(config, PoolKind.SWA),
        state_bytes=state_bytes(config),
    )
