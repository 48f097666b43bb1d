"""Gemma 3 270M, which is an optional part, and what a reference implementation computed from the same file."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.core.ids import pages_for
from engine.executor.batch import PoolGeometry, build_batch
from engine.executor.decoder import Decoder
from engine.executor.loading import open_model
from engine.executor.model_config import ModelConfig
from engine.executor.model_files import MODELS, ModelNotFoundError, find_packaged
from engine.executor.model_runner import ModelRunner
from tests.kit.paged_sequence import PagedSequence, make_plan
from tests.kit.requirements import requires

REFERENCES_FILE = Path(__file__).parent.parent / "integration" / "data" / "gemma3_270m.json"
PAGE_SIZE = 16
CHUNK_LEN = 512


def gemma_files() -> tuple[Path, ...]:
    """The parts of the model file; none where the extra is not installed."""
    try:
        return find_packaged(MODELS["gemma3"])
    except ModelNotFoundError:
        return ()


needs_gemma = requires(
    "the extra 'gemma'",
    present=bool(gemma_files()),
    reason="no real model with sliding windows is compared with a reference",
)


@dataclass(frozen=True, slots=True)
class Item:
    """A prompt, and what the reference chose after it, greedily."""

    name: str
    prompt: str | None
    prompt_ids: list[int]
    output_ids: list[int]
    text: str
    """Of the output."""
    margin: list[float]
    """Between the best logit and the second."""
    logprob: list[float]
    """Of each output id."""

    @property
    def history(self) -> list[int]:
        """What the model sees before it chooses the last output id."""
        return [*self.prompt_ids, *self.output_ids[:-1]]


def reference_items() -> tuple[Item, ...]:
    held: dict[str, Any] = json.loads(REFERENCES_FILE.read_text(encoding="utf-8"))
    fields = Item.__dataclass_fields__
    return tuple(Item(**{name: item[name] for name in fields}) for item in held["items"])


def reference_meta() -> dict[str, Any]:
    """How the outputs were made, and from which file."""
    held: dict[str, Any] = json.loads(REFERENCES_FILE.read_text(encoding="utf-8"))["meta"]
    return held


def read_gemma() -> tuple[ModelConfig, Decoder]:
    first, *rest = gemma_files()
    source = open_model(first, rest)
    return source.blueprint.config, source.read(lambda _fraction, _text: None)


def forced_logits(
    config: ModelConfig, decoder: Decoder, item: Item, *, window: int | None = None, chunk_len: int = CHUNK_LEN
) -> torch.Tensor:
    """The logits that choose each output id when the history is the reference's, [num_outputs, vocab_size].

    `window` takes the place of the model's own.
    """
    if window is not None:
        config = replace(config, window=window)
    history, num_outputs = item.history, len(item.output_ids)
    num_pages = pages_for(len(history), PAGE_SIZE)
    pool = PoolGeometry(PAGE_SIZE, num_pages + 1, num_rows=2, swa_pages=num_pages + 1)
    runner = ModelRunner(config, decoder, pool)
    pages = range(1, num_pages + 1)
    sequence = PagedSequence(1, pages, swa_pages=pages[::-1])
    chosen: list[torch.Tensor] = []
    for step, (start, chunk) in enumerate(_chunks(history, chunk_len), 1):
        plan = make_plan(step, PAGE_SIZE, [sequence.chunk(chunk)], window=config.window)
        wanted = np.arange(max(len(history) - num_outputs - start, 0), len(chunk))
        logits = runner.forward(build_batch(plan, pool), wanted if len(wanted) else np.arange(1))
        chosen += [logits] if len(wanted) else []
    return torch.cat(chosen)


def _chunks(token_ids: Sequence[int], chunk_len: int) -> Iterator[tuple[int, Sequence[int]]]:
    for start in range(0, len(token_ids), chunk_len):
        yield start, token_ids[start : start + chunk_len]
