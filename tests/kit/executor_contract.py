"""The tests that every `Executor` passes. Torch-free: a subclass says how one is made.

They compare an executor with itself: whatever it computes, how its input was cut into steps must not show.
"""

import asyncio
import itertools
from array import array

import pytest

from engine.core.ownership import PoolKind
from engine.core.plan import PageCopy, StepOutcome, StepResult
from engine.core.sampling import GREEDY, SEED_MAX, Sampling
from tests.kit.executor_driver import (
    DRAWN,
    NUM_ROWS,
    OTHER_PROMPT,
    PAGE_SIZE,
    POOL_PAGES,
    PROMPT,
    Driver,
    ExecutorRig,
    result_of,
    sampled_id,
)
from tests.kit.paged_sequence import PagedSequence
from tests.kit.verification_contract import VerificationContract

__all__ = ["PAGE_SIZE", "Driver", "ExecutorContract", "SamplingContract"]


class ExecutorContract(VerificationContract):
    """What every executor passes. Subclasses as those of `ExecutorRig`."""

    async def test_capabilities_when_made_then_tell_the_sizes_asked_for(self) -> None:
        with self.driver() as driver:
            told = driver.executor.capabilities
            assert (told.page_size, told.pool_pages, told.num_rows) == (PAGE_SIZE, POOL_PAGES, NUM_ROWS)
            assert PoolKind.FULL in told.pool_kinds
            assert told.max_in_flight >= 1
            assert told.name

    async def test_prepare_when_awaited_then_ids_are_those_of_an_executor_that_was_not_prepared(self) -> None:
        with self.driver() as driver:
            expected = await driver.generate(PagedSequence(1, range(1, 8)), PROMPT, 6)
        with self.driver() as driver:
            await driver.executor.prepare()
            assert await driver.generate(PagedSequence(1, range(1, 8)), PROMPT, 6) == expected

    async def test_prepare_when_closed_meanwhile_then_it_is_answered(self) -> None:
        with self.driver() as driver:
            ready = driver.executor.prepare()
            driver.executor.close()
            await ready
            with pytest.raises(RuntimeError):
                driver.executor.prepare()

    async def test_sampled_when_a_row_does_not_sample_then_its_place_is_empty(self) -> None:
        with self.driver() as driver:
            quiet, loud = PagedSequence(1, [1, 2, 3]), PagedSequence(2, [4, 5])
            result = await driver.run([quiet.chunk(PROMPT, num_samples=0), loud.chunk(OTHER_PROMPT)])
            assert result.step == 1
            assert result.sampled[0] == ()
            assert 0 <= sampled_id(result, 1) < driver.executor.capabilities.vocab_size

    @pytest.mark.parametrize("cuts", [[4, 8], [1], [10], [3, 7], list(range(1, 11))])
    async def test_prompt_when_cut_into_chunks_then_the_ids_are_those_of_one_shot(self, cuts: list[int]) -> None:
        with self.driver() as driver:
            expected = await driver.generate(PagedSequence(1, range(1, 8)), PROMPT, 6)
            chunked = PagedSequence(2, range(10, 17))
            edges = [0, *cuts, len(PROMPT)]
            results = [
                await driver.run([chunked.chunk(PROMPT[start:stop], num_samples=int(stop == len(PROMPT)))])
                for start, stop in itertools.pairwise(edges)
            ]
            assert [sampled_id(results[-1]), *await driver.decode(chunked, 5)] == expected

    async def test_decode_when_ids_are_given_then_as_when_they_stay_with_the_executor(self) -> None:
        with self.driver() as driver:
            expected = await driver.generate(PagedSequence(1, range(1, 8)), PROMPT, 6)
            given = PagedSequence(2, range(10, 17))
            result = await driver.run([given.chunk(PROMPT)])
            for token_id in expected[:-1]:
                assert sampled_id(result) == token_id
                result = await driver.run([given.chunk([token_id])])
            assert sampled_id(result) == expected[-1]

    async def test_rows_when_batched_then_each_gets_what_it_gets_alone(self) -> None:
        with self.driver() as driver:
            alone = await driver.generate(PagedSequence(1, range(1, 8)), PROMPT, 4)
            other_alone = await driver.generate(PagedSequence(1, range(1, 8)), OTHER_PROMPT, 4)
            first, second = PagedSequence(2, [20, 30, 21, 31]), PagedSequence(3, [22, 32, 23, 33])
            results = [await driver.run([first.chunk(PROMPT), second.chunk(OTHER_PROMPT)])]
            results += [await driver.run([second.decode(), first.decode()]) for _ in range(3)]
            assert [sampled_id(results[0]), *(sampled_id(result, 1) for result in results[1:])] == alone
            assert [sampled_id(results[0], 1), *(sampled_id(result) for result in results[1:])] == other_alone

    async def test_submit_when_one_plan_is_in_flight_then_the_next_takes_its_sample_and_answers_after_it(self) -> None:
        with self.driver() as driver:
            if driver.executor.capabilities.max_in_flight < 2:
                pytest.skip("this executor takes one plan at a time")
            expected = await driver.generate(PagedSequence(1, range(1, 8)), PROMPT, 2)
            sequence = PagedSequence(2, range(10, 17))
            answered: list[int] = []

            def note(future: asyncio.Future[StepOutcome]) -> None:
                answered.append(future.result().step)

            futures = [driver.submit([row]) for row in (sequence.chunk(PROMPT), sequence.decode())]
            for future in futures:
                future.add_done_callback(note)
            outcomes = await asyncio.gather(*futures)
            assert answered == sorted(answered)
            assert len(answered) == 2
            assert [sampled_id(result_of(outcome)) for outcome in outcomes] == expected

    async def test_uses_sampled_when_other_plans_ran_in_between_then_takes_its_own_rows_newest(self) -> None:
        with self.driver() as driver:
            expected = await driver.generate(PagedSequence(1, range(1, 8)), PROMPT, 3)
            sequence, other = PagedSequence(2, range(10, 17)), PagedSequence(3, range(20, 27))
            await driver.run([sequence.chunk(PROMPT)])
            await driver.run([other.chunk(OTHER_PROMPT, num_samples=0)])
            second = await driver.run([sequence.decode()])
            await driver.run([other.chunk(OTHER_PROMPT)])
            third = await driver.run([sequence.decode()])
            assert [sampled_id(second), sampled_id(third)] == expected[1:]

    async def test_page_table_when_changed_after_submit_then_the_plan_does_not_see_it(self) -> None:
        with self.driver() as driver:
            expected = await driver.generate(PagedSequence(1, range(1, 8)), PROMPT, 2)
            sequence = PagedSequence(2, range(10, 17))
            pages = array("i", sequence.page_table)
            future = driver.submit([sequence.chunk(PROMPT)])
            sequence.page_table[:] = array("i", [60] * len(pages))
            assert sampled_id(result_of(await future)) == expected[0]
            sequence.page_table[:] = pages
            assert await driver.decode(sequence, 1) == expected[1:]

    async def test_copies_when_chained_then_are_done_in_order_and_before_the_forward(self) -> None:
        with self.driver() as driver:
            expected = await driver.generate(PagedSequence(1, range(1, 8)), PROMPT, 1)
            source = PagedSequence(2, [10, 11, 12])
            await driver.run([source.chunk(PROMPT[:-1], num_samples=0)])
            fork = PagedSequence(3, [10, 11, 21])
            fork.planned_len = len(PROMPT) - 1
            copies = [PageCopy(PoolKind.FULL, 12, 20), PageCopy(PoolKind.FULL, 20, 21)]
            assert sampled_id(await driver.run([fork.chunk(PROMPT[-1:])], copies)) == expected[0]

    async def test_submit_when_a_row_is_planned_twice_then_refuses_the_plan(self) -> None:
        with self.driver() as driver:
            twice = [PagedSequence(1, [1, 2]).chunk(OTHER_PROMPT), PagedSequence(1, [3, 4]).chunk(OTHER_PROMPT)]
            with pytest.raises(AssertionError, match="planned twice"):
                driver.submit(twice)

    async def test_close_when_a_plan_is_in_flight_then_it_is_answered(self) -> None:
        with self.driver() as driver:
            future = driver.submit([PagedSequence(1, [1, 2, 3]).chunk(PROMPT)])
            driver.executor.close()
            assert isinstance(await future, StepResult)

    async def test_close_when_called_twice_then_does_nothing_more(self) -> None:
        with self.driver() as driver:
            driver.executor.close()
            driver.executor.close()
            with pytest.raises(RuntimeError):
                driver.submit([PagedSequence(1, [1, 2, 3]).chunk(PROMPT)])


class SamplingContract(ExecutorRig):
    """What an executor that samples passes besides. Subclasses as those of `ExecutorRig`."""

    @pytest.mark.parametrize("sampling", DRAWN, ids=str)
    async def test_draw_when_the_seed_is_the_same_then_so_are_the_ids_however_the_prompt_was_cut(
        self, sampling: Sampling
    ) -> None:
        with self.driver() as driver:
            expected = await driver.generate(PagedSequence(1, range(1, 8), sampling), PROMPT, 8)
            assert await driver.generate(PagedSequence(2, range(8, 15), sampling), PROMPT, 8) == expected
            for place, cut in enumerate((1, 4, 10)):
                chunked = PagedSequence(3, range(20 + 8 * place, 28 + 8 * place), sampling)
                await driver.run([chunked.chunk(PROMPT[:cut], num_samples=0)])
                assert await driver.generate(chunked, PROMPT[cut:], 8) == expected

    async def test_draw_when_in_a_batch_in_another_order_then_each_row_gets_what_it_gets_alone(self) -> None:
        samplings = [*DRAWN, GREEDY, *DRAWN]
        with self.driver() as driver:
            alone = [
                await driver.generate(PagedSequence(1, range(1, 8), sampling), PROMPT[place:], 4)
                for place, sampling in enumerate(samplings)
            ]
            rows = [
                PagedSequence(1 + place, range(10 + place, 60, len(samplings)), sampling)
                for place, sampling in enumerate(samplings)
            ]
            first = await driver.run([row.chunk(PROMPT[place:]) for place, row in enumerate(rows)])
            backwards = [await driver.run([row.decode() for row in reversed(rows)]) for _ in range(3)]
            results = [first.sampled, *(result.sampled[::-1] for result in backwards)]
            assert [[token_id for (token_id,) in row] for row in zip(*results, strict=True)] == alone

    async def test_draw_when_the_seed_is_another_then_so_are_the_ids(self) -> None:
        with self.driver() as driver:
            drawn = {
                tuple(await driver.generate(PagedSequence(1, range(1, 8), Sampling(50.0, seed=seed)), PROMPT, 6))
                for seed in (0, 1, SEED_MAX)
            }
            assert len(drawn) == 3

    @pytest.mark.parametrize("sampling", [Sampling(5.0, top_k=1), Sampling(5.0, top_p=1e-12), Sampling(1e-30)], ids=str)
    async def test_draw_when_only_the_best_may_be_chosen_then_is_the_greedy_one(self, sampling: Sampling) -> None:
        with self.driver() as driver:
            greedy = await driver.generate(PagedSequence(1, range(1, 8)), PROMPT, 5)
            assert await driver.generate(PagedSequence(2, range(8, 15), sampling), PROMPT, 5) == greedy
