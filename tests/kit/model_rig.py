"""A model run by hand: its runner over pools of its own, sequences cut into chunks at will."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from engine.core.ids import pages_for
from engine.executor.batch import PoolGeometry, build_batch
from engine.executor.decoder import Decoder
from engine.executor.loading import open_model
from engine.executor.model_config import ModelConfig
from engine.executor.model_runner import ModelRunner
from tests.kit.paged_sequence import PagedSequence, make_plan


def read_model(path: Path) -> tuple[ModelConfig, Decoder]:
    """A directory or file, read whole."""
    source = open_model(path)
    return source.blueprint.config, source.read(lambda _fraction, _text: None)


def run_logits(
    config: ModelConfig, decoder: Decoder, token_ids: Sequence[int], *, chunk_len: int | None = None, page_size: int = 4
) -> torch.Tensor:
    """The logits of every token, [n, vocab_size], the sequence being alone in each step and cut into chunks."""
    num_pages = pages_for(len(token_ids), page_size)
    pages = range(1, num_pages + 1)
    has_states = bool(config.state_layers)
    pool = PoolGeometry(
        page_size,
        num_pages + 1,
        num_rows=2,
        swa_pages=0 if config.window is None else num_pages + 1,
        state_slots=3 if has_states else 0,
    )
    runner = ModelRunner(config, decoder, pool)
    sequence = PagedSequence(
        1, pages, swa_pages=None if config.window is None else pages[::-1], states=(1, 2) if has_states else ()
    )
    logits: list[torch.Tensor] = []
    for step, chunk in enumerate(_chunks(token_ids, chunk_len or len(token_ids)), 1):
        plan = make_plan(step, page_size, [sequence.chunk(chunk)], window=config.window, has_states=has_states)
        batch = build_batch(plan, pool)
        logits.append(runner.forward(batch, np.arange(len(chunk))))
    return torch.cat(logits)


def _chunks(token_ids: Sequence[int], chunk_len: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(token_ids), chunk_len):
        yield token_ids[start : start + chunk_len]
