"""Lost streams with the real core: turns run on for their grace, are found again with every id once, and are kept."""

import asyncio
import hashlib
from collections.abc import Coroutine
from dataclasses import replace

import pytest

from engine.core.commands import AbortReason, FinishReason, Fork
from engine.core.errors import Refusal, RefusalReason
from engine.core.events import TurnEnded
from engine.core.ids import SessionId, TurnId, pack_ids
from engine.runtime.handle import Base, Delta, Started, StreamReason, StreamRefusal, TurnEvent, TurnRequest
from engine.runtime.streams import LiveStream
from tests.kit.runtime_rig import QUICK, RuntimeRig, end_of, ids_of, oracle, read_all, running, wait_until

PROMPT = [7, 1, 9, 4, 4, 2, 8, 1, 1, 3, 5]
ANSWER = oracle(PROMPT, 40)
T = TurnId("t")
SESSION = SessionId("s")
LONG_GRACE = replace(QUICK, detach_grace_s=30.0)
SHORT_GRACE = replace(QUICK, detach_grace_s=0.03)


def digest(ids: list[int]) -> bytes:
    return hashlib.sha256(pack_ids(ids)).digest()


async def submit(
    rig: RuntimeRig, content: bytes = b"c", session: str | None = None, max_tokens: int = 40
) -> LiveStream:
    return await rig.submit("t", PROMPT, session=session, max_tokens=max_tokens, content=content)


async def read_ids(stream: LiveStream, count: int) -> list[int]:
    events: list[TurnEvent] = []
    while len(ids_of(events)) < count:
        events.append(await anext(stream))
    return ids_of(events)


def text_of(events: list[TurnEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def slow(rig: RuntimeRig) -> None:
    rig.executor.faults.delay_s = lambda _plan: 0.002


@pytest.mark.parametrize("session", [None, "s"])
async def test_resume_when_the_stream_was_lost_then_every_id_and_character_once(session: str | None) -> None:
    async with running(runtime=LONG_GRACE) as rig:
        await rig.open("s")
        slow(rig)
        stream = await submit(rig, session=session)
        first = [await anext(stream) for _ in range(4)]
        held = ids_of(first)
        await stream.aclose()
        session_id = None if session is None else SESSION
        resumed = await read_all(await rig.engine.resume(session_id, T, len(held), digest(held)))
        assert resumed[0] == first[0]
        starts = [event.start for event in resumed if isinstance(event, Delta) and event.token_ids]
        assert starts[0] == len(held)
        assert held + ids_of(resumed) == ANSWER
        assert text_of(first) + text_of(resumed) == bytes(ANSWER).decode(errors="replace")
        assert end_of(resumed).outcome is FinishReason.LENGTH
        assert len(rig.sink.endings()) == 1


async def test_turn_when_nobody_comes_back_within_its_grace_then_aborted_and_pages_are_back() -> None:
    async with running(runtime=SHORT_GRACE) as rig:
        slow(rig)
        stream = await submit(rig, max_tokens=200)
        await read_ids(stream, 3)
        await stream.aclose()
        assert rig.engine.num_live_turns == 1, "it runs on"
        await rig.wait_no_turns()
        outcomes = [each.event.outcome for each in rig.sink.events if isinstance(each.event, TurnEnded)]
        assert outcomes == [AbortReason.DISCONNECT]
        assert (await rig.full_pool()).uncached == 0
        with pytest.raises(StreamRefusal) as caught:
            await rig.engine.resume(None, T, 0)
        assert caught.value.reason is StreamReason.TURN_UNKNOWN


async def test_grace_when_a_reader_comes_back_then_it_is_over_and_begins_anew_when_that_one_goes() -> None:
    async with running(runtime=SHORT_GRACE) as rig:
        slow(rig)
        stream = await submit(rig, max_tokens=200)
        await stream.aclose()
        second = await rig.engine.resume(None, T, 0)
        assert len(await read_ids(second, 40)) >= 40  # 40 steps of 2 ms: longer than the grace
        await second.aclose()
        await rig.wait_no_turns()


async def test_turn_when_it_has_no_content_or_grace_is_none_then_leaving_aborts_at_once() -> None:
    for runtime, content in ((LONG_GRACE, b""), (replace(QUICK, detach_grace_s=0.0), b"c")):
        async with running(runtime=runtime) as rig:
            slow(rig)
            stream = await submit(rig, content, max_tokens=200)
            await stream.aclose()
            await rig.wait_no_turns()
            assert len(rig.executor.submitted) < 20


async def test_turn_when_detached_then_its_deadline_still_counts() -> None:
    async with running(runtime=LONG_GRACE) as rig:
        slow(rig)
        stream = await rig.submit("t", PROMPT, max_tokens=200, content=b"c", deadline_s=0.03)
        await stream.aclose()
        await rig.wait_no_turns()
        outcomes = [each.event.outcome for each in rig.sink.events if isinstance(each.event, TurnEnded)]
        assert outcomes == [AbortReason.DEADLINE]


async def test_abort_and_close_when_the_turn_is_detached_then_they_end_it_at_once() -> None:
    async with running(runtime=LONG_GRACE) as rig:
        await rig.open("s")
        slow(rig)
        for way in ("abort", "close"):
            stream = await submit(rig, session="s", max_tokens=200)
            await stream.aclose()
            async with asyncio.timeout(2):
                await (rig.engine.abort(SESSION, T) if way == "abort" else rig.engine.close_session(SESSION))
            assert rig.engine.num_live_turns == 0


async def test_submit_when_the_same_content_runs_then_attached_and_the_turn_runs_once() -> None:
    async with running(runtime=LONG_GRACE) as rig:
        slow(rig)
        first, second = await submit(rig), await submit(rig)
        answers = await asyncio.gather(read_all(first), read_all(second))
        assert [ids_of(events) for events in answers] == [ANSWER, ANSWER]
        assert len(rig.sink.endings()) == 1
        replayed = await read_all(await submit(rig))
        assert (replayed[0], replayed[-1]) == (answers[0][0], answers[0][-1])
        assert (ids_of(replayed), text_of(replayed)) == (ANSWER, text_of(answers[0]))
        assert len(rig.sink.endings()) == 1


async def test_submit_when_two_come_in_the_same_instant_then_one_turn() -> None:
    async with running(runtime=LONG_GRACE) as rig:
        streams = await asyncio.gather(submit(rig), submit(rig))
        assert [ids_of(await read_all(stream)) for stream in streams] == [ANSWER, ANSWER]
        assert len(rig.sink.endings()) == 1


async def test_submit_when_another_content_has_the_id_then_refused_and_the_first_completes() -> None:
    """ABO-13 (vllm-project/vllm#10583), of a running turn and of a finished one."""
    async with running(runtime=LONG_GRACE) as rig:
        slow(rig)
        first = await submit(rig)
        for _ in range(2):
            with pytest.raises(Refusal) as caught:
                await submit(rig, b"other")
            assert (caught.value.reason, caught.value.value) == (RefusalReason.TURN_EXISTS, "t")
            assert ids_of(await read_all(first)) in (ANSWER, [])


async def test_submit_when_refused_while_another_attached_then_both_hear_it() -> None:
    async with running(runtime=LONG_GRACE) as rig:
        request = TurnRequest(T, pack_ids([999]), content=b"c")
        outcomes = await asyncio.gather(*(rig.engine.submit(request) for _ in range(2)), return_exceptions=True)
        assert isinstance(outcomes[0], Refusal)
        assert isinstance(outcomes[1], LiveStream)
        with pytest.raises(Refusal):
            await read_all(outcomes[1])
        assert rig.engine.num_live_turns == 0


async def test_submit_when_the_id_was_rolled_back_then_it_runs_anew_as_the_next_attempt() -> None:
    async with running(runtime=LONG_GRACE) as rig:
        slow(rig)
        for attempt in (1, 2):
            stream = await submit(rig, b"%d" % attempt)
            assert (await begun(stream)).attempt == attempt
            await rig.engine.abort(None, T)
        last = await submit(rig, b"3")
        assert (await begun(last)).attempt == 3
        assert ids_of(await read_all(last)) == ANSWER


async def begun(stream: LiveStream) -> Started:
    started = await anext(stream)
    assert isinstance(started, Started)
    return started


async def test_submit_when_the_abort_of_its_id_is_on_its_way_then_waits_for_it_and_runs() -> None:
    """ABO-05 (vllm-project/vllm#23697), the race alone: the abort kills the turn it was meant for, and no other."""
    async with running(runtime=LONG_GRACE) as rig:
        for round_ in range(100):
            name = f"t{round_}"
            first = await rig.submit(name, PROMPT, max_tokens=200, content=b"long")
            aborting = asyncio.create_task(rig.engine.abort(None, TurnId(name)))
            await asyncio.sleep(0)
            second = await rig.submit(name, PROMPT, max_tokens=5, content=b"short")
            assert ids_of(await read_all(second)) == ANSWER[:5]
            await aborting
            assert end_of(await read_all(first)).outcome is AbortReason.CLIENT
        assert rig.engine.num_live_turns == 0


async def test_resume_when_the_ids_held_are_of_another_attempt_then_refused() -> None:
    async with running(runtime=LONG_GRACE) as rig:
        await read_all(await submit(rig))
        for held in ([*ANSWER[:3], 255 - ANSWER[3]], [*ANSWER, 1]):
            with pytest.raises(StreamRefusal) as caught:
                await rig.engine.resume(None, T, len(held), digest(held))
            assert caught.value.reason is StreamReason.ATTEMPT_CHANGED
        with pytest.raises(StreamRefusal) as caught:
            await rig.engine.resume(None, T, 41)
        assert (caught.value.reason, caught.value.value, caught.value.limit) == (
            StreamReason.FROM_TOKEN_INVALID,
            41,
            40,
        )
        events = await read_all(await rig.engine.resume(None, T, 40, digest(ANSWER)))
        assert ids_of(events) == []
        assert end_of(events).outcome is FinishReason.LENGTH


async def test_resume_when_the_session_has_had_many_turns_then_the_last_8_are_kept_and_older_ones_known() -> None:
    async with running(runtime=LONG_GRACE) as rig:
        await rig.open("s")
        for number in range(9):
            await read_all(await rig.submit(f"t{number}", [number], session="s", max_tokens=2, content=b"c"))
        for again in ("resume", "submit"):
            with pytest.raises(StreamRefusal) as caught:
                await (
                    rig.engine.resume(SESSION, TurnId("t0"), 0)
                    if again == "resume"
                    else rig.submit("t0", [0], session="s", max_tokens=2, content=b"c")
                )
            assert caught.value.reason is StreamReason.TURN_FORGOTTEN
        for number in range(1, 9):
            assert len(ids_of(await read_all(await rig.engine.resume(SESSION, TurnId(f"t{number}"), 0)))) == 2
        await rig.engine.close_session(SESSION)
        with pytest.raises(StreamRefusal) as caught:
            await rig.engine.resume(SESSION, TurnId("t8"), 0)
        assert caught.value.reason is StreamReason.TURN_UNKNOWN


async def test_records_when_a_stateless_turn_is_old_then_dropped_without_traffic() -> None:
    async with running(runtime=replace(LONG_GRACE, stateless_record_s=0.02)) as rig:
        await read_all(await submit(rig))

        async def is_dropped() -> bool:
            return await rig.engine.attach(None, T, b"c") is None

        await wait_until(is_dropped)


async def test_replay_when_the_turn_was_stopped_by_a_string_then_the_same_text_and_end() -> None:
    stop = next(chr(token_id) for token_id in ANSWER[3:] if chr(token_id).isalnum() and token_id < 128)
    async with running(runtime=LONG_GRACE) as rig:
        first = await read_all(await rig.submit("t", PROMPT, max_tokens=40, content=b"c", stop=[stop]))
        again = await read_all(await rig.submit("t", PROMPT, max_tokens=40, content=b"c", stop=[stop]))
        assert (ids_of(again), text_of(again), end_of(again)) == (ids_of(first), text_of(first), end_of(first))
        assert end_of(first).stop_string == stop


async def test_reader_when_too_slow_and_its_turn_can_be_resumed_then_only_its_stream_ends() -> None:
    async with running(runtime=replace(LONG_GRACE, unread_ids_max=10)) as rig:
        stream = await submit(rig)
        await rig.wait_no_turns()
        with pytest.raises(StreamRefusal) as caught:
            await read_all(stream)
        assert caught.value.reason is StreamReason.SLOW_READER
        assert ids_of(await read_all(await rig.engine.resume(None, T, 0))) == ANSWER


async def test_submit_when_the_history_is_not_the_one_it_was_made_for_then_refused_and_nothing_happened() -> None:
    async with running() as rig:
        await rig.open("s")
        await read_all(await rig.submit("t1", PROMPT, session="s", max_tokens=4))
        request = TurnRequest(TurnId("t2"), pack_ids([5]), SESSION, max_tokens=4, base=Base(len(PROMPT), PROMPT[-1]))
        with pytest.raises(StreamRefusal) as caught:
            await rig.engine.submit(request)
        assert (caught.value.reason, caught.value.value) == (StreamReason.HISTORY_MOVED, len(PROMPT) + 4)
        assert rig.engine.num_live_turns == 0
        right = replace(request, base=Base.of(await rig.engine.find_base(SESSION, None)))
        assert ids_of(await read_all(await rig.engine.submit(right))) == oracle([*PROMPT, *ANSWER[:4], 5], 4)


async def test_check_when_asked_in_the_middle_of_turns_then_clean() -> None:
    async with running() as rig:
        slow(rig)
        stream = await submit(rig)
        await read_ids(stream, 3)
        assert (await rig.engine.check()).is_clean
        await read_all(stream)


async def reasons_of(rig: RuntimeRig, session: str, name: str) -> set[StreamReason]:
    """Why `Resume` and `Generate` of a turn's name are refused."""
    reasons: set[StreamReason] = set()
    asked: tuple[Coroutine[None, None, LiveStream | None], ...] = (
        rig.engine.resume(SessionId(session), TurnId(name), 0),
        rig.engine.attach(SessionId(session), TurnId(name), b"c"),
        rig.submit(name, PROMPT, session=session, max_tokens=4, content=b"c"),
    )
    for each in asked:
        with pytest.raises(StreamRefusal) as caught:
            await each
        reasons.add(caught.value.reason)
    return reasons


@pytest.mark.parametrize("streaming", [True, False])
async def test_turn_when_only_its_session_remembers_it_then_forgotten_whoever_asks(streaming: bool) -> None:
    """In a fork, and in an ordinary session also where a Truncate went through it."""
    async with running() as rig:
        await rig.engine.open_session(SESSION, streaming=streaming)
        await read_all(await submit(rig, session="s", max_tokens=4))
        await rig.engine.fork_session(Fork(SESSION, SessionId("fork")))
        assert await reasons_of(rig, "fork", "t") == {StreamReason.TURN_FORGOTTEN}
        await rig.engine.truncate_session(SESSION, len(PROMPT) + 2)
        if not streaming:
            assert await reasons_of(rig, "s", "t") == {StreamReason.TURN_FORGOTTEN}
            return
        with pytest.raises(StreamRefusal) as caught:
            await rig.engine.resume(SESSION, T, 0)
        assert caught.value.reason is StreamReason.TURN_UNKNOWN, "its name is free again"
