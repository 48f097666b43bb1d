"""The same tokens run in many ways, whose logits must be the same bits, and models in which no part can be left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from engine.core.ids import pages_for
from engine.executor.batch import PoolGeometry, build_batch
from engine.executor.decoder import Decoder
from engine.executor.model_config import ModelConfig
from engine.executor.model_runner import ModelRunner
from tests.kit.model_rig import run_logits
from tests.kit.paged_sequence import PagedSequence, make_plan
from tests.kit.recipes import Saved, save_recipe

PROMPT_LEN = 100
"""Several windows of a recipe, and more than one block of keys."""
_VOCAB_SIZE = 256


@dataclass(frozen=True, slots=True)
class Cut:
    """One way to run the same tokens."""

    chunk_len: int
    page_size: int
    threads: int = 1
    has_strangers: bool = False
    num_tokens: int = PROMPT_LEN
    """Fewer where a second thread has many small steps to wait for."""


CUTS = (
    Cut(1, 16),
    Cut(7, 1),
    Cut(7, 64),
    Cut(33, 16, threads=2),
    Cut(64, 16),
    Cut(64, 1, threads=2),
    Cut(PROMPT_LEN, 64, threads=2),
    Cut(1, 16, has_strangers=True),
    Cut(7, 16, has_strangers=True),
    Cut(64, 64, threads=2, has_strangers=True),
)


def long_prompt() -> list[int]:
    drawn = torch.randint(3, _VOCAB_SIZE, (PROMPT_LEN,), generator=torch.Generator().manual_seed(7))
    return [int(token_id) for token_id in drawn]


def save_shaken(name: str, directory: Path, changed: Mapping[str, object] | None = None) -> Saved:
    """The recipe's model with biases and norms of its own: as they are made, a forward could do without them."""
    saved = save_recipe(name, directory, changed)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter_name, parameter in saved.model.named_parameters():
            if parameter.ndim == 1 or parameter_name.endswith("bias"):
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    saved.model.save_pretrained(directory)
    return saved


def worst(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, in standard deviations of what is expected."""
    return float((logits - expected).abs().max() / expected.std())


def logits_cut(config: ModelConfig, decoder: Decoder, token_ids: Sequence[int], cut: Cut) -> torch.Tensor:
    """Of the first `cut.num_tokens`. Leaves torch at `cut.threads`."""
    torch.set_num_threads(cut.threads)
    token_ids = token_ids[: cut.num_tokens]
    if cut.has_strangers:
        return _logits_beside_strangers(config, decoder, token_ids, cut)
    return run_logits(config, decoder, token_ids, chunk_len=cut.chunk_len, page_size=cut.page_size)


def _logits_beside_strangers(config: ModelConfig, decoder: Decoder, token_ids: Sequence[int], cut: Cut) -> torch.Tensor:
    """Of a row that runs between one that decodes and one that runs in chunks of 3."""
    num_pages = pages_for(len(token_ids), cut.page_size)
    pool_pages = 3 * num_pages + 1
    swa_pages = 0 if config.window is None else pool_pages
    state_slots = 7 if config.state_layers else 0
    pool = PoolGeometry(cut.page_size, pool_pages, num_rows=4, swa_pages=swa_pages, state_slots=state_slots)
    rows = []
    for row in range(3):
        pages = range(1 + row, pool_pages, 3)
        states = range(1 + 2 * row, 3 + 2 * row) if state_slots else ()
        rows.append(PagedSequence(1 + row, pages, swa_pages=pages[::-1] if swa_pages else None, states=states))
    runner = ModelRunner(config, decoder, pool)
    logits = []
    for step, start in enumerate(range(0, len(token_ids), cut.chunk_len)):
        chunk = token_ids[start : start + cut.chunk_len]
        planned = [rows[0].chunk([token_ids[-1 - step]]), rows[1].chunk(chunk)]
        if step < len(token_ids) // 3:
            planned.append(rows[2].chunk(token_ids[3 * step : 3 * step + 3][::-1]))
        plan = make_plan(step + 1, cut.page_size, planned, window=config.window, has_states=bool(state_slots))
        logits.append(runner.forward(build_batch(plan, pool), np.arange(1, 1 + len(chunk))))
    return torch.cat(logits)
