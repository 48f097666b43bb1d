"""Loads a model file into an executor."""

from pathlib import Path

import torch

from engine.executor.batch import PoolGeometry
from engine.executor.gguf import open_gguf
from engine.executor.model_config import config_from_gguf
from engine.executor.model_runner import ModelRunner
from engine.executor.torch_executor import TorchExecutor
from engine.executor.weights import Progress, weights_from_gguf


def load_executor(
    path: Path, *, page_size: int, pool_pages: int, num_rows: int, threads: int, progress: Progress
) -> TorchExecutor:
    """Blocks for the seconds that dequantizing takes: call it off the event loop.

    `pool_pages` and `num_rows` count the padding page 0 and row 0. Raises GgufError, UnsupportedModelError, OSError.
    """
    torch.set_num_threads(threads)
    progress(0.0, f"reading {path.name}")
    file = open_gguf(path)
    config = config_from_gguf(file)
    weights = weights_from_gguf(file, config, progress)
    runner = ModelRunner(config, weights, PoolGeometry(page_size, pool_pages, num_rows))
    return TorchExecutor(runner, threads)
