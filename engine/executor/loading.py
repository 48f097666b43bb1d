"""Loads a model, from a GGUF file or a Hugging Face directory, into an executor."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from engine.executor.batch import PoolGeometry
from engine.executor.device_faults import DeviceFaults
from engine.executor.gguf import open_gguf
from engine.executor.hf_config import config_from_hf
from engine.executor.hf_weights import weights_from_hf
from engine.executor.kv_storage import kv_bytes_per_token
from engine.executor.memory import FreeMemory, free_memory, show_bytes
from engine.executor.model_config import ModelConfig, config_from_gguf
from engine.executor.model_runner import ModelRunner
from engine.executor.pool_size import NoRoomError, PoolPolicy, require_room_for_weights, size_pool
from engine.executor.torch_executor import TorchExecutor
from engine.executor.weights import LlamaWeights, Progress, weights_from_gguf

_ReadWeights = Callable[[Progress], LlamaWeights]


@dataclass(frozen=True, slots=True)
class LoadedExecutor:
    executor: TorchExecutor
    notes: tuple[str, ...]
    """For people: how large the pool is and why, and what of it may surprise."""


def load_executor(
    path: Path,
    *,
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
    wrong. Raises GgufError, HfFileError, UnsupportedModelError, NoRoomError, MemoryError, OSError.
    """
    torch.set_num_threads(threads)
    progress(0.0, f"reading {path.name}")
    config, read_weights = (_open_hf if path.is_dir() else _open_gguf)(path)
    require_room_for_weights(weight_bytes(config), measure())
    try:
        weights = read_weights(progress)
    except RuntimeError as error:  # torch's own way of saying that memory ran out
        if "can't allocate memory" not in str(error):
            raise
        raise NoRoomError(f"the weights do not fit into memory while they are laid out: {error}") from error
    shown = config if name is None else replace(config, name=name)
    bytes_per_token = kv_bytes_per_token(config)
    size = size_pool(pool, model_context_len=config.context_len, bytes_per_token=bytes_per_token, free=measure())
    progress(1.0, f"writing the KV pool, {show_bytes(size.num_bytes)}")
    runner = ModelRunner(shown, weights, PoolGeometry(pool.page_size, size.pages, num_rows))
    notes = (size.summary,) if size.warning is None else (size.summary, size.warning)
    return LoadedExecutor(TorchExecutor(runner, threads, faults), notes)


def weight_bytes(config: ModelConfig) -> int:
    """What the tensors of a model take as float32, each once. More is in use while they are laid out."""
    hidden = config.hidden_size
    attention = 2 * hidden * (config.num_heads + config.num_kv_heads) * config.head_dim
    layer = attention + 3 * hidden * config.ffn_size + 2 * hidden
    vocab_matrices = 1 if config.has_tied_embeddings else 2
    num_values = config.num_layers * layer + vocab_matrices * config.vocab_size * hidden + hidden
    return num_values * torch.float32.itemsize


def _open_gguf(path: Path) -> tuple[ModelConfig, _ReadWeights]:
    file = open_gguf(path)
    config = config_from_gguf(file)
    return config, partial(weights_from_gguf, file, config)


def _open_hf(directory: Path) -> tuple[ModelConfig, _ReadWeights]:
    config = config_from_hf(directory)
    return config, partial(weights_from_hf, directory, config)
