"""Reports of windows and recurrent states, on models with windows of 16 tokens, with states, and with both.

The shadow device refuses a window's cell and a state that are not of this very history, behind this very length.
"""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from engine.core.commands import AbortReason, FinishReason
from engine.core.config import CoreConfig
from engine.core.events import TurnAccepted
from engine.core.ownership import Move, PoolKind
from tests.integration.field_reports.rig import (
    BOTH,
    DEPTHS,
    KINDS,
    PAGE,
    STATES,
    WINDOWS,
    FieldRig,
    Outcome,
    field_rig,
    pages_of,
    prompt,
)
from tests.kit.runtime_rig import oracle

LENGTH, CLIENT = FinishReason.LENGTH, AbortReason.CLIENT
HYBRIDS = pytest.mark.parametrize("config", [WINDOWS, STATES, BOTH], ids=["windows", "states", "windows+states"])
WITH_STATES = pytest.mark.parametrize("config", [STATES, BOTH], ids=["states", "windows+states"])


@KINDS
@DEPTHS
async def test_session_when_its_turns_end_off_a_page_edge_then_each_equals_a_fresh_run(
    config: CoreConfig, depth: int
) -> None:
    """SES-10 (sgl-project/sglang#20070): 37 tokens, then 5 more, then 11 more; every kind of pool."""
    async with field_rig(replace(config, in_flight_max=depth)) as rig:
        await rig.open("s")
        for turn, (num_new, num_told) in enumerate(((33, 4), (1, 4), (7, 4))):
            history = [*await rig.history("s"), *prompt(turn, num_new)]
            answer = await rig.run(f"t{turn}", prompt(turn, num_new), "s", max_tokens=num_told)
            assert answer.ids == oracle(history, num_told)
            assert answer.end.usage.tokens_computed == num_new + (turn > 0)
            state = await rig.state_of("s")
            assert state.kv_committed_len == state.history_len - 1
        assert (await rig.state_of("s")).history_len == 37 + 5 + 11
        await rig.require_sound([LENGTH] * 3)


@HYBRIDS
@DEPTHS
@pytest.mark.parametrize("length", [PAGE - 1, PAGE, PAGE + 1])
async def test_prompt_when_its_windows_were_left_by_decode_then_the_match_ends_before_them(
    config: CoreConfig, depth: int, length: int
) -> None:
    """PFX-07 (sgl-project/sglang#31486): 64 generated tokens, a prompt of their beginning, then all is evicted."""
    async with field_rig(replace(config, pool_pages=pages_of(256), in_flight_max=depth)) as rig:
        first = await rig.alone("first", prompt(1, length), 64)
        history = prompt(1, length) + first.ids
        second = await rig.alone("second", history[:48], 16)
        assert second.ids == history[48:64]
        assert second.end.usage.tokens_from_tree == length // PAGE * PAGE, "the prompt's; what decode left is no hit"
        again = await rig.alone("again", history[:48], 16)
        assert again.ids == history[48:64]
        at_chunks_only = bool(config.state_slots) and length >= PAGE  # the second computed 16 to 48 in one chunk
        assert again.end.usage.tokens_from_tree == (16 if at_chunks_only else 32)
        await rig.alone("everything", prompt(2, 250), 4)
        assert rig.moves(Move.EVICT), "all that was cached was evicted"
        third = await rig.alone("third", history[:48], 16)
        assert (third.ids, third.end.usage.tokens_from_tree) == (history[48:64], 0)
        await rig.require_sound([LENGTH] * 5)


@WITH_STATES
@DEPTHS
async def test_prompt_of_561_when_asked_again_with_10_more_then_the_hit_is_real_and_told(
    config: CoreConfig, depth: int
) -> None:
    """PFX-14 (vllm-project/vllm#51250), with checkpoints as far apart as they are by default."""
    config = replace(config, state_interval=256, chunk_tokens=128, in_flight_max=depth)
    async with field_rig(config) as rig:
        first = await rig.alone("first", prompt(1, 561))
        assert (first.ids, first.end.usage.tokens_from_tree) == (oracle(prompt(1, 561), 8), 0)
        second = await rig.alone("second", prompt(1, 561) + prompt(2, 10))
        assert second.ids == oracle(prompt(1, 561) + prompt(2, 10), 8)
        assert (second.end.usage.tokens_from_tree, second.end.usage.tokens_computed) == (512, 571 - 512)
        await rig.require_sound([LENGTH] * 2)


def states_of(rig: FieldRig, first_plan: int) -> tuple[int, set[int]]:
    """Of the plans from `first_plan` on: the slot that the first row started from, and all slots written."""
    plans = rig.executor.submitted[first_plan:]
    return plans[0].rows[0].state_read, {row.state_write for plan in plans for row in plan.rows}


@WITH_STATES
@DEPTHS
async def test_prefix_when_hit_by_one_that_gets_the_slots_of_another_then_it_starts_from_the_prefixs_state(
    config: CoreConfig, depth: int
) -> None:
    """PFX-15 (vllm-project/tpu-inference#3412): a stranger's slots are given on, and what they hold is never read."""
    async with field_rig(replace(config, state_slots=7, in_flight_max=depth)) as rig:
        await rig.alone("shared", prompt(1, 33), 1)
        begin = len(rig.executor.submitted)
        stranger = await rig.alone("stranger", prompt(2, 33), 8)
        assert stranger.ids == oracle(prompt(2, 33), 8)
        read, left = states_of(rig, begin)
        assert read == 0, "nothing before it: from zeros"
        begin = len(rig.executor.submitted)
        second = await rig.alone("second", prompt(1, 32) + prompt(3, 5), 8)
        assert second.ids == oracle(prompt(1, 32) + prompt(3, 5), 8)
        assert second.end.usage.tokens_from_tree == 32
        read, written = states_of(rig, begin)
        assert written & left, "it was given a slot that the stranger had"
        assert read not in written | left | {0}, "and started from the prefix's"
        await rig.require_sound([LENGTH] * 3)


@WITH_STATES
@DEPTHS
async def test_prompt_when_refused_by_scheduling_again_and_again_then_no_state_is_taken(
    config: CoreConfig, depth: int
) -> None:
    """EVL-08 (sgl-project/sglang#16067): it waits for pages in 20 steps, its prefix and that one's state matched."""
    config = replace(config, pool_pages=pages_of(384), new_token_ratio=1.0, in_flight_max=depth)
    async with field_rig(config) as rig:
        await rig.alone("shared", prompt(1, 65), 1)
        rig.pause()
        holder = await rig.submit("holder", prompt(2, 250), max_tokens=60)
        await rig.let_steps(12)
        before = await rig.books(PoolKind.MAMBA)
        matched = await rig.submit("matched", prompt(1, 64) + prompt(3, 40), max_tokens=4)
        (rid,) = [fact.rid for fact in rig.facts() if isinstance(fact, TurnAccepted) and fact.turn_id == "matched"]
        for _ in range(20):
            await rig.let_steps(1)
            assert (await rig.books(PoolKind.MAMBA)).protected == before.protected
            assert not [move for move in rig.moves(pool=PoolKind.MAMBA) if move.target.name == rid]
        assert [it.phase for it in (await rig.snapshot()).turns] == ["running", "waiting"]
        rig.go_on()
        assert (await rig.collect(holder)).ids == oracle(prompt(2, 250), 60)
        result = await rig.collect(matched)
        assert result.ids == oracle(prompt(1, 64) + prompt(3, 40), 4)
        await rig.require_sound([LENGTH] * 3)


@HYBRIDS
@pytest.mark.parametrize(("num_requests", "longest"), [(200, 8 * PAGE), (2000, 20)], ids=["EVL-04", "EVL-10"])
async def test_windows_when_many_share_prefixes_and_some_are_aborted_then_every_lock_and_page_comes_back(
    config: CoreConfig, num_requests: int, longest: int
) -> None:
    """EVL-04 (sgl-project/sglang#24153): 1 to 8 windows long. EVL-10 (sgl-project/sglang#25805): 2,000 short ones."""
    rng, at_once = Random(num_requests), asyncio.Semaphore(8)

    async def one(rig: FieldRig, number: int) -> Outcome:
        async with at_once:
            ids = prompt(rng.randrange(4), rng.randrange(1, longest)) + prompt(number, rng.randrange(1, PAGE))
            stream = await rig.submit(f"t{number}", ids, max_tokens=rng.randrange(1, 9))
            if rng.random() < 0.1:
                await rig.abort(f"t{number}")
            result = await rig.collect(stream)
            assert result.ids == oracle(ids, len(result.ids))
            return result.end.outcome

    async with field_rig(replace(config, pool_pages=pages_of(800), in_flight_max=2)) as rig:
        ends = await asyncio.gather(*(one(rig, number) for number in range(num_requests)))
        assert ends.count(CLIENT) > num_requests // 20
        assert any(rig.moves(Move.EVICT, pool=pool) for pool in PoolKind)
        await rig.require_sound(ends)


@DEPTHS
@pytest.mark.parametrize("length", [16 * 64 - 1, 16 * 64, 16 * 64 + 1])
async def test_prompt_when_around_a_page_edge_then_its_last_window_is_inserted_whole(depth: int, length: int) -> None:
    """EVL-06 (sgl-project/sglang#34870): window 127, page 64, 1024 tokens, one less and one more."""
    config = replace(
        WINDOWS, page_size=64, pool_pages=65, swa_pages=65, window=127, context_len=2048, in_flight_max=depth
    )
    async with field_rig(config) as rig:
        first = await rig.alone("first", prompt(1, length), 1)
        second = await rig.alone("second", prompt(1, length) + first.ids, 4)
        assert second.end.usage.tokens_from_tree == length // 64 * 64
        assert first.ids + second.ids == oracle(prompt(1, length), 5)
        await rig.require_sound([LENGTH, LENGTH])
