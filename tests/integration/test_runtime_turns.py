"""The loop with the real core: turns, sessions, their tokens and their text, with one and with two plans in flight."""

import asyncio

import pytest

from engine.core.commands import AbortReason, FinishReason
from engine.core.errors import Refusal, RefusalReason
from engine.core.ids import SessionId, TurnId
from engine.runtime.handle import Delta, Started
from tests.kit.runtime_rig import end_of, ids_of, oracle, read_all, running

PROMPT = [7, 1, 9, 4, 4, 2, 8, 1, 1, 3, 5]

DEPTHS = pytest.mark.parametrize("in_flight_max", [1, 2])


@DEPTHS
async def test_turn_when_stateless_then_tokens_are_those_of_its_history(in_flight_max: int) -> None:
    async with running(in_flight_max=in_flight_max) as rig:
        events = await read_all(await rig.submit("t", PROMPT, max_tokens=20))
    assert events[0] == Started(context_len=11, new_len=11, max_tokens=20)
    assert ids_of(events) == oracle(PROMPT, 20)
    assert end_of(events).outcome is FinishReason.LENGTH
    text = "".join(event.text for event in events if isinstance(event, Delta))
    assert text == bytes(ids_of(events)).decode(errors="replace")


@DEPTHS
async def test_turns_when_many_at_once_then_each_has_its_own_tokens_and_one_end(in_flight_max: int) -> None:
    prompts = [[seed, *PROMPT[: 3 + seed]] for seed in range(8)]
    async with running(in_flight_max=in_flight_max) as rig:
        streams = [await rig.submit(f"t{seed}", prompt, max_tokens=12) for seed, prompt in enumerate(prompts)]
        answers = await asyncio.gather(*(read_all(stream) for stream in streams))
        books = await rig.full_pool()
    for prompt, events in zip(prompts, answers, strict=True):
        assert ids_of(events) == oracle(prompt, 12)
    assert sorted(rig.sink.endings()) == list(range(1, 9))
    assert books.uncached == 0
    assert books.is_balanced
    assert len(rig.executor.submitted) < 8 * 13, "turns share steps"


@DEPTHS
async def test_session_when_second_turn_then_only_the_new_ids_and_the_last_token_are_computed(
    in_flight_max: int,
) -> None:
    async with running(in_flight_max=in_flight_max) as rig:
        await rig.open("s")
        first = await read_all(await rig.submit("t1", PROMPT, session="s", max_tokens=6))
        second = await read_all(await rig.submit("t2", [5, 6], session="s", max_tokens=6))
        history = await rig.engine.find_base(SessionId("s"), None)
    base = PROMPT + ids_of(first) + [5, 6]
    assert ids_of(second) == oracle(base, 6)
    usage = end_of(second).usage
    assert usage.tokens_from_slot + usage.tokens_from_tree == len(PROMPT) + 6 - 1
    assert usage.tokens_computed == 3
    assert end_of(second).history_len == len(history) // 4 == len(base) + 6


async def test_submit_when_session_is_busy_then_refused_and_the_running_turn_is_untouched() -> None:
    async with running() as rig:
        await rig.open("s")
        rig.executor.hold()
        running_turn = await rig.submit("t1", PROMPT, session="s")
        with pytest.raises(Refusal) as caught:
            await rig.submit("t2", [5], session="s")
        assert caught.value.reason is RefusalReason.SESSION_BUSY
        rig.executor.let_go()
        assert ids_of(await read_all(running_turn)) == oracle(PROMPT, 8)
        assert rig.engine.num_live_turns == 0


async def test_submit_when_refused_then_no_turn_is_left_behind() -> None:
    async with running() as rig:
        with pytest.raises(Refusal) as caught:
            await rig.submit("t", [999])
        assert caught.value.reason is RefusalReason.TOKEN_OUT_OF_RANGE
        assert rig.engine.num_live_turns == 0
        assert ids_of(await read_all(await rig.submit("t", PROMPT))) == oracle(PROMPT, 8)


async def test_close_session_when_a_turn_runs_then_it_has_ended_and_its_pages_are_free() -> None:
    async with running() as rig:
        await rig.open("s")
        rig.executor.hold()
        stream = await rig.submit("t1", PROMPT, session="s")
        closing = asyncio.create_task(rig.engine.close_session(SessionId("s")))
        events = await read_all(stream)
        await closing
        assert end_of(events).outcome is AbortReason.SESSION_CLOSED
        rig.executor.let_go()
        books = await rig.full_pool()
        assert (books.session_held, books.uncached) == (0, 0)
        await rig.engine.close_session(SessionId("s"))  # idempotent


async def test_session_when_idle_too_long_then_expires_without_traffic() -> None:
    async with running() as rig:
        await rig.open("s", idle_timeout_s=0.02)
        await rig.wait_no_sessions()
        with pytest.raises(Refusal) as caught:
            await rig.submit("t1", PROMPT, session="s")
        assert caught.value.reason is RefusalReason.SESSION_UNKNOWN


async def test_session_when_another_keeps_the_engine_busy_then_it_expires_all_the_same() -> None:
    async with running() as rig:
        await rig.open("s", idle_timeout_s=0.02)
        rig.executor.faults.delay_s = lambda _plan: 0.002
        stream = await rig.submit("long", PROMPT, max_tokens=200)
        reading = asyncio.create_task(read_all(stream))
        await rig.wait_no_sessions()
        assert not reading.done(), "the long turn was still running"
        await rig.engine.abort(None, TurnId("long"))
        await reading


async def test_idle_when_long_then_the_next_turn_is_served_at_once() -> None:
    """WDG-07 (sgl-project/sglang#3836): no wake-up is lost between going to sleep and a new request."""
    async with running() as rig:
        for round_ in range(50):
            await asyncio.sleep(0.0005 * (round_ % 3))
            async with asyncio.timeout(1):
                assert ids_of(await read_all(await rig.submit("t", PROMPT, max_tokens=1))) == oracle(PROMPT, 1)
