"""The loop with the real core: forks, rewinding, turns that replace and turns that are kept, with one plan and two."""

import asyncio
from dataclasses import replace

import pytest

from engine.core.commands import AbortReason, FinishReason, Fork, Lengths, OnAbort, TurnMode
from engine.core.errors import Refusal, RefusalReason
from engine.core.ids import SessionId, TurnId, pack_ids, unpack_ids
from engine.runtime.handle import Base, Started, StreamReason, StreamRefusal, TurnOptions, TurnRequest
from engine.runtime.streams import LiveStream
from tests.kit.runtime_rig import RuntimeRig, end_of, ids_of, oracle, read_all, running, wait_until

PROMPT = [7, 1, 9, 4, 4, 2, 8, 1, 1, 3, 5]
S, F = SessionId("s"), SessionId("f")
REPLACE = TurnOptions(mode=TurnMode.REPLACE)
KEEP = TurnOptions(on_abort=OnAbort.KEEP)

DEPTHS = pytest.mark.parametrize("in_flight_max", [1, 2])
KINDS = pytest.mark.parametrize("streaming", [True, False])


async def history_of(rig: RuntimeRig, session: SessionId, parent: str | None = None) -> list[int]:
    return list(unpack_ids(await rig.engine.find_base(session, None if parent is None else TurnId(parent))))


async def wait_output(rig: RuntimeRig, count: int) -> None:
    """Returns once the only live turn has generated `count` tokens."""

    async def has_it() -> bool:
        return any(turn.output_len >= count for turn in (await rig.engine.snapshot()).turns)

    await wait_until(has_it)


@DEPTHS
@KINDS
async def test_fork_when_both_go_on_then_each_has_its_own_tokens_and_the_beginning_is_not_computed_again(
    in_flight_max: int, streaming: bool
) -> None:
    parent = None if streaming else "t1"
    async with running(in_flight_max=in_flight_max) as rig:
        await rig.open("s", streaming=streaming)
        first = await rig.run("t1", PROMPT, "s", max_tokens=6)
        history = PROMPT + first.ids
        lengths = await rig.engine.fork_session(Fork(S, F))
        assert lengths.history_len == len(history)
        there, here = await asyncio.gather(
            rig.run("t2", [5, 6], "f", parent=parent), rig.run("t2", [9], "s", parent=parent)
        )
        assert there.ids == oracle([*history, 5, 6], 8)
        assert here.ids == oracle([*history, 9], 8)
        usage = there.end.usage
        assert usage.tokens_from_slot + usage.tokens_from_tree >= 12, "whole pages are shared"
        for name in (S, F):
            await rig.engine.close_session(name)
        books = await rig.full_pool()
        assert (books.session_held, books.uncached, books.protected) == (0, 0, 0)


@DEPTHS
async def test_fork_when_a_turn_runs_then_it_goes_on_and_the_fork_has_what_was_committed(in_flight_max: int) -> None:
    async with running(in_flight_max=in_flight_max) as rig:
        await rig.open("s")
        first = await rig.run("t1", PROMPT, "s", max_tokens=6)
        rig.executor.hold()
        stream = await rig.submit("t2", [5], session="s")
        lengths = await rig.engine.fork_session(Fork(S, F, at_turn=TurnId("t1"), at_len=9))
        rig.executor.let_go()
        assert lengths.history_len == 9
        assert ids_of(await read_all(stream)) == oracle([*PROMPT, *first.ids, 5], 8)
        assert (await rig.run("t1", [8], "f")).ids == oracle([*PROMPT[:9], 8], 8)


async def test_fork_when_it_is_refused_then_by_name_and_nothing_was_opened() -> None:
    async with running() as rig:
        await rig.open("s")
        for request, reason in (
            (Fork(SessionId("nobody"), F), RefusalReason.SESSION_UNKNOWN),
            (Fork(S, S), RefusalReason.SESSION_EXISTS),
            (Fork(S, F, at_len=1), RefusalReason.LENGTH_INVALID),
            (Fork(S, F, at_turn=TurnId("t9")), RefusalReason.PARENT_UNKNOWN),
        ):
            with pytest.raises(Refusal) as caught:
                await rig.engine.fork_session(request)
            assert caught.value.reason is reason
        assert len((await rig.engine.snapshot()).sessions) == 1


@DEPTHS
@KINDS
async def test_truncate_when_the_session_goes_on_then_from_there_and_the_turns_behind_are_forgotten(
    in_flight_max: int, streaming: bool
) -> None:
    async with running(in_flight_max=in_flight_max) as rig:
        await rig.open("s", streaming=streaming)
        first = await rig.run("t1", PROMPT, "s", max_tokens=6)
        parent = None if streaming else "t1"
        second = await rig.submit("t2", [5, 6], session="s", parent=parent, content=b"c")
        await read_all(second)
        lengths = await rig.engine.truncate_session(S, len(PROMPT) + 6)
        assert lengths == Lengths(len(PROMPT) + 6, lengths.kv_len)
        assert await history_of(rig, S, parent) == PROMPT + first.ids
        with pytest.raises(StreamRefusal) as caught:
            await rig.engine.resume(S, TurnId("t2"), 0)
        assert caught.value.reason is StreamReason.TURN_UNKNOWN
        again = await read_all(await rig.submit("t2", [9], session="s", parent=parent, content=b"other"))
        assert ids_of(again) == oracle([*PROMPT, *first.ids, 9], 8)
        assert isinstance(again[0], Started)
        assert again[0].attempt == 2, "what the first one told is void"


async def test_truncate_when_a_turn_runs_or_the_length_can_not_be_then_refused() -> None:
    async with running() as rig:
        await rig.open("s")
        first = await rig.run("t1", PROMPT, "s", max_tokens=2)
        for length in (-1, len(PROMPT) + 3):
            with pytest.raises(Refusal) as caught:
                await rig.engine.truncate_session(S, length)
            assert caught.value.reason is RefusalReason.LENGTH_INVALID
        rig.executor.hold()
        stream = await rig.submit("t2", [5], session="s")
        with pytest.raises(Refusal) as caught:
            await rig.engine.truncate_session(S, 3)
        assert caught.value.reason is RefusalReason.SESSION_BUSY
        rig.executor.let_go()
        assert ids_of(await read_all(stream)) == oracle([*PROMPT, *first.ids, 5], 8)
        assert (await rig.engine.truncate_session(S, 0)) == Lengths(0, 0)
        assert (await rig.run("t1", [3], "s")).ids == oracle([3], 8)


@DEPTHS
async def test_replace_when_the_parent_has_children_then_they_end_or_are_forgotten_and_records_go(
    in_flight_max: int,
) -> None:
    async with running(in_flight_max=in_flight_max) as rig:
        await rig.open("s", streaming=False)
        root = await rig.run("root", PROMPT, "s", max_tokens=4)
        await read_all(await rig.submit("done", [5], session="s", parent="root", content=b"c"))
        rig.executor.hold()
        live = await rig.submit("live", [6], session="s", parent="done", max_tokens=100, content=b"c")
        rig.executor.let_go()
        await wait_output(rig, 1)
        new = await rig.submit("new", [8], session="s", parent="root", options=REPLACE)
        assert end_of(await read_all(live)).outcome is AbortReason.REPLACED
        assert ids_of(await read_all(new)) == oracle([*PROMPT, *root.ids, 8], 8)
        for name in ("done", "live"):
            with pytest.raises(StreamRefusal) as caught:
                await rig.engine.resume(S, TurnId(name), 0)
            assert caught.value.reason is StreamReason.TURN_UNKNOWN
        await rig.run("rest", [1], "s", options=REPLACE)
        with pytest.raises(Refusal) as refused:
            await history_of(rig, S, "root")
        assert refused.value.reason is RefusalReason.PARENT_UNKNOWN


@DEPTHS
async def test_replace_when_refused_then_nothing_is_replaced(in_flight_max: int) -> None:
    async with running(in_flight_max=in_flight_max) as rig:
        await rig.open("s", streaming=False)
        root = await rig.run("root", PROMPT, "s", max_tokens=4)
        rig.executor.hold()
        live = await rig.submit("live", [6], session="s", parent="root")
        with pytest.raises(Refusal) as caught:
            await rig.submit("new", [999], session="s", parent="root", options=REPLACE)
        assert caught.value.reason is RefusalReason.TOKEN_OUT_OF_RANGE
        rig.executor.let_go()
        assert ids_of(await read_all(live)) == oracle([*PROMPT, *root.ids, 6], 8)


async def test_submit_when_the_end_of_the_base_is_another_by_then_then_history_moved() -> None:
    async with running() as rig:
        await rig.open("s", streaming=False)
        await rig.run("root", PROMPT, "s", max_tokens=4)
        options = TurnOptions(drop_previous_output=True)
        request = TurnRequest(
            TurnId("t"), pack_ids([8]), S, TurnId("root"), max_tokens=2, options=options, base=Base(11, PROMPT[-1] + 1)
        )
        with pytest.raises(StreamRefusal) as caught:
            await rig.engine.submit(request)
        assert caught.value.reason is StreamReason.HISTORY_MOVED
        stream = await rig.engine.submit(replace(request, base=Base(11, PROMPT[-1])))
        assert ids_of(await read_all(stream)) == oracle([*PROMPT, 8], 2)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (TurnOptions(drop_previous_output=True), PROMPT),
        (TurnOptions(offset=3), PROMPT[:3]),
        (TurnOptions(offset=0), []),
        (TurnOptions(mode=TurnMode.REPLACE, drop_previous_output=True, offset=11), PROMPT),
    ],
)
async def test_turn_when_it_keeps_a_part_then_it_follows_that_part(options: TurnOptions, kept: list[int]) -> None:
    async with running() as rig:
        await rig.open("s", streaming=False)
        await rig.run("root", PROMPT, "s", max_tokens=4)
        assert await rig.engine.find_base(S, TurnId("root"), options) == pack_ids(kept)
        assert (await rig.run("t", [8, 9], "s", parent="root", options=options)).ids == oracle([*kept, 8, 9], 8)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (REPLACE, RefusalReason.STREAMING_APPENDS_ONLY),
        (TurnOptions(offset=1), RefusalReason.STREAMING_APPENDS_ONLY),
        (TurnOptions(drop_previous_output=True), RefusalReason.STREAMING_APPENDS_ONLY),
        (TurnOptions(priority=1001), RefusalReason.PRIORITY_INVALID),
        (TurnOptions(draft_tokens=-1), RefusalReason.DRAFT_TOKENS_INVALID),
    ],
)
async def test_streaming_turn_when_an_option_can_not_be_then_refused_and_no_request_is_created(
    options: TurnOptions, reason: RefusalReason
) -> None:
    async with running() as rig:
        await rig.open("s")
        first = await rig.run("t1", PROMPT, "s", max_tokens=2)
        num_plans = len(rig.executor.submitted)
        with pytest.raises(Refusal) as caught:
            await rig.submit("t2", [5], session="s", options=options)
        assert caught.value.reason is reason
        assert (rig.engine.num_live_turns, len(rig.executor.submitted)) == (0, num_plans)
        assert (await rig.run("t2", [5], "s")).ids == oracle([*PROMPT, *first.ids, 5], 8)


@pytest.mark.parametrize(
    "options", [REPLACE, KEEP, TurnOptions(offset=0), TurnOptions(drop_previous_output=True)], ids=str
)
async def test_turn_without_a_session_when_an_option_needs_one_then_refused(options: TurnOptions) -> None:
    async with running() as rig:
        with pytest.raises(Refusal) as caught:
            await rig.submit("t", PROMPT, options=options)
        assert caught.value.reason is RefusalReason.SESSION_REQUIRED


@DEPTHS
@KINDS
async def test_abort_when_keep_then_what_was_told_is_in_the_session_and_is_replayed(
    in_flight_max: int, streaming: bool
) -> None:
    async with running(in_flight_max=in_flight_max) as rig:
        await rig.open("s", streaming=streaming)
        rig.executor.faults.delay_s = lambda _plan: 0.001
        stream = await rig.submit("t1", PROMPT, session="s", max_tokens=200, options=KEEP, content=b"c")
        reading = asyncio.create_task(read_all(stream))
        await wait_output(rig, 4)
        await rig.engine.abort(S, TurnId("t1"))
        events = await reading
        told, end = ids_of(events), end_of(events)
        assert (end.outcome, end.is_committed) == (AbortReason.CLIENT, True)
        assert told == oracle(PROMPT, len(told))
        assert end.history_len == len(PROMPT) + len(told)
        parent = None if streaming else "t1"
        assert await history_of(rig, S, parent) == PROMPT + told
        again = await read_all(await rig.submit("t1", PROMPT, session="s", options=KEEP, content=b"c"))
        assert ids_of(again) == told
        assert end_of(again) == end, "replayed with its outcome"
        assert (await rig.run("t2", [5], "s", parent=parent)).ids == oracle([*PROMPT, *told, 5], 8)


async def test_abort_when_keep_and_nothing_was_told_then_rolled_back_and_its_name_is_free() -> None:
    async with running() as rig:
        await rig.open("s")
        first = await rig.run("t1", PROMPT, "s", max_tokens=2)
        rig.executor.hold()
        stream = await rig.submit("t2", [5], session="s", options=KEEP, content=b"c")
        await rig.engine.abort(S, TurnId("t2"))
        end = end_of(await read_all(stream))
        assert (end.outcome, end.is_committed, end.history_len) == (AbortReason.CLIENT, False, len(PROMPT) + 2)
        rig.executor.let_go()
        again = await read_all(await rig.submit("t2", [5], session="s", content=b"c"))
        assert ids_of(again) == oracle([*PROMPT, *first.ids, 5], 8)


@DEPTHS
@KINDS
async def test_close_when_draining_then_turns_finish_and_new_ones_are_refused(
    in_flight_max: int, streaming: bool
) -> None:
    async with running(in_flight_max=in_flight_max) as rig:
        await rig.open("s", streaming=streaming)
        rig.executor.hold()
        stream = await rig.submit("t1", PROMPT, session="s")
        closing = asyncio.create_task(rig.engine.close_session(S, drain=True))
        await asyncio.sleep(0)
        with pytest.raises(Refusal) as caught:
            await rig.submit("t2", PROMPT, session="s")
        assert caught.value.reason is RefusalReason.SESSION_CLOSING
        assert not closing.done()
        rig.executor.let_go()
        events = await read_all(stream)
        await closing
        assert end_of(events).outcome is FinishReason.LENGTH
        assert ids_of(events) == oracle(PROMPT, 8)
        await rig.wait_no_sessions()
        books = await rig.full_pool()
        assert (books.session_held, books.uncached) == (0, 0)


async def test_close_when_draining_takes_too_long_then_a_second_one_aborts() -> None:
    async with running() as rig:
        await rig.open("s")
        rig.executor.hold()
        stream = await rig.submit("t1", PROMPT, session="s")
        draining = asyncio.create_task(rig.engine.close_session(S, drain=True))
        await asyncio.sleep(0)
        await rig.engine.close_session(S)
        await draining
        assert end_of(await read_all(stream)).outcome is AbortReason.SESSION_CLOSED


async def test_priority_when_turns_wait_then_the_higher_one_is_answered_first() -> None:
    async with running(pool_pages=9, context_len=32) as rig:
        rig.executor.hold()
        first = await rig.submit("first", PROMPT, max_tokens=16)
        rest = [
            await rig.submit(name, [9, *PROMPT], max_tokens=16, options=TurnOptions(priority=priority))
            for name, priority in (("low", -1), ("middle", None), ("high", 1))
        ]
        done: list[str] = []

        async def read(name: str, stream: LiveStream) -> None:
            assert ids_of(await read_all(stream)) == oracle([9, *PROMPT], 16)
            done.append(name)

        rig.executor.let_go()
        await asyncio.gather(read_all(first), *map(read, ("low", "middle", "high"), rest))
    assert done == ["high", "middle", "low"]


@DEPTHS
async def test_drafts_when_asked_for_then_the_same_tokens_and_the_right_ones_are_counted(in_flight_max: int) -> None:
    async with running(in_flight_max=in_flight_max, vocab_size=2) as rig:
        plain = await read_all(await rig.submit("plain", [0, 1, 1, 0], max_tokens=60))
        steps = len(rig.executor.submitted)
        options = TurnOptions(draft_tokens=4)
        drafted = await read_all(await rig.submit("drafted", [0, 1, 1, 0], max_tokens=60, options=options))
        steps_drafted = len(rig.executor.submitted) - steps
    assert ids_of(drafted) == ids_of(plain)
    assert (end_of(plain).drafted, end_of(plain).accepted) == (0, 0)
    end = end_of(drafted)
    assert 0 < end.accepted < end.drafted, "of two tokens, about half of the guesses are right"
    assert steps_drafted <= 60 + 1 - end.accepted
