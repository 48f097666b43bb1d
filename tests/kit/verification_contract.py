"""The tests of rows that verify drafts. Part of what every `Executor` passes.

A row [known id, draft 1 .. draft k] is held against the same ids given one by one: answers must be the same, and drafts
that were wrong must leave no trace.
"""

import pytest

from engine.core.sampling import GREEDY, Sampling
from tests.kit.executor_driver import DRAWN, OTHER_PROMPT, PAGE_SIZE, PROMPT, Driver, ExecutorRig, result_of, sampled_id
from tests.kit.paged_sequence import PagedSequence

NUM_IDS = 12
"""Ids of the reference run: enough for the longest row of drafts and some behind it."""

ALL_SAMPLINGS = pytest.mark.parametrize("sampling", [GREEDY, *DRAWN], ids=str)


class VerificationContract(ExecutorRig):
    """Subclasses as those of `ExecutorRig`."""

    @ALL_SAMPLINGS
    @pytest.mark.parametrize("num_drafts", [1, 3, 8])
    async def test_verify_when_drafts_are_right_then_answers_the_ids_of_single_decodes_and_decoding_goes_on(
        self, num_drafts: int, sampling: Sampling
    ) -> None:
        with self.driver() as driver:
            expected = await driver.generate(PagedSequence(1, range(1, 8), sampling), PROMPT, NUM_IDS)
            sequence = PagedSequence(2, range(10, 17), sampling)
            known = sampled_id(await driver.run([sequence.chunk(PROMPT)]))
            verified = await driver.ids(sequence.verify(known, expected[1 : 1 + num_drafts]))
            assert verified == expected[1 : 2 + num_drafts]
            behind = await driver.decode(sequence, NUM_IDS - num_drafts - 2)
            assert [known, *verified, *behind] == expected

    @ALL_SAMPLINGS
    @pytest.mark.parametrize("wrong_place", [0, 1, 4])
    async def test_verify_when_a_draft_is_wrong_then_ids_up_to_it_are_right_and_a_rewind_leaves_no_trace_of_it(
        self, wrong_place: int, sampling: Sampling
    ) -> None:
        with self.driver() as driver:
            expected = await driver.generate(PagedSequence(1, range(1, 8), sampling), PROMPT, NUM_IDS)
            sequence = PagedSequence(2, range(10, 17), sampling)
            await driver.run([sequence.chunk(PROMPT)])
            drafts = expected[1:6]
            drafts[wrong_place] = _other_id(drafts[wrong_place])
            verified = await driver.ids(sequence.verify(expected[0], drafts))
            right = 1 + wrong_place
            assert len(verified) == 1 + len(drafts)
            assert verified[:right] == expected[1 : 1 + right]
            sequence.rewind(len(PROMPT) + right)
            again = await driver.ids(sequence.chunk([verified[wrong_place]]))
            behind = await driver.decode(sequence, NUM_IDS - right - 2)
            assert [expected[0], *verified[:right], *again, *behind] == expected

    @ALL_SAMPLINGS
    async def test_verify_when_drafts_are_wrong_then_each_id_is_the_one_behind_the_same_ids_given_one_by_one(
        self, sampling: Sampling
    ) -> None:
        given = OTHER_PROMPT
        with self.driver() as driver:
            single = PagedSequence(1, range(1, 8), sampling)
            await driver.run([single.chunk(PROMPT, num_samples=0)])
            expected = [sampled_id(await driver.run([single.chunk([token_id])])) for token_id in given]
            sequence = PagedSequence(2, range(10, 17), sampling)
            await driver.run([sequence.chunk(PROMPT, num_samples=0)])
            assert await driver.ids(sequence.verify(given[0], given[1:])) == expected

    @ALL_SAMPLINGS
    async def test_verify_when_row_after_row_is_partly_right_then_the_ids_are_those_of_single_decodes(
        self, sampling: Sampling
    ) -> None:
        with self.driver() as driver:
            expected = await driver.generate(PagedSequence(1, range(1, 8), sampling), PROMPT, NUM_IDS)
            sequence = PagedSequence(2, range(10, 17), sampling)
            got = [sampled_id(await driver.run([sequence.chunk(PROMPT)]))]
            for num_right in (2, 0, 1, 3):
                drafts = expected[len(got) : len(got) + num_right]
                wrong = _other_id(expected[len(got) + num_right])
                verified = await driver.ids(sequence.verify(got[-1], [*drafts, wrong, wrong]))
                got += verified[: 1 + num_right]
                sequence.rewind(len(PROMPT) + len(got) - 1)
            assert got == expected[: len(got)]
            assert len(got) == 11

    async def test_verify_when_the_page_of_wrong_drafts_goes_to_another_then_neither_sees_the_other(self) -> None:
        with self.driver() as driver:
            expected = await driver.generate(PagedSequence(1, range(1, 8)), PROMPT, 6)
            other_alone = await driver.generate(PagedSequence(1, range(1, 8)), OTHER_PROMPT, 4)
            sequence = PagedSequence(2, [10, 11, 12, 13])
            await driver.run([sequence.chunk(PROMPT)])
            assert len(PROMPT) % PAGE_SIZE == PAGE_SIZE - 1  # so the drafts have page 13 for themselves
            await driver.ids(sequence.verify(expected[0], [_other_id(expected[1])] * PAGE_SIZE))
            sequence.rewind(len(PROMPT) + 1)
            assert await driver.generate(PagedSequence(3, [13, 20, 21]), OTHER_PROMPT, 4) == other_alone
            sequence.page_table[3] = 14
            again = await driver.ids(sequence.chunk([expected[1]]))
            assert [*expected[:2], *again, *await driver.decode(sequence, 3)] == expected

    async def test_samples_when_fewer_than_a_chunks_tokens_then_are_those_of_its_last_tokens(self) -> None:
        with self.driver() as driver:
            expected = await driver.generate(PagedSequence(1, range(1, 8)), PROMPT, 4)
            sequence = PagedSequence(2, range(10, 17))
            assert await driver.ids(sequence.chunk([*PROMPT, *expected[:2]], num_samples=3)) == expected[:3]
            assert await driver.decode(sequence, 1) == expected[3:]

    async def test_verify_when_a_decode_is_in_flight_behind_it_then_that_takes_the_last_of_its_ids(self) -> None:
        with self.driver() as driver:
            if driver.executor.capabilities.max_in_flight < 2:
                pytest.skip("this executor takes one plan at a time")
            expected = await driver.generate(PagedSequence(1, range(1, 8)), PROMPT, 5)
            sequence = PagedSequence(2, range(10, 17))
            await driver.run([sequence.chunk(PROMPT)])
            verified, behind = (
                driver.submit([row]) for row in (sequence.verify(expected[0], expected[1:3]), sequence.decode())
            )
            assert result_of(await verified).sampled == (tuple(expected[1:4]),)
            assert result_of(await behind).sampled == ((expected[4],),)

    async def test_verify_when_beside_other_rows_then_each_row_gets_what_it_gets_alone(self) -> None:
        with self.driver() as driver:
            samplings = [GREEDY, *DRAWN]
            alone = [await _alone(driver, place, sampling) for place, sampling in enumerate(samplings)]
            rows = [
                PagedSequence(1 + place, range(10 + place, 52, len(samplings)), sampling)
                for place, sampling in enumerate(samplings)
            ]
            await driver.run([row.chunk(PROMPT[place:]) for place, row in enumerate(rows)])
            quiet, loud = PagedSequence(6, [52, 53, 54]), PagedSequence(7, [55, 56, 57])
            wrong = [_other_id(alone[3][1]), 5, 6]
            result = await driver.run(
                [
                    rows[2].verify(alone[2][0], alone[2][1:6]),
                    quiet.chunk(PROMPT[:5], num_samples=0),
                    rows[0].verify(alone[0][0], alone[0][1:3]),
                    rows[1].decode(),
                    loud.chunk(PROMPT),
                    rows[3].verify(alone[3][0], wrong),
                ]
            )
            assert [len(ids) for ids in result.sampled] == [6, 0, 3, 1, 1, 4]
            assert result.sampled[0] == tuple(alone[2][1:7])
            assert result.sampled[2] == tuple(alone[0][1:4])
            assert sampled_id(result, 3) == alone[1][1]
            assert sampled_id(result, 4) == alone[0][0]
            assert result.sampled[5][0] == alone[3][1]
            rows[3].rewind(len(PROMPT[3:]) + 1)
            after = await driver.run([rows[3].chunk([alone[3][1]]), *(row.decode() for row in rows[:3])])
            assert [sampled_id(after, place) for place in range(4)] == [
                alone[3][2],
                alone[0][4],
                alone[1][2],
                alone[2][7],
            ]


async def _alone(driver: Driver, place: int, sampling: Sampling) -> list[int]:
    return await driver.generate(PagedSequence(1, range(1, 8), sampling), PROMPT[place:], 8)


def _other_id(token_id: int) -> int:
    """An id of any vocabulary that is not `token_id`."""
    return (token_id + 1) % 100
