"""RET: turns that give way come back with their own tokens, and answers under way go to whom they belong."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.core.commands import AbortReason, FinishReason
from engine.core.config import CoreConfig
from engine.core.events import Draining, StepAnswered, StepPlanned, TurnAdmitted, TurnEnded, TurnRetracted
from engine.core.ids import TurnId, pack_ids
from engine.core.ownership import OwnerKind
from engine.core.sampling import Sampling
from engine.runtime.handle import TurnRequest
from tests.integration.field_reports.rig import DEFAULT, DEPTHS, FieldRig, field_rig, pages_of, prompt
from tests.kit.engine_rig import EngineRig, TurnOutput, serving
from tests.kit.runtime_rig import ids_of, oracle, read_all
from tests.kit.tiny_llama import tiny_llama_executor

LENGTH, CLIENT = FinishReason.LENGTH, AbortReason.CLIENT
TINY = replace(DEFAULT, pool_pages=pages_of(192), num_rows=9, context_len=512, vocab_size=300, eos_ids=(2,))
"""Room for two streams of 40 + 48 tokens."""


async def sample_at_once(config: CoreConfig, num_streams: int) -> tuple[list[TurnOutput], EngineRig]:
    """So many streams at temperature 1, each with a seed of its own as the server would draw it."""
    executor = tiny_llama_executor(
        page_size=config.page_size,
        pool_pages=config.pool_pages,
        num_rows=config.num_rows,
        context_len=config.context_len,
    )
    async with serving(executor, config) as rig:
        turns = (
            rig.turn(
                f"t{number}",
                prompt(number, 40),
                max_tokens=48,
                ignore_eos=True,
                sampling=Sampling(temperature=1.0, seed=1000 + number),
            )
            for number in range(num_streams)
        )
        outputs = await asyncio.gather(*turns)
        assert (await rig.engine.check()).is_clean
    return outputs, rig


@DEPTHS
async def test_stream_when_retracted_at_temperature_1_then_it_goes_on_from_what_was_told(depth: int) -> None:
    """RET-01 (sgl-project/sglang#39645): 3 streams, room for 2; what was told is one generation, that of a solo run."""
    outputs, rig = await sample_at_once(replace(TINY, in_flight_max=depth), 3)
    assert rig.exercised.retractions > 0
    wide, alone = await sample_at_once(replace(TINY, pool_pages=pages_of(1024), running_max=1), 3)
    assert alone.exercised.retractions == 0
    assert alone.exercised.batch_rows_max == 1
    assert [output.token_ids for output in outputs] == [output.token_ids for output in wide]
    assert all(len(output.token_ids) == 48 for output in outputs)
    assert max(output.usage.retractions for output in outputs if output.usage is not None) > 0
    greedy = await sample_greedy(TINY)
    assert greedy == await sample_greedy(replace(TINY, prefix_cache=False, in_flight_max=1))


async def sample_greedy(config: CoreConfig) -> list[int]:
    executor = tiny_llama_executor(page_size=config.page_size, pool_pages=config.pool_pages, num_rows=config.num_rows)
    async with serving(executor, config) as rig:
        return (await rig.turn("greedy", prompt(9, 30), max_tokens=8)).token_ids


@DEPTHS
async def test_stream_when_retracted_then_the_record_is_what_was_told(depth: int) -> None:
    """RET-01 (sgl-project/sglang#39645): the concatenated deltas equal what the server replays."""
    async with field_rig(replace(DEFAULT, pool_pages=pages_of(192), in_flight_max=depth)) as rig:
        streams = [await rig.submit(f"t{n}", prompt(n, 40), max_tokens=60, content=b"c") for n in range(3)]
        answers = await asyncio.gather(*(rig.collect(stream) for stream in streams))
        assert rig.retractions > 0
        for number, result in enumerate(answers):
            assert result.ids == oracle(prompt(number, 40), 60)
            replayed = await read_all(await rig.engine.resume(None, TurnId(f"t{number}"), 0))
            assert ids_of(replayed) == result.ids
        await rig.require_sound([LENGTH] * 3)


@DEPTHS
async def test_batch_when_its_first_row_leaves_in_flight_then_each_result_is_its_own(depth: int) -> None:
    """RET-03 (sgl-project/sglang#36938): three prompts in one forward; prompt logprobs are not offered, tokens are."""
    async with field_rig(replace(DEFAULT, in_flight_max=depth)) as rig:
        rig.pause()
        requests = [TurnRequest(TurnId(f"t{n}"), pack_ids(prompt(n, 20 + n)), max_tokens=8) for n in range(3)]
        streams = await asyncio.gather(*(rig.engine.submit(request) for request in requests))
        await rig.wait_phase("t2", "running")
        assert max(fact.num_rows for fact in rig.facts() if isinstance(fact, StepPlanned)) == 3
        await rig.abort("t0")
        rig.go_on()
        assert (await rig.collect(streams[0])).ids == []
        for number in (1, 2):
            assert (await rig.collect(streams[number])).ids == oracle(prompt(number, 20 + number), 8)
        await rig.require_sound([CLIENT, LENGTH, LENGTH])


@DEPTHS
async def test_streams_when_near_capacity_then_retractions_are_bounded_and_speed_comes_back(depth: int) -> None:
    """RET-05 (sgl-project/sglang#26248): 6 streams of 200 tokens in room for 4; counted in steps, not in seconds."""
    num_streams, max_tokens = 6, 200
    config = replace(DEFAULT, pool_pages=pages_of(4 * 240), chunk_tokens=64, in_flight_max=depth)
    async with field_rig(config) as rig:
        streams = [await rig.submit(f"t{n}", prompt(n, 40), max_tokens=max_tokens) for n in range(num_streams)]
        answers = await asyncio.gather(*(rig.collect(stream) for stream in streams))
        for number, result in enumerate(answers):
            assert result.ids == oracle(prompt(number, 40), max_tokens)
        assert 0 < rig.retractions <= num_streams * config.retractions_max
        # 6 streams of which 4 fit need two rounds; a re-prefill loop, or decoding one by one, would take far more.
        planned = [fact for fact in rig.facts() if isinstance(fact, StepPlanned)]
        assert len(planned) < 2.2 * max_tokens
        computed = sum(fact.num_tokens for fact in planned)
        assert computed < 2 * num_streams * (40 + max_tokens)
        last = max(index for index, fact in enumerate(rig.facts()) if isinstance(fact, TurnRetracted))
        rows = [fact.num_rows for fact in rig.facts()[last:] if isinstance(fact, StepPlanned)]
        assert max(rows[:20]) >= 3, "the others decode on at once"
        await rig.require_sound([LENGTH] * num_streams)


def find_text(seed: int, length: int) -> tuple[list[int], int, str]:
    """A prompt whose answer has two letters in a row: the prompt, their place, and they."""
    while True:
        ids = prompt(seed, length)
        answer = oracle(ids, 40)
        for place in range(8, 38):
            pair = answer[place : place + 2]
            if all(33 <= token < 127 for token in pair) and bytes(pair) not in bytes(answer[:place]):
                return ids, place, bytes(pair).decode()
        seed += 1


@pytest.mark.parametrize("session", [None, "s"], ids=["plain", "session"])
async def test_stop_string_when_the_next_forward_is_under_way_then_its_pages_go_only_after_that(
    session: str | None,
) -> None:
    """RET-07 (vllm-project/vllm#45357): stopped at step N with N+1 out; the next request waits for these very pages."""
    ids, place, stop = find_text(1, 100)
    async with field_rig(replace(DEFAULT, pool_pages=pages_of(160), prefix_cache=False, in_flight_max=2)) as rig:
        await rig.open("s")
        first = await rig.submit("first", ids, session=session, max_tokens=60, stop=[stop])
        second = await rig.submit("second", prompt(9, 100), max_tokens=20)
        stopped = await rig.collect(first)
        assert (stopped.end.outcome, stopped.end.stop_string) == (FinishReason.STOP, stop)
        assert stopped.ids == oracle(ids, place + 2)
        assert (await rig.collect(second)).ids == oracle(prompt(9, 100), 20)
        facts = rig.facts()
        end = next(index for index, fact in enumerate(facts) if isinstance(fact, TurnEnded))
        drains = [fact for fact in facts if isinstance(fact, Draining)]
        assert drains, "its pages were being written when it stopped"
        answered = next(i for i, fact in enumerate(facts) if fact == StepAnswered(drains[0].until, None))
        admitted = [index for index, fact in enumerate(facts) if isinstance(fact, TurnAdmitted)][1]
        assert end < answered < admitted
        assert await rig.history("s") == ([] if session is None else ids + stopped.ids)
        await rig.require_sound([FinishReason.STOP, LENGTH])


def retracted_in_flight(rig: FieldRig) -> Sequence[TurnRetracted]:
    """Those whose pages had to wait for a forward that was under way."""
    drained = {
        fact.owner.name for fact in rig.facts() if isinstance(fact, Draining) and fact.owner.kind is OwnerKind.REQUEST
    }
    return [fact for fact in rig.facts() if isinstance(fact, TurnRetracted) and fact.rid in drained]


async def test_turn_when_retracted_while_its_forward_is_out_then_that_answer_counts_for_nothing() -> None:
    """RET-10 (vllm-project/vllm#49620): the answer of a step planned before the retraction comes after it."""
    async with field_rig(replace(DEFAULT, pool_pages=pages_of(192), prefix_cache=False, in_flight_max=2)) as rig:
        streams = [await rig.submit(f"t{n}", prompt(n, 40), max_tokens=60) for n in range(3)]
        rig.pause()
        while not retracted_in_flight(rig):
            await rig.let_steps(1)
        victim = retracted_in_flight(rig)[0]
        assert rig.executor.num_in_flight > 0, "held back, and answered only now"
        rig.go_on()
        for number, stream in enumerate(streams):
            result = await rig.collect(stream)
            assert result.ids == oracle(prompt(number, 40), 60)
        epochs = [row.epoch for plan in rig.executor.submitted for row in plan.rows if row.rid == victim.rid]
        assert epochs == sorted(epochs), "an answer says which attempt it is of"
        assert len(set(epochs)) == sum(isinstance(it, TurnAdmitted) and it.rid == victim.rid for it in rig.facts())
        usage = next(fact.usage for fact in rig.facts() if isinstance(fact, TurnEnded) and fact.rid == victim.rid)
        assert usage.retractions > 0
        await rig.require_sound([LENGTH] * 3)
