"""The real small model, loaded once, and its reference outputs."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.executor.gguf import GgufFile, open_gguf
from engine.executor.model_config import ModelConfig, config_from_gguf
from engine.executor.model_files import find_embedded_model
from engine.executor.weights import LlamaWeights, weights_from_gguf

REFERENCES = Path(__file__).parent / "data" / "smollm2.json"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    config: ModelConfig
    weights: LlamaWeights


@pytest.fixture(scope="session")
def smollm2_file() -> GgufFile:
    return open_gguf(find_embedded_model())


@pytest.fixture(scope="session")
def smollm2(smollm2_file: GgufFile) -> LoadedModel:
    config = config_from_gguf(smollm2_file)
    return LoadedModel(config, weights_from_gguf(smollm2_file, config, lambda _fraction, _text: None))


@pytest.fixture(scope="session")
def references() -> dict[str, Any]:
    """`single` and `chats` as in the file; `meta` says how they were made."""
    loaded: dict[str, Any] = json.loads(REFERENCES.read_text(encoding="utf-8"))
    return loaded


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch on one thread, and as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
