"""Loads a model, from a GGUF file or a Hugging Face directory, into an executor."""

from dataclasses import replace
from pathlib import Path

import torch

from engine.executor.batch import PoolGeometry
from engine.executor.gguf import open_gguf
from engine.executor.hf_config import config_from_hf
from engine.executor.hf_weights import weights_from_hf
from engine.executor.model_config import ModelConfig, config_from_gguf
from engine.executor.model_runner import ModelRunner
from engine.executor.torch_executor import TorchExecutor
from engine.executor.weights import LlamaWeights, Progress, weights_from_gguf


def load_executor(
    path: Path,
    *,
    page_size: int,
    pool_pages: int,
    num_rows: int,
    threads: int,
    progress: Progress,
    name: str | None = None,
) -> TorchExecutor:
    """Blocks for the seconds that dequantizing takes: call it off the event loop.

    `pool_pages` and `num_rows` count the padding page 0 and row 0. `name` takes the place of the model's own.
    Raises GgufError, HfFileError, UnsupportedModelError, OSError.
    """
    torch.set_num_threads(threads)
    progress(0.0, f"reading {path.name}")
    config, weights = (_load_hf if path.is_dir() else _load_gguf)(path, progress)
    shown = config if name is None else replace(config, name=name)
    return TorchExecutor(ModelRunner(shown, weights, PoolGeometry(page_size, pool_pages, num_rows)), threads)


def _load_gguf(path: Path, progress: Progress) -> tuple[ModelConfig, LlamaWeights]:
    file = open_gguf(path)
    config = config_from_gguf(file)
    return config, weights_from_gguf(file, config, progress)


def _load_hf(directory: Path, progress: Progress) -> tuple[ModelConfig, LlamaWeights]:
    config = config_from_hf(directory)
    return config, weights_from_hf(directory, config, progress)
