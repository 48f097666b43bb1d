"""Every way a turn can end other than by finishing: one terminal event, the session as it was, the books exact."""

import asyncio
from dataclasses import replace

import pytest

from engine.core.commands import AbortReason, FinishReason
from engine.core.errors import Refusal, RefusalReason
from engine.core.ids import SessionId, TurnId
from engine.runtime.handle import Delta, TurnEvent
from engine.runtime.streams import LiveStream
from tests.kit.runtime_rig import QUICK, RuntimeRig, end_of, ids_of, oracle, read_all, running

PROMPT = [7, 1, 9, 4, 4, 2, 8, 1, 1, 3, 5]
SESSION = "s"

DEPTHS = pytest.mark.parametrize("in_flight_max", [1, 2])


async def begin_second_turn(rig: RuntimeRig, deadline_s: float | None = None) -> tuple[list[int], LiveStream]:
    """A committed first turn, and a long second one that has begun to answer. Returns the history between them."""
    await rig.open(SESSION)
    first = await read_all(await rig.submit("t1", PROMPT, session=SESSION, max_tokens=6))
    rig.executor.faults.delay_s = lambda _plan: 0.001
    stream = await rig.submit("t2", [5, 6], session=SESSION, max_tokens=200, deadline_s=deadline_s)
    return PROMPT + ids_of(first), stream


async def read_some(stream: LiveStream, count: int) -> list[TurnEvent]:
    """Events until `count` ids were seen."""
    events: list[TurnEvent] = []
    while len(ids_of(events)) < count:
        events.append(await anext(stream))
    return events


async def require_rolled_back(rig: RuntimeRig, history: list[int]) -> None:
    """The session is at its last commit with its KV, and its next turn computes its own ids and one more."""
    rig.executor.faults.delay_s = lambda _plan: 0.0
    books = await rig.full_pool()
    assert books.uncached == 0
    events = await read_all(await rig.submit("t2", [9], session=SESSION, max_tokens=4))
    usage = end_of(events).usage
    assert ids_of(events) == oracle([*history, 9], 4)
    assert (usage.tokens_from_slot + usage.tokens_from_tree, usage.tokens_computed) == (len(history) - 1, 2)
    assert len(rig.sink.endings()) == len(set(rig.sink.endings()))


@DEPTHS
async def test_abort_when_a_turn_answers_then_rolled_back(in_flight_max: int) -> None:
    async with running(in_flight_max=in_flight_max) as rig:
        history, stream = await begin_second_turn(rig)
        await read_some(stream, 5)
        await rig.engine.abort(SessionId(SESSION), TurnId("t2"))
        end = end_of(await read_all(stream))
        assert (end.outcome, end.history_len) == (AbortReason.CLIENT, len(history))
        await require_rolled_back(rig, history)


@DEPTHS
async def test_abort_when_the_next_turn_is_sent_behind_it_then_that_turn_is_taken(in_flight_max: int) -> None:
    async with running(in_flight_max=in_flight_max) as rig:
        history, stream = await begin_second_turn(rig)
        await read_some(stream, 3)
        aborting = asyncio.create_task(rig.engine.abort(SessionId(SESSION), TurnId("t2")))
        await asyncio.sleep(0)
        events = await read_all(await rig.submit("t3", [9], session=SESSION, max_tokens=4))
        assert ids_of(events) == oracle([*history, 9], 4)
        await aborting
        assert end_of(await read_all(stream)).outcome is AbortReason.CLIENT


async def test_abort_when_the_turn_is_unknown_or_over_then_no_error() -> None:
    async with running() as rig:
        await read_all(await rig.submit("t", PROMPT))
        await rig.engine.abort(None, TurnId("t"))
        await rig.engine.abort(SessionId("nobody"), TurnId("t"))


async def test_abort_when_the_submit_is_not_taken_yet_then_the_turn_is_aborted_all_the_same() -> None:
    async with running() as rig:
        submitting = asyncio.create_task(rig.submit("t", PROMPT, max_tokens=200))
        aborting = asyncio.create_task(rig.engine.abort(None, TurnId("t")))
        events = await read_all(await submitting)
        await aborting
        assert end_of(events).outcome is AbortReason.CLIENT


@DEPTHS
async def test_aclose_when_the_turn_has_not_ended_then_disconnect_and_rolled_back(in_flight_max: int) -> None:
    async with running(in_flight_max=in_flight_max) as rig:
        history, stream = await begin_second_turn(rig)
        await read_some(stream, 3)
        await stream.aclose()
        await rig.wait_no_turns()
        await require_rolled_back(rig, history)


async def test_reader_when_cancelled_then_disconnect_and_rolled_back() -> None:
    async with running() as rig:
        history, stream = await begin_second_turn(rig)
        reading = asyncio.create_task(read_all(stream))
        await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await require_rolled_back(rig, history)


async def test_submitter_when_cancelled_before_the_answer_then_no_turn_is_left() -> None:
    async with running() as rig:
        submitting = asyncio.create_task(rig.submit("t", PROMPT, max_tokens=200))
        await asyncio.sleep(0)
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        await rig.wait_no_turns()
        assert (await rig.full_pool()).uncached == 0


async def test_deadline_when_it_passes_then_rolled_back() -> None:
    async with running() as rig:
        history, stream = await begin_second_turn(rig, deadline_s=0.02)
        end = end_of(await read_all(stream))
        assert (end.outcome, end.history_len) == (AbortReason.DEADLINE, len(history))
        await require_rolled_back(rig, history)


async def test_deadline_when_the_turn_ends_before_then_it_finishes() -> None:
    async with running() as rig:
        events = await read_all(await rig.submit("t", PROMPT, max_tokens=2, deadline_s=30))
        assert end_of(events).outcome is FinishReason.LENGTH


async def test_reader_when_it_falls_too_far_behind_then_slow_reader_and_the_others_go_on() -> None:
    async with running(runtime=replace(QUICK, unread_ids_max=10)) as rig:
        slow = await rig.submit("slow", PROMPT, max_tokens=100)
        other = await read_all(await rig.submit("other", PROMPT[1:], max_tokens=60))
        assert ids_of(other) == oracle(PROMPT[1:], 60)
        events = await read_all(slow)
        assert end_of(events).outcome is AbortReason.SLOW_READER
        deltas = [event for event in events if isinstance(event, Delta)]
        assert len(deltas) == 1
        assert ids_of(events) == oracle(PROMPT, len(ids_of(events)))


@DEPTHS
async def test_forward_when_it_fails_then_its_turns_end_and_the_server_goes_on(in_flight_max: int) -> None:
    async with running(in_flight_max=in_flight_max) as rig:
        history, stream = await begin_second_turn(rig)
        await read_some(stream, 3)
        step = rig.executor.submitted[-1].step
        rig.executor.faults.failing_steps = {step + 1: "out of range"}
        end = end_of(await read_all(stream))
        assert (end.outcome, end.history_len) == (AbortReason.FORWARD_FAILED, len(history))
        assert "out of range" in end.detail
        await require_rolled_back(rig, history)


async def test_submit_when_too_many_wait_then_queue_full() -> None:
    async with running(waiting_max=2) as rig:
        rig.executor.hold()
        first = await rig.submit("t0", PROMPT, max_tokens=3)
        await asyncio.sleep(0)  # the first one runs, the others wait behind it
        waiting = [await rig.submit(f"t{number}", PROMPT, max_tokens=3) for number in (1, 2)]
        with pytest.raises(Refusal) as caught:
            await rig.submit("t3", PROMPT)
        assert caught.value.reason is RefusalReason.QUEUE_FULL
        rig.executor.let_go()
        for stream in (first, *waiting):
            assert ids_of(await read_all(stream)) == oracle(PROMPT, 3)
