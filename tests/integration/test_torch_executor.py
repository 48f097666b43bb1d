"""The CPU executor behind its Protocol, over a tiny model."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from engine.core.plan import StepFailure, StepOutcome, StepResult
from engine.executor.decoder import Decoder
from engine.executor.linear import Linear
from engine.executor.model_runner import ModelRunner
from engine.executor.protocol import Executor, ExecutorLost
from engine.executor.torch_executor import TorchExecutor
from tests.kit.executor_contract import ExecutorContract, SamplingContract
from tests.kit.paged_sequence import PagedSequence, make_plan
from tests.kit.tiny_llama import tiny_llama_config, tiny_llama_decoder, tiny_llama_executor, tiny_llama_runner

PAGE_SIZE = 4
SIZES = {"page_size": PAGE_SIZE, "pool_pages": 32, "num_rows": 4}
CONTEXT_LEN = 24
VOCAB_SIZE = tiny_llama_config().vocab_size


class TestTorchExecutor(ExecutorContract):
    def make_executor(self, *, page_size: int, pool_pages: int, num_rows: int) -> Executor:
        return tiny_llama_executor(page_size=page_size, pool_pages=pool_pages, num_rows=num_rows)


class TestTorchExecutorSampling(SamplingContract):
    def make_executor(self, *, page_size: int, pool_pages: int, num_rows: int) -> Executor:
        return tiny_llama_executor(page_size=page_size, pool_pages=pool_pages, num_rows=num_rows)


@pytest.fixture
def executor() -> Iterator[TorchExecutor]:
    made = tiny_llama_executor(**SIZES, context_len=CONTEXT_LEN)
    yield made
    made.close()


async def run(executor: Executor, step: int, sequence: PagedSequence, token_ids: list[int]) -> StepOutcome:
    return await executor.submit(make_plan(step, PAGE_SIZE, [sequence.chunk(token_ids)]))


@pytest.mark.parametrize("bad_id", [VOCAB_SIZE, -1, 2**31 - 1])
async def test_step_when_a_token_id_is_outside_the_vocabulary_then_fails_and_the_next_step_runs(
    executor: TorchExecutor, bad_id: int
) -> None:
    expected = await run(executor, 1, PagedSequence(1, [1, 2]), [5, 6])
    failure = await run(executor, 2, PagedSequence(1, [1, 2]), [5, bad_id])
    assert isinstance(failure, StepFailure)
    assert failure.step == 2
    assert f"vocabulary of {VOCAB_SIZE}" in failure.reason
    after = await run(executor, 3, PagedSequence(1, [1, 2]), [5, 6])
    assert isinstance(after, StepResult)
    assert isinstance(expected, StepResult)
    assert after.sampled == expected.sampled


async def test_step_when_a_position_is_outside_the_context_then_fails_and_tells_both_numbers(
    executor: TorchExecutor,
) -> None:
    pages = list(range(1, 8))
    fits = await run(executor, 1, PagedSequence(1, pages), [5] * CONTEXT_LEN)
    assert isinstance(fits, StepResult)
    failure = await run(executor, 2, PagedSequence(1, pages), [5] * (CONTEXT_LEN + 1))
    assert isinstance(failure, StepFailure)
    assert f"position {CONTEXT_LEN} outside the context of {CONTEXT_LEN}" in failure.reason


async def test_step_when_its_input_was_never_sampled_then_fails(executor: TorchExecutor) -> None:
    outcome = await executor.submit(make_plan(1, PAGE_SIZE, [PagedSequence(2, [1]).decode()]))
    assert isinstance(outcome, StepFailure)
    assert "row 2" in outcome.reason


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
async def test_step_when_the_numbers_are_not_finite_then_fails(poison: float) -> None:
    decoder = tiny_llama_decoder()
    decoder.embedding[7] = poison
    executor = TorchExecutor(_runner_like(tiny_llama_runner(**SIZES), decoder), threads=1)
    try:
        good = await run(executor, 1, PagedSequence(1, [1]), [5, 6])
        assert isinstance(good, StepResult)
        quiet_chunk = PagedSequence(2, [2]).chunk([7, 6], num_samples=0)
        for step, row in ((2, PagedSequence(2, [2]).chunk([6, 7])), (3, quiet_chunk)):
            failure = await executor.submit(make_plan(step, PAGE_SIZE, [row]))
            assert isinstance(failure, StepFailure)
            assert "not finite" in failure.reason
    finally:
        executor.close()


async def test_prepare_when_the_model_can_not_compute_then_the_executor_is_lost_and_says_why() -> None:
    decoder = tiny_llama_decoder()
    decoder = replace(decoder, output_norm=lambda hidden: hidden * float("nan"))
    executor = TorchExecutor(_runner_like(tiny_llama_runner(**SIZES), decoder), threads=1)
    try:
        for _ in range(2):
            with pytest.raises(ExecutorLost, match="not finite"):
                await executor.prepare()
    finally:
        executor.close()


@pytest.mark.parametrize("context_len", [1, 2, 24])
async def test_prepare_when_the_context_is_short_then_it_fits(context_len: int) -> None:
    executor = tiny_llama_executor(**SIZES, context_len=context_len)
    try:
        await executor.prepare()
    finally:
        executor.close()


async def test_step_when_a_freed_page_held_non_finite_numbers_then_its_next_owner_is_not_harmed() -> None:
    decoder = tiny_llama_decoder()
    decoder.embedding[7] = float("nan")
    executor = TorchExecutor(_runner_like(tiny_llama_runner(**SIZES), decoder), threads=1)
    try:
        clean = await run(executor, 1, PagedSequence(1, [1, 2]), [5, 6, 8, 9, 10])
        assert isinstance(await run(executor, 2, PagedSequence(1, [1, 2]), [7] * 8), StepFailure)
        again = await run(executor, 3, PagedSequence(1, [1, 2]), [5, 6, 8, 9, 10])
        assert isinstance(clean, StepResult)
        assert isinstance(again, StepResult)
        assert again.sampled == clean.sampled
    finally:
        executor.close()


async def test_sampling_when_logits_tie_then_takes_the_lowest_id() -> None:
    config = tiny_llama_config()
    decoder = tiny_llama_decoder()
    flat = _with_head(decoder, torch.zeros(config.vocab_size, config.hidden_size))
    executor = TorchExecutor(_runner_like(tiny_llama_runner(**SIZES), flat), threads=1)
    try:
        outcome = await run(executor, 1, PagedSequence(1, [1]), [5, 6])
        assert isinstance(outcome, StepResult)
        assert outcome.sampled == ((0,),)
    finally:
        executor.close()


def test_close_when_the_loop_of_a_plan_is_gone_then_ends_without_it() -> None:
    executor = tiny_llama_executor(**SIZES)

    async def submit_and_leave() -> None:
        for step in (1, 2):
            executor.submit(make_plan(step, PAGE_SIZE, [PagedSequence(1, [1, 2, 3, 4, 5]).chunk([5] * 20)]))

    asyncio.run(submit_and_leave())
    executor.close()
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(submit_and_leave())


def _runner_like(runner: ModelRunner, decoder: Decoder) -> ModelRunner:
    return ModelRunner(runner.config, decoder, runner.pool)


def _with_head(decoder: Decoder, head: torch.Tensor) -> Decoder:
    return replace(decoder, head=Linear(head))
