"""The real small model, loaded once, and its reference outputs."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.executor.decoder import Decoder
from engine.executor.gguf import GgufFile, open_gguf
from engine.executor.loading import open_model
from engine.executor.model_config import ModelConfig
from engine.executor.model_files import find_embedded_model

REFERENCES = Path(__file__).parent / "data" / "smollm2.json"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    config: ModelConfig
    decoder: Decoder


@pytest.fixture(scope="session")
def smollm2_file() -> GgufFile:
    return open_gguf(find_embedded_model())


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    source = open_model(find_embedded_model())
    return LoadedModel(source.blueprint.config, source.read(lambda _fraction, _text: None))


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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refresh-golden", action="store_true", help="write the expected trees of spans anew")
