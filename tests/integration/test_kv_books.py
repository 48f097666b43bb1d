"""The books that a stream of KV events begins with: made once for all who ask, not often, and never in vain."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace

import pytest

from engine.core.image import BooksImage
from engine.runtime.handle import EngineHandle
from protos.v1 import ownership_pb2
from services.errors import CallError
from services.kv_stream import LAPPED_TIMES, stream_kv_events
from services.shared_books import PAUSE_TIMES, BooksMessages, SharedBooks
from telemetry.kv.event_log import KvEventLog
from tests.kit.engine_traffic import EngineTraffic
from tests.kit.kv_rig import KvRig, following
from tests.kit.runtime_rig import wait_until

Messages = AsyncGenerator[ownership_pb2.KvEventsResponse, None]
IMAGE_S = 0.03


class Camera:
    """Stands before the engine of a rig: counts the images that are taken of its books, and makes each last."""

    def __init__(self, rig: KvRig, monkeypatch: pytest.MonkeyPatch, image_s: float = 0.0) -> None:
        self.began_s: list[float] = []
        take = rig.runtime.engine.image

        def open_shutter() -> None:
            self.began_s.append(time.monotonic())
            time.sleep(image_s)

        async def image() -> BooksImage:
            open_shutter()
            return await take()

        monkeypatch.setattr(rig.runtime.engine, "image", image)


def begin(rig: KvRig, books: SharedBooks) -> Messages:
    return stream_kv_events(rig.backend, ownership_pb2.KvEventsRequest(), books)


async def make_events(rig: KvRig, count: int, seed: int = 1) -> None:
    """Traffic until the log has told so many events more, and then none."""
    goal = rig.log.last_sequence + count
    async with EngineTraffic(rig.runtime.engine, seed).running():
        await wait_until(lambda: asyncio.sleep(0, rig.log.last_sequence >= goal), 60)
    await rig.runtime.wait_no_turns()
    await rig.runtime.full_pool()


async def test_books_when_many_ask_at_once_then_made_once_and_each_goes_on_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with following() as rig, AsyncExitStack() as open_streams:
        camera, books = Camera(rig, monkeypatch), SharedBooks()
        streams = [await open_streams.enter_async_context(aclosing(begin(rig, books))) for _ in range(20)]
        firsts = await asyncio.gather(*map(anext, streams))
        assert len(camera.began_s) == 1
        assert len({first.snapshot.sequence for first in firsts}) == 1
        await make_events(rig, 10)
        for stream, first in zip(streams, firsts, strict=True):
            events = (await anext(stream)).events.events
            assert events[0].sequence == first.snapshot.sequence + 1


async def test_books_when_who_asked_first_leaves_then_the_others_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following() as rig:
        camera, books = Camera(rig, monkeypatch), SharedBooks()
        leaving = asyncio.create_task(books.take(rig.runtime.engine, rig.log))
        staying = asyncio.create_task(books.take(rig.runtime.engine, rig.log))
        await asyncio.sleep(0)
        leaving.cancel()
        assert (await staying).sequence == rig.log.last_sequence
        assert leaving.cancelled()
        assert len(camera.began_s) == 1


async def test_books_when_asked_for_one_after_the_other_then_the_loop_is_held_up_a_bounded_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with following() as rig:
        camera, books = Camera(rig, monkeypatch, IMAGE_S), SharedBooks()
        for _ in range(3):
            await books.take(rig.runtime.engine, rig.log)
        first, second, third = camera.began_s
        assert second - first >= PAUSE_TIMES * IMAGE_S
        assert third - second >= PAUSE_TIMES * IMAGE_S


class DearBooks(SharedBooks):
    """Says that they took long."""

    async def take(self, engine: EngineHandle, log: KvEventLog) -> BooksMessages:
        return replace(await super().take(engine, log), took_s=IMAGE_S)


async def test_books_when_a_reader_can_not_keep_up_then_it_waits_before_it_gets_them_anew() -> None:
    async with following(events_max=16) as rig, aclosing(begin(rig, DearBooks())) as slow:
        await anext(slow)
        await make_events(rig, 40)
        before_s = time.monotonic()
        again = await anext(slow)
        assert again.snapshot.sequence == rig.log.last_sequence
        assert time.monotonic() - before_s >= LAPPED_TIMES * IMAGE_S
        assert rig.log.num_lapped == 1


async def test_books_when_the_engine_is_over_and_its_last_events_were_never_told_then_stopping_and_no_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with following() as rig, aclosing(begin(rig, SharedBooks())) as stream:
        camera = Camera(rig, monkeypatch)
        rig.log.last_core_seq -= 1
        await rig.runtime.engine.stop()
        with pytest.raises(CallError, match="the server is stopping"):
            await anext(stream)
        assert camera.began_s == []


async def test_books_when_the_log_is_closed_then_stopping_and_no_image(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following() as rig:
        camera, books = Camera(rig, monkeypatch, IMAGE_S), SharedBooks()
        await books.take(rig.runtime.engine, rig.log)
        waiting = asyncio.create_task(books.take(rig.runtime.engine, rig.log))
        await asyncio.sleep(0)
        rig.log.close()
        before_s = time.monotonic()
        with pytest.raises(CallError, match="the server is stopping"):
            await waiting
        assert time.monotonic() - before_s < PAUSE_TIMES * IMAGE_S / 2, "the pause goes on without a sense"
        async with aclosing(begin(rig, books)) as stream:
            with pytest.raises(CallError, match="the server is stopping"):
                await anext(stream)
        assert len(camera.began_s) == 1


async def test_books_when_the_log_lags_behind_then_no_image_is_taken_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following() as rig, aclosing(begin(rig, SharedBooks())) as stream:
        camera = Camera(rig, monkeypatch)
        rig.log.last_core_seq -= 1
        first = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.05)
        assert camera.began_s == []
        rig.log.last_core_seq += 1
        assert (await first).snapshot.sequence == rig.log.last_sequence
        assert len(camera.began_s) == 1
