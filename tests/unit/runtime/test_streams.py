"""A turn's feed and its readers: what waits is bounded, the end is told once, and the last leaving is noticed once."""

import asyncio

import pytest

from engine.core.commands import FinishReason
from engine.core.errors import Refusal, RefusalReason
from engine.core.events import Usage
from engine.runtime.handle import (
    Delta,
    EngineClosed,
    EngineFailed,
    Failure,
    Finished,
    Started,
    StreamReason,
    StreamRefusal,
    TurnEvent,
    again,
)
from engine.runtime.output import TurnOutput
from engine.runtime.streams import LiveStream, TurnFeed

STARTED = Started(context_len=3, new_len=3, max_tokens=8)
FINISHED = Finished(FinishReason.STOP, Usage(3, 0, 0, 3, 2, 0), history_len=5, is_committed=True)


class Letters:
    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])

    def is_special(self, token_id: int) -> bool:
        return False


class Rig:
    """A feed and how often it was abandoned."""

    def __init__(self, unread_ids_max: int = 100) -> None:
        self.abandoned = 0
        self.feed = TurnFeed(TurnOutput(Letters(), ["END"]), unread_ids_max, self._on_abandoned)

    def _on_abandoned(self) -> None:
        self.abandoned += 1


async def read_all(stream: LiveStream) -> list[TurnEvent]:
    return [event async for event in stream]


async def test_stream_when_reader_is_slow_then_deltas_are_one() -> None:
    rig = Rig()
    stream = rig.feed.open()
    rig.feed.start(STARTED)
    rig.feed.push((65, 66))
    rig.feed.push((67,))
    rig.feed.finish(FINISHED)
    assert await read_all(stream) == [STARTED, Delta(0, (65, 66, 67), "ABC"), FINISHED]


async def test_stream_when_reader_is_quick_then_each_push_is_a_delta() -> None:
    rig = Rig()
    reading = asyncio.create_task(read_all(rig.feed.open()))
    for token_id in (65, 66):
        await asyncio.sleep(0)
        rig.feed.push((token_id,))
    await asyncio.sleep(0)
    rig.feed.finish(FINISHED)
    assert await reading == [Delta(0, (65,), "A"), Delta(1, (66,), "B"), FINISHED]


async def test_finish_when_character_is_unfinished_then_its_text_comes_before_the_end() -> None:
    rig = Rig()
    stream = rig.feed.open()
    rig.feed.push((0xC3,))
    assert await anext(stream) == Delta(0, (0xC3,), "")
    rig.feed.finish(FINISHED)
    assert await read_all(stream) == [Delta(1, (), "\ufffd"), FINISHED]


async def test_open_when_readers_come_at_different_times_then_each_gets_all_that_it_asked_for() -> None:
    rig = Rig()
    first = rig.feed.open()
    rig.feed.start(STARTED)
    rig.feed.push((65, 66))
    assert [await anext(first), await anext(first)] == [STARTED, Delta(0, (65, 66), "AB")]
    second, third = rig.feed.open(), rig.feed.open(1)
    rig.feed.push((67,))
    rig.feed.finish(FINISHED)
    assert await read_all(first) == [Delta(2, (67,), "C"), FINISHED]
    assert await read_all(second) == [STARTED, Delta(0, (65, 66, 67), "ABC"), FINISHED]
    assert await read_all(third) == [STARTED, Delta(1, (66, 67), "BC"), FINISHED]


async def test_slow_readers_when_more_than_the_cap_came_since_they_read_then_they_alone() -> None:
    rig = Rig(unread_ids_max=2)
    slow, quick = rig.feed.open(), rig.feed.open()
    rig.feed.push((65, 66))
    await anext(quick)
    assert rig.feed.slow_readers() == ()
    rig.feed.push((67,))
    assert rig.feed.slow_readers() == (slow,)


async def test_slow_readers_when_one_came_late_then_what_it_has_to_catch_up_with_does_not_count() -> None:
    rig = Rig(unread_ids_max=2)
    rig.feed.push((65, 66, 67, 68))
    late = rig.feed.open()
    rig.feed.push((69, 70))
    assert rig.feed.slow_readers() == ()
    rig.feed.push((71,))
    assert rig.feed.slow_readers() == (late,)


async def test_cut_when_a_reader_is_too_slow_then_its_stream_ends_with_a_reason_and_the_others_go_on() -> None:
    rig = Rig()
    slow, other = rig.feed.open(), rig.feed.open()
    rig.feed.push((65,))
    slow.cut()
    with pytest.raises(StreamRefusal) as caught:
        await read_all(slow)
    assert (caught.value.reason, caught.value.value) == (StreamReason.SLOW_READER, 1)
    rig.feed.finish(FINISHED)
    assert await read_all(other) == [Delta(0, (65,), "A"), FINISHED]
    assert rig.abandoned == 0


async def test_aclose_when_the_last_reader_goes_before_the_end_then_told_once() -> None:
    rig = Rig()
    first, second = rig.feed.open(), rig.feed.open()
    await first.aclose()
    assert rig.abandoned == 0
    await second.aclose()
    await second.aclose()
    assert rig.abandoned == 1
    assert await read_all(second) == []


async def test_open_when_abandoned_before_then_leaving_is_told_again() -> None:
    rig = Rig()
    for expected in (1, 2):
        await rig.feed.open().aclose()
        assert rig.abandoned == expected


@pytest.mark.parametrize("way", ["finish", "fail"])
async def test_aclose_when_after_the_end_then_nothing_is_told(way: str) -> None:
    rig = Rig()
    stream = rig.feed.open()
    if way == "finish":
        rig.feed.finish(FINISHED)
    else:
        rig.feed.fail(EngineFailed("x"))
    await stream.aclose()
    assert rig.abandoned == 0


async def test_reader_when_cancelled_then_leaving_is_told_and_cancellation_goes_on() -> None:
    rig = Rig()
    reading = asyncio.create_task(read_all(rig.feed.open()))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert rig.abandoned == 1


@pytest.mark.parametrize("failure", [EngineFailed("books"), Refusal(RefusalReason.QUEUE_FULL, "full")])
async def test_fail_when_readers_wait_then_each_gets_the_failure(failure: Failure) -> None:
    rig = Rig()
    readings = [asyncio.create_task(read_all(rig.feed.open())) for _ in range(2)]
    await asyncio.sleep(0)
    rig.feed.fail(failure)
    for reading in readings:
        with pytest.raises(type(failure)):
            await reading


async def test_push_when_a_stop_string_is_complete_then_said_and_its_ids_are_the_last() -> None:
    rig = Rig()
    stream = rig.feed.open()
    assert not rig.feed.push(b"xEN")
    assert rig.feed.push(b"Dyz")
    rig.feed.finish(FINISHED)
    assert await read_all(stream) == [Delta(0, tuple(b"xEND"), "x"), FINISHED]


FAILURES: list[Failure] = [
    EngineFailed("halted"),
    EngineClosed("over"),
    Refusal(RefusalReason.QUEUE_FULL, "full", field="f", value=3, limit=2),
    StreamRefusal(StreamReason.SLOW_READER, "slow", field="f", value=3, limit=2),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
async def test_streams_when_all_fail_of_one_cause_then_each_reader_has_an_exception_of_its_own(
    failure: Failure,
) -> None:
    rig = Rig()
    streams = [rig.feed.open() for _ in range(3)]
    rig.feed.fail(failure)
    raised: list[BaseException] = []
    for stream in streams:
        with pytest.raises(type(failure)) as caught:
            await read_all(stream)
        raised.append(caught.value)
    assert len({id(each) for each in (*raised, failure)}) == 4
    assert failure.__traceback__ is None
    assert {(type(each), str(each)) for each in raised} == {(type(failure), str(failure))}


@pytest.mark.parametrize("failure", FAILURES[2:], ids=lambda failure: type(failure).__name__)
def test_again_when_a_refusal_has_facts_then_they_are_all_there(failure: Failure) -> None:
    assert vars(again(failure)) == vars(failure)
