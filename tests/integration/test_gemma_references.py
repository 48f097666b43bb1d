"""Gemma 3 270M against outputs that another implementation computed from the same weights (see `meta` in the file)."""

import hashlib
from dataclasses import dataclass

import pytest
import torch

from engine.core.ownership import PoolKind
from engine.executor.decoder import Decoder
from engine.executor.model_config import ModelConfig
from tests.kit.gemma import (
    CHUNK_LEN,
    Item,
    forced_logits,
    gemma_files,
    needs_gemma,
    read_gemma,
    reference_items,
    reference_meta,
)

SAFE_MARGIN = 1e-3
"""Where the reference's two best logits are closer than this, either is right."""
LOGPROB_TOLERANCE = 1e-3

ITEMS = reference_items()
PAST_THE_WINDOW = next(item for item in ITEMS if item.name == "apache_700")

pytestmark = [pytest.mark.exact, needs_gemma, pytest.mark.usefixtures("one_thread")]


@dataclass(frozen=True, slots=True)
class Gemma:
    config: ModelConfig
    decoder: Decoder

    def logits(self, item: Item, *, window: int | None = None, chunk_len: int = CHUNK_LEN) -> torch.Tensor:
        return forced_logits(self.config, self.decoder, item, window=window, chunk_len=chunk_len)


@pytest.fixture(scope="module")
def gemma() -> Gemma:
    return Gemma(*read_gemma())


def test_model_file_when_its_parts_are_joined_then_is_the_one_the_references_were_made_from() -> None:
    digest = hashlib.sha256()
    for path in gemma_files():
        digest.update(path.read_bytes())
    assert digest.hexdigest() == reference_meta()["gguf_sha256"]


def test_config_when_read_then_has_the_windows_and_ids_of_the_reference(gemma: Gemma) -> None:
    config, meta = gemma.config, reference_meta()
    assert config.window == meta["sliding_window"]
    assert (config.bos_id, config.eos_ids) == (meta["bos_id"], (meta["eos_id"],))
    kinds = [layer.kind for layer in config.kv_layers]
    assert kinds == [*[PoolKind.SWA] * 5, PoolKind.FULL] * 3


@pytest.mark.parametrize("item", ITEMS, ids=[f"{item.name}-{len(item.prompt_ids)}" for item in ITEMS])
def test_forced_decoding_when_the_history_is_the_references_then_ids_and_logprobs_are_its(
    gemma: Gemma, item: Item
) -> None:
    logits = gemma.logits(item)
    safe = torch.tensor(item.margin) >= SAFE_MARGIN
    assert safe.sum() >= 60
    assert logits.argmax(-1)[safe].tolist() == torch.tensor(item.output_ids)[safe].tolist()
    worst = worst_logprob(logits, item)
    print(f"{item.name}: worst log-probability off by {worst:.1e}")  # noqa: T201
    assert worst < LOGPROB_TOLERANCE


@pytest.mark.parametrize("window", [511, 513, 4096])
def test_forced_decoding_when_the_window_is_another_one_then_the_logprobs_show_it(gemma: Gemma, window: int) -> None:
    """The pair of the test before it: what it compares is touched by one key more or less."""
    worst = worst_logprob(gemma.logits(PAST_THE_WINDOW, window=window), PAST_THE_WINDOW)
    print(f"window {window}: worst log-probability off by {worst:.1e}")  # noqa: T201
    assert worst > 5 * LOGPROB_TOLERANCE


def test_prefill_when_cut_into_other_chunks_then_the_logits_are_the_same_bit_for_bit(gemma: Gemma) -> None:
    """With a model of real width, and a window that begins in another chunk than it ends in."""
    assert torch.equal(gemma.logits(PAST_THE_WINDOW, chunk_len=97), gemma.logits(PAST_THE_WINDOW))


def worst_logprob(logits: torch.Tensor, item: Item) -> float:
    """By how much the log-probability of an output id is off at most."""
    found = logits.log_softmax(-1).gather(-1, torch.tensor(item.output_ids).unsqueeze(-1)).squeeze(-1)
    return float((found - torch.tensor(item.logprob)).abs().max())
