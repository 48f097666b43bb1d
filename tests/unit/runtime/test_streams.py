"""One turn's stream: what waits is bounded, the end is told once, and leaving early is noticed once."""

import asyncio

import pytest

from engine.core.commands import FinishReason
from engine.core.events import Usage
from engine.runtime.detokenizer import Detokenizer
from engine.runtime.handle import Delta, EngineFailed, Finished, Started, TurnEvent
from engine.runtime.streams import LiveStream

STARTED = Started(context_len=3, new_len=3, max_tokens=8)
FINISHED = Finished(FinishReason.STOP, Usage(3, 0, 0, 3, 2, 0), history_len=5)


class Letters:
    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])

    def is_special(self, token_id: int) -> bool:
        return False


class Rig:
    """A stream and how often its reader left it."""

    def __init__(self, unread_ids_max: int = 100) -> None:
        self.left = 0
        self.stream = LiveStream(Detokenizer(Letters()), unread_ids_max, self._on_leave)

    def _on_leave(self) -> None:
        self.left += 1


async def read_all(stream: LiveStream) -> list[TurnEvent]:
    return [event async for event in stream]


async def test_stream_when_reader_is_slow_then_deltas_are_one() -> None:
    rig = Rig()
    rig.stream.start(STARTED)
    assert rig.stream.push((65, 66))
    assert rig.stream.push((67,))
    rig.stream.finish(FINISHED)
    assert await read_all(rig.stream) == [STARTED, Delta((65, 66, 67), "ABC"), FINISHED]


async def test_stream_when_reader_is_quick_then_each_push_is_a_delta() -> None:
    rig = Rig()
    reading = asyncio.create_task(read_all(rig.stream))
    for token_id in (65, 66):
        await asyncio.sleep(0)
        rig.stream.push((token_id,))
    await asyncio.sleep(0)
    rig.stream.finish(FINISHED)
    assert await reading == [Delta((65,), "A"), Delta((66,), "B"), FINISHED]


async def test_finish_when_character_is_unfinished_then_its_text_comes_before_the_end() -> None:
    rig = Rig()
    rig.stream.push((0xC3,))
    assert await anext(rig.stream) == Delta((0xC3,), "")
    rig.stream.finish(FINISHED)
    assert await read_all(rig.stream) == [Delta((), "\ufffd"), FINISHED]


async def test_push_when_more_than_the_cap_is_unread_then_false() -> None:
    rig = Rig(unread_ids_max=2)
    assert rig.stream.push((65, 66))
    assert not rig.stream.push((67,))


async def test_push_when_reader_caught_up_then_cap_starts_anew() -> None:
    rig = Rig(unread_ids_max=2)
    assert rig.stream.push((65, 66))
    await anext(rig.stream)
    assert rig.stream.push((67, 68))


async def test_aclose_when_before_the_end_then_leaving_is_told_once() -> None:
    rig = Rig()
    await rig.stream.aclose()
    await rig.stream.aclose()
    assert rig.left == 1
    assert await read_all(rig.stream) == []


async def test_aclose_when_after_the_end_then_nothing_is_told() -> None:
    rig = Rig()
    rig.stream.finish(FINISHED)
    await rig.stream.aclose()
    assert rig.left == 0


async def test_reader_when_cancelled_then_leaving_is_told_and_cancellation_goes_on() -> None:
    rig = Rig()
    reading = asyncio.create_task(read_all(rig.stream))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert rig.left == 1


async def test_push_when_reader_has_left_then_nothing_piles_up() -> None:
    rig = Rig(unread_ids_max=2)
    await rig.stream.aclose()
    assert all(rig.stream.push((65,)) for _ in range(10))


async def test_fail_when_reader_waits_then_it_gets_the_failure() -> None:
    rig = Rig()
    reading = asyncio.create_task(read_all(rig.stream))
    await asyncio.sleep(0)
    rig.stream.fail(EngineFailed("books"))
    with pytest.raises(EngineFailed, match="books"):
        await reading
