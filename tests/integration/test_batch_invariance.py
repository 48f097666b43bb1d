"""A token's logits do not depend, in any bit, on the batch, the chunks, the page size or the threads it ran with."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from engine.core.plan import PlanRow
from engine.executor.batch import PoolGeometry, build_batch
from engine.executor.decoder import Decoder
from engine.executor.linear import Linear, pad_rows
from engine.executor.model_config import ModelConfig
from engine.executor.model_runner import ModelRunner
from tests.integration.conftest import LoadedModel
from tests.kit.paged_sequence import PagedSequence, make_plan
from tests.kit.tiny_llama import tiny_llama_config, tiny_llama_decoder

BATCH_SIZES = (1, 2, 3, 7, 8, 33)
CHUNK_LENS = (1, 7, 64)
THREADS = (1, 2)
PLACEMENTS = ((1, 1), (1, 16), (1, 64), (2, 16))
"""Threads and page size. Pages only move memory about, so one size is enough for the second thread."""
BLOCK_EDGE = 64
"""Attention cuts its keys here: sequences must be longer than one block."""

VERIFIED_FROM = 50
"""Position of the first row with drafts: short of `BLOCK_EDGE`, so that drafts are cut by it."""

pytestmark = pytest.mark.exact


@dataclass(frozen=True, slots=True)
class Cut:
    """One way to run the same tokens."""

    batch_size: int
    chunk_len: int
    threads: int
    page_size: int


@dataclass(frozen=True, slots=True)
class Verified:
    """One way to verify drafts beside strangers that do so too."""

    batch_size: int
    num_drafts: int
    wrong_place: int
    """Place of the one wrong draft of each row; `num_drafts` for none."""
    threads: int = 1
    page_size: int = 16


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_logits_of_a_tiny_model_when_cut_in_every_way_then_equal_bit_for_bit() -> None:
    config = tiny_llama_config()
    decoder = tiny_llama_decoder()
    token_ids = _token_ids(config, BLOCK_EDGE + 9)
    expected = _logits(config, decoder, token_ids, Cut(1, len(token_ids), 1, 16))
    cuts = [
        Cut(batch_size, chunk_len, threads, page_size)
        for batch_size, chunk_len, (threads, page_size) in itertools.product(BATCH_SIZES, CHUNK_LENS, PLACEMENTS)
    ]
    different = [cut for cut in cuts if not torch.equal(_logits(config, decoder, token_ids, cut), expected)]
    assert not different
    assert len(cuts) == 72


def test_logits_of_a_tiny_model_when_many_blocks_are_merged_then_equal_bit_for_bit() -> None:
    config = tiny_llama_config()
    decoder = tiny_llama_decoder()
    token_ids = _token_ids(config, 5 * BLOCK_EDGE + 1)
    expected = _logits(config, decoder, token_ids, Cut(1, len(token_ids), 1, 16))
    for cut in (Cut(1, 1, 1, 16), Cut(3, 50, 1, 5)):
        assert torch.equal(_logits(config, decoder, token_ids, cut), expected)


@pytest.mark.parametrize(
    "cut",
    [
        Cut(1, 1, 1, 16),
        Cut(1, 7, 1, 1),
        Cut(2, 7, 2, 64),
        Cut(3, 64, 2, 16),
        Cut(7, 7, 1, 64),
        Cut(8, 1, 1, 16),
        Cut(8, 64, 1, 1),
        Cut(33, 7, 1, 16),
        Cut(33, 64, 1, 16),
    ],
    ids=str,
)
def test_logits_of_the_real_model_when_cut_then_equal_bit_for_bit(smollm2: LoadedModel, cut: Cut) -> None:
    token_ids = _token_ids(smollm2.config, BLOCK_EDGE + 6)
    expected = _logits(smollm2.config, smollm2.decoder, token_ids, Cut(1, len(token_ids), 1, 16))
    assert torch.equal(_logits(smollm2.config, smollm2.decoder, token_ids, cut), expected)


def test_logits_of_a_tiny_model_when_drafts_are_verified_then_equal_those_of_single_decodes_bit_for_bit() -> None:
    config = tiny_llama_config()
    decoder = tiny_llama_decoder()
    token_ids = _token_ids(config, BLOCK_EDGE + 9)
    expected = _logits(config, decoder, token_ids, Cut(1, 1, 1, 16))[VERIFIED_FROM:]
    cases = [
        Verified(batch_size, num_drafts, wrong_place, threads, page_size)
        for batch_size, num_drafts, (threads, page_size) in itertools.product((1, 3, 8, 33), (1, 4, 9), PLACEMENTS)
        for wrong_place in sorted({0, num_drafts // 2, num_drafts})
    ]
    different = [
        case for case in cases if not torch.equal(_verified_logits(config, decoder, token_ids, case), expected)
    ]
    assert not different
    assert len(cases) == 4 * (2 + 3 + 3) * len(PLACEMENTS)


@pytest.mark.parametrize(
    "case",
    [
        Verified(1, 4, 2),
        Verified(3, 7, 3, threads=2),
        pytest.param(Verified(1, 4, 4), marks=pytest.mark.exact_full),
        pytest.param(Verified(8, 4, 0, page_size=1), marks=pytest.mark.exact_full),
    ],
    ids=str,
)
def test_logits_of_the_real_model_when_drafts_are_verified_then_equal_those_of_single_decodes_bit_for_bit(
    smollm2: LoadedModel, case: Verified
) -> None:
    token_ids = _token_ids(smollm2.config, BLOCK_EDGE + 6)
    expected = _logits(smollm2.config, smollm2.decoder, token_ids, Cut(1, 1, 1, 16))[VERIFIED_FROM:]
    assert torch.equal(_verified_logits(smollm2.config, smollm2.decoder, token_ids, case), expected)


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize(("in_size", "out_size"), [(576, 960), (576, 576), (576, 3072), (1536, 576), (64, 300)])
def test_linear_when_rows_stand_elsewhere_among_others_then_equal_bit_for_bit(
    in_size: int, out_size: int, is_packed: bool
) -> None:
    generator = torch.Generator().manual_seed(1)
    linear = Linear(torch.randn(out_size, in_size, generator=generator), is_packed=is_packed)
    rows = torch.randn(136, in_size, generator=generator)
    with torch.inference_mode():
        for threads in THREADS:
            torch.set_num_threads(threads)
            together = linear(rows)
            for num_rows in range(1, len(rows), 5):
                assert torch.equal(linear(pad_rows(rows[-num_rows:]))[:num_rows], together[-num_rows:])


def test_linear_when_packed_then_is_the_same_product_as_the_plain_one() -> None:
    generator = torch.Generator().manual_seed(1)
    weight, rows = torch.randn(96, 64, generator=generator), torch.randn(8, 64, generator=generator)
    packed, plain = Linear(weight, is_packed=True)(rows), Linear(weight, is_packed=False)(rows)
    torch.testing.assert_close(packed, plain)
    torch.testing.assert_close(plain, (rows.double() @ weight.double().t()).float())


def _token_ids(config: ModelConfig, count: int, seed: int = 0) -> list[int]:
    drawn: list[int] = np.random.default_rng(seed).integers(20, config.vocab_size, count).tolist()
    return drawn


def _logits(config: ModelConfig, decoder: Decoder, token_ids: list[int], cut: Cut) -> torch.Tensor:
    """The logits of every one of `token_ids`, run in the middle of a batch of strangers that are cut otherwise."""
    torch.set_num_threads(cut.threads)
    pages_each = -(-(len(token_ids) + cut.chunk_len) // cut.page_size) + 1
    pool = PoolGeometry(cut.page_size, 1 + cut.batch_size * pages_each, cut.batch_size + 1)
    runner = ModelRunner(config, decoder, pool)
    # Dealt out in turn, so that no sequence has its pages side by side.
    rows = [
        PagedSequence(1 + place, [1 + place + cut.batch_size * page for page in range(pages_each)])
        for place in range(cut.batch_size)
    ]
    strangers = [_token_ids(config, len(token_ids), seed=1 + place) for place in range(cut.batch_size)]
    target = cut.batch_size // 2
    logits = []
    for step, start in enumerate(range(0, len(token_ids), cut.chunk_len), 1):
        planned = []
        for place, row in enumerate(rows):
            if place == target:
                planned.append(row.chunk(token_ids[start : start + cut.chunk_len]))
            elif own := strangers[place][row.planned_len :][: 1 + place % cut.chunk_len]:
                planned.append(row.chunk(own))
        batch = build_batch(make_plan(step, cut.page_size, planned), pool)
        place = next(place for place, row in enumerate(planned) if row.req_pool_idx == rows[target].req_pool_idx)
        logits.append(runner.forward(batch, np.arange(batch.qo_indptr[place], batch.qo_indptr[place + 1])))
    return torch.cat(logits)


def _verified_logits(config: ModelConfig, decoder: Decoder, token_ids: list[int], case: Verified) -> torch.Tensor:
    """The logits of `token_ids[VERIFIED_FROM:]`, from rows of drafts: what lies behind a wrong draft is run again."""
    torch.set_num_threads(case.threads)
    pages_each = -(-(len(token_ids) + 1) // case.page_size)
    pool = PoolGeometry(case.page_size, 1 + case.batch_size * pages_each, case.batch_size + 1)
    runner = ModelRunner(config, decoder, pool)
    rows = [
        PagedSequence(1 + place, [1 + place + case.batch_size * page for page in range(pages_each)])
        for place in range(case.batch_size)
    ]
    target = case.batch_size // 2
    histories = [_token_ids(config, len(token_ids), seed=1 + place) for place in range(case.batch_size)]
    histories[target] = token_ids
    steps = itertools.count(1)
    prompts = [row.chunk(ids[:VERIFIED_FROM], num_samples=0) for row, ids in zip(rows, histories, strict=True)]
    prefill = build_batch(make_plan(next(steps), case.page_size, prompts), pool)
    assert len(runner.forward(prefill, prefill.sample_idx)) == 0
    logits = []
    while rows[target].planned_len < len(token_ids):
        planned = [_verifying(row, ids, case, config.vocab_size) for row, ids in zip(rows, histories, strict=True)]
        batch = build_batch(make_plan(next(steps), case.page_size, planned), pool)
        own = slice(batch.sample_indptr[target], batch.sample_indptr[target + 1])
        num_right = min(case.wrong_place + 1, planned[target].query_len)
        logits.append(runner.forward(batch, batch.sample_idx)[own][:num_right])
        for row, plan_row in zip(rows, planned, strict=True):
            row.rewind(plan_row.start_len + min(case.wrong_place + 1, plan_row.query_len))
    return torch.cat(logits)


def _verifying(row: PagedSequence, token_ids: list[int], case: Verified, vocab_size: int) -> PlanRow:
    """The next of `token_ids`, with those behind it as drafts, but for a wrong one."""
    start = row.planned_len
    drafts = token_ids[start + 1 : start + 1 + case.num_drafts]
    if case.wrong_place < len(drafts):
        drafts[case.wrong_place] = (drafts[case.wrong_place] + 1) % vocab_size
    return row.verify(token_ids[start], drafts)
