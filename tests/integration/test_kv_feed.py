"""The KV event feed over real sockets, filled by a real engine: what a reader believes is what the cache has."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import zmq
import zmq.asyncio

from engine.core.events import CacheFlushed, CoreEvent, KvMoved, Numbered, PrefixStored
from engine.core.ids import StepNo, pack_ids
from engine.core.ownership import CACHE, FREE, Move, PoolKind
from services.backend import Backend
from services.client import connect
from telemetry.kv.feed import KvFeed
from telemetry.kv.publisher import CannotListen
from telemetry.settings import Encoding, KvFeedSettings
from tests.kit.kv_rig import serving
from tests.kit.kv_subscriber import END, KvSubscriber, ports, subscribed, tree_paths
from tests.kit.kv_traffic import mixed_traffic
from tests.kit.runtime_rig import RuntimeRig, read_all, running, wait_until
from tests.kit.server_rig import byte_tokenizer

FULL, SWA, MAMBA = PoolKind.FULL, PoolKind.SWA, PoolKind.MAMBA
PAGE_SIZE = 4
PLAIN = {FULL: 64, PoolKind.ROWS: 8}
HYBRID = {FULL: 64, SWA: 48, MAMBA: 24, PoolKind.ROWS: 8}


def settings(encoding: Encoding = Encoding.MAP, topic: str = "", *, salted: bool = True) -> KvFeedSettings:
    return KvFeedSettings("127.0.0.1", 0, 0, topic, encoding, salted)


@asynccontextmanager
async def feeding(feed: KvFeed) -> AsyncIterator[KvFeed]:
    feed.start()
    try:
        yield feed
    finally:
        feed.close(5.0)


def numbered(*events: CoreEvent) -> tuple[Numbered, ...]:
    """The feed goes by their order, not by their numbers."""
    return tuple(Numbered(1, event) for event in events)


def stored(pages: Sequence[int], parent: int | None = None, namespace: str = "") -> PrefixStored:
    """Page n holds n, n, n, n."""
    ids = pack_ids(page for page in pages for _ in range(PAGE_SIZE))
    return PrefixStored(FULL, tuple(pages), ids, parent, namespace)


def evicted(*pages: int) -> KvMoved:
    return KvMoved(FULL, Move.EVICT, CACHE, FREE, pages, StepNo(1), "")


async def have_sent(feed: KvFeed, num_batches: int) -> None:
    async def has_sent() -> bool:
        return feed.batches_sent >= num_batches

    await wait_until(has_sent, timeout_s=20.0)


def groups_agree(reader: KvSubscriber, rig: RuntimeRig, groups: dict[int | None, PoolKind]) -> bool:
    return all(reader.belief.of_group(idx) == tree_paths(rig.sink.events, pool) for idx, pool in groups.items())


@pytest.mark.parametrize("encoding", Encoding)
async def test_reader_when_turns_share_evict_and_end_badly_then_it_believes_what_the_cache_has(
    encoding: Encoding,
) -> None:
    feed = KvFeed(settings(encoding), PAGE_SIZE, PLAIN)
    async with feeding(feed), subscribed(ports(feed)) as reader, running(sinks=(feed,), pool_pages=40) as rig:
        await mixed_traffic(rig, seed=7)
        await reader.until(lambda: reader.next == feed.batches_sent and groups_agree(reader, rig, {None: FULL}))
        kinds = {event["type"] for event in reader.events}
        assert kinds == {"BlockStored", "BlockRemoved"}, "too little traffic: nothing was evicted"
        assert len(reader.events) == feed.events_sent
        assert (feed.dropped, feed.clears) == (0, 0)


@pytest.mark.parametrize("encoding", Encoding)
async def test_reader_when_the_model_has_windows_and_states_then_each_group_is_what_its_pool_has(
    encoding: Encoding,
) -> None:
    feed = KvFeed(settings(encoding), PAGE_SIZE, HYBRID, window=8)
    async with (
        feeding(feed),
        subscribed(ports(feed)) as reader,
        running(sinks=(feed,), pool_pages=64, window=8, swa_pages=48, state_slots=24) as rig,
    ):
        await mixed_traffic(rig, seed=8)
        groups: dict[int | None, PoolKind] = {0: FULL, 1: SWA, 2: MAMBA}
        await reader.until(lambda: reader.next == feed.batches_sent and groups_agree(reader, rig, groups))
        for pool in (SWA, MAMBA):
            assert tree_paths(rig.sink.events, pool), f"{pool}: nothing was compared"
        await rig.engine.flush()
        await reader.until(lambda: reader.belief.clears == 1)
        assert not reader.belief.paths


async def test_session_when_it_holds_its_kv_then_it_is_not_announced_until_it_gives_it_up() -> None:
    feed = KvFeed(settings(), PAGE_SIZE, PLAIN)
    async with feeding(feed), subscribed(ports(feed)) as reader, running(sinks=(feed,)) as rig:
        await rig.open("s")
        await rig.run("t1", range(20), "s")
        await rig.run("t2", range(20, 40), "s")
        held = (await rig.full_pool()).session_held
        assert held, "the session keeps nothing"
        await reader.until(lambda: reader.next == feed.batches_sent and groups_agree(reader, rig, {None: FULL}))
        assert not any(len(path) > 20 for path in reader.belief.of_group()), "what is the session's was announced"


async def test_flush_when_nothing_is_used_then_cleared_behind_the_removals() -> None:
    feed = KvFeed(settings(), PAGE_SIZE, PLAIN)
    async with feeding(feed), subscribed(ports(feed)) as reader, running(sinks=(feed,)) as rig:
        await read_all(await rig.submit("t", range(20)))
        await rig.engine.flush()
        await reader.until(lambda: reader.belief.clears == 1)
        assert [event["type"] for event in reader.events][-2:] == ["BlockRemoved", "AllBlocksCleared"]
        await read_all(await rig.submit("u", range(20)))
        await reader.until(lambda: bool(reader.belief.paths) and groups_agree(reader, rig, {None: FULL}))


async def test_flush_when_something_stays_then_removals_only() -> None:
    feed = KvFeed(settings(), PAGE_SIZE, PLAIN)
    async with feeding(feed), subscribed(ports(feed)) as reader:
        feed.publish(numbered(stored([1, 2]), evicted(2), CacheFlushed(1)), 0.0)
        await reader.until(lambda: reader.next == 1)
        assert (len(reader.belief.paths), reader.belief.clears) == (1, 0)


async def test_content_when_removed_and_stored_again_in_one_publish_then_in_that_order() -> None:
    feed = KvFeed(settings(), PAGE_SIZE, PLAIN)
    again = PrefixStored(FULL, (9,), pack_ids([1] * PAGE_SIZE))
    async with feeding(feed), subscribed(ports(feed)) as reader:
        feed.publish(numbered(stored([1]), evicted(1), again), 0.0)
        await reader.until(lambda: reader.next == 1)
        assert [event["type"] for event in reader.events] == ["BlockStored", "BlockRemoved", "BlockStored"]
        assert (
            reader.events[0]["block_hashes"]
            == reader.events[2]["block_hashes"]
            == [key[1] for key in reader.belief.paths]
        )


async def test_namespaces_when_not_to_be_published_then_only_the_common_one_is() -> None:
    events = numbered(stored([1]), stored([2], namespace="tenant"), stored([3], parent=2), evicted(3))
    for salted, num_events in ((True, 4), (False, 1)):
        feed = KvFeed(settings(salted=salted), PAGE_SIZE, PLAIN)
        async with feeding(feed), subscribed(ports(feed)) as reader:
            feed.publish(events, 0.0)
            await reader.until(lambda: reader.next == 1)
            assert len(reader.events) == num_events


async def test_reader_when_it_comes_late_then_the_replay_has_all_and_the_topic_is_the_first_frame() -> None:
    feed = KvFeed(settings(topic="kv@pod@model"), PAGE_SIZE, PLAIN)
    async with feeding(feed):
        for page in range(1, 40):
            feed.publish(numbered(stored([page], page - 1 if page > 1 else None)), 0.0)
        await have_sent(feed, 39)
        async with subscribed(ports(feed), topic=b"kv@pod") as reader:
            await reader.catch_up()
            assert [number for number, _ in await reader.replay(35)] == [35, 36, 37, 38]
            assert await reader.replay(39) == await reader.replay((1 << 64) - 1) == []
            assert len(reader.belief.paths) == 39
            live = 40
            while not reader.topics:  # until the subscription has arrived
                feed.publish(numbered(stored([live], live - 1)), 0.0)
                live += 1
                await asyncio.sleep(0.01)
            assert reader.topics == {b"kv@pod@model"}


async def test_requests_when_malformed_then_ignored_and_the_next_good_one_is_answered() -> None:
    feed = KvFeed(settings(), PAGE_SIZE, PLAIN)
    draw = random.Random(3)
    async with feeding(feed), subscribed(ports(feed)) as reader:
        feed.publish(numbered(stored([1])), 0.0)
        context = zmq.asyncio.Context()
        hostile = context.socket(zmq.DEALER)
        hostile.connect(ports(feed).replay_endpoint)
        for _ in range(300):
            frames = [draw.randbytes(draw.choice([0, 1, 7, 8, 9, 300])) for _ in range(draw.randrange(1, 5))]
            if len(frames) == 2 and not frames[0] and len(frames[1]) == 8:
                continue
            await hostile.send_multipart(frames)
        await hostile.send_multipart([b"", bytes(8)])
        async with asyncio.timeout(10):
            first = await hostile.recv_multipart()
            assert await hostile.recv_multipart() == [b"", END, b""]
        assert first[1] == bytes(8)
        await hostile.send(b"x" * 1_000_000)  # which ends the connection
        assert len(await reader.replay(0)) == 1
        hostile.close(linger=0)
        context.term()


async def test_replays_when_many_ask_and_do_not_read_then_what_is_new_comes_at_once() -> None:
    feed = KvFeed(settings(), PAGE_SIZE, {FULL: 4000, PoolKind.ROWS: 8})
    async with feeding(feed), subscribed(ports(feed)) as reader:
        for page in range(1, 2001):
            feed.publish(numbered(stored([page])), 0.0)
            if page % 200 == 0:
                await asyncio.sleep(0.01)
        await reader.until(lambda: reader.next == 2000)
        context = zmq.asyncio.Context()
        deaf = [context.socket(zmq.DEALER) for _ in range(70)]
        for asker in deaf:
            asker.rcvhwm = 1
            asker.connect(ports(feed).replay_endpoint)
            await asker.send_multipart([b"", bytes(8)])
        await asyncio.sleep(0.1)
        before_s = time.monotonic()
        feed.publish(numbered(stored([3000])), 0.0)
        await wait_until(lambda: asyncio.sleep(0, reader.next > 2000))
        assert time.monotonic() - before_s < 1.0
        for asker in deaf:
            asker.close(linger=0)
        context.term()


async def test_backlog_when_it_overflows_then_dropped_counted_and_the_reader_converges() -> None:
    feed = KvFeed(settings(), PAGE_SIZE, {FULL: 400, PoolKind.ROWS: 8}, changes_max=8)
    for page in range(1, 11):  # not started yet: nobody takes them
        feed.publish(numbered(stored([page], page - 1 if page > 1 else None)), 0.0)
    assert (feed.dropped, feed.clears) == (2, 0)
    async with feeding(feed), subscribed(ports(feed)) as reader:
        await reader.until(lambda: feed.clears == 1 and reader.belief.clears == 1 and len(reader.belief.paths) == 10)
        feed.publish(numbered(stored([11], 10)), 0.0)
        await reader.until(lambda: len(reader.belief.paths) == 11)
        assert (feed.dropped, feed.clears) == (2, 1)


async def test_reader_when_it_asks_for_what_is_not_kept_any_more_then_it_gets_the_whole() -> None:
    feed = KvFeed(settings(), PAGE_SIZE, {FULL: 16_000, PoolKind.ROWS: 8})
    async with feeding(feed):
        feed.publish(numbered(stored([1])), 0.0)
        for hundreds in range(1, 102):
            for _ in range(100):
                feed.publish(numbered(stored([2], 1), evicted(2)), 0.0)
            await have_sent(feed, 1 + 100 * hundreds)
        feed.publish(numbered(stored([2], 1)), 0.0)
        await have_sent(feed, 1 + 101 * 100 + 1)
        assert feed.dropped == 0
        async with subscribed(ports(feed), listens=False) as reader:
            kept = await reader.replay(0)
            assert kept[-1][0] - kept[0][0] + 1 == len(kept) == ports(feed).replay_batches
            reader.next = kept[-1][0] + 1
            await reader.until(lambda: reader.belief.clears == 1 and len(reader.belief.paths) == 2)
            assert feed.clears == 1


async def test_publish_when_a_reader_takes_nothing_then_the_engine_does_not_wait() -> None:
    feed = KvFeed(settings(), PAGE_SIZE, {FULL: 20_000, PoolKind.ROWS: 8})
    context = zmq.asyncio.Context()
    deaf = context.socket(zmq.SUB)
    deaf.rcvhwm = 1
    deaf.subscribe(b"")
    async with feeding(feed):
        deaf.connect(ports(feed).endpoint)
        await asyncio.sleep(0.1)
        longest_s = 0.0
        for at in range(4000):
            before_s = time.monotonic()
            feed.publish(numbered(stored([at + 1])), 0.0)
            longest_s = max(longest_s, time.monotonic() - before_s)
            if at % 100 == 0:
                await asyncio.sleep(0.005)
        await have_sent(feed, 4000)
        assert longest_s < 0.5
        before_s = time.monotonic()
        feed.close(0.5)
        feed.close(0.5)
        assert time.monotonic() - before_s < 2.0
        feed.publish(numbered(stored([9000])), 0.0)
    deaf.close(linger=0)
    context.term()


async def test_close_when_batches_wait_then_they_are_sent_first() -> None:
    feed = KvFeed(settings(), PAGE_SIZE, {FULL: 4000, PoolKind.ROWS: 8})
    async with feeding(feed), subscribed(ports(feed)) as reader:
        await reader.catch_up()
        page = 0
        while not reader.topics:  # until the subscription has arrived
            page += 1
            feed.publish(numbered(stored([page])), 0.0)
            await asyncio.sleep(0.01)
        for later in range(page + 1, page + 501):
            feed.publish(numbered(stored([later])), 0.0)
        await asyncio.to_thread(feed.close, 5.0)
        await wait_until(lambda: asyncio.sleep(0, reader.next >= page + 500))
        assert len(reader.belief.paths) == page + 500


async def test_close_when_there_is_too_little_time_then_what_was_not_sent_is_dropped_and_counted() -> None:
    feed = KvFeed(settings(), PAGE_SIZE, {FULL: 10**6, PoolKind.ROWS: 8})
    feed.start()
    for first in range(1, 3_000 * 300, 300):
        feed.publish(numbered(stored(range(first, first + 300))), 0.0)
    await asyncio.to_thread(feed.close, 0.02)
    assert feed.batches_sent + feed.dropped in (3_000, 3_001), "each is one batch; one may have been sent in part"
    before = feed.dropped
    feed.publish(numbered(stored([1_000_000]), evicted(1, 2)), 0.0)
    assert feed.dropped == before + 2
    assert feed.source() is None


async def test_close_when_it_never_listened_then_what_waited_is_dropped_and_counted() -> None:
    feed = KvFeed(settings(), PAGE_SIZE, PLAIN)
    feed.publish(numbered(stored([1]), stored([2])), 0.0)
    feed.close(1.0)
    assert feed.dropped == 2


async def test_close_when_a_reader_never_reads_then_it_does_not_take_all_the_time() -> None:
    feed = KvFeed(settings(), PAGE_SIZE, {FULL: 10**6, PoolKind.ROWS: 8})
    context = zmq.Context()
    deaf = context.socket(zmq.SUB)
    deaf.setsockopt(zmq.RCVHWM, 1)
    deaf.subscribe(b"")
    async with feeding(feed):
        deaf.connect(ports(feed).endpoint)
        await asyncio.sleep(0.2)
        for first in range(1, 1_000 * 300, 300):
            feed.publish(numbered(stored(range(first, first + 300))), 0.0)
        await have_sent(feed, 1_000)
        before_s = time.monotonic()
        await asyncio.to_thread(feed.close, 10.0)
        assert time.monotonic() - before_s < 5.0
        assert feed.dropped == 0
    deaf.close(linger=0)
    context.term()


async def test_thread_when_it_dies_then_said_and_all_later_changes_are_counted_and_its_ports_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    feed = KvFeed(settings(), PAGE_SIZE, PLAIN)
    async with feeding(feed), running(sinks=(feed,)) as rig:
        backend = Backend(rig.engine, byte_tokenizer(), None, kv_feed=feed)
        async with serving(backend) as target, connect(target) as client:
            assert [source.endpoint for source in await client.kv_event_sources()] == [ports(feed).endpoint]
            feed.publish(numbered(stored([1], namespace="\ud800"), stored([2])), 0.0)  # which no bytes can be made of
            await wait_until(lambda: asyncio.sleep(0, feed.source() is None))
            assert await client.kv_event_sources() == ()
        lost = [record for record in caplog.records if "event=kv_feed_lost" in record.message]
        assert [record.levelname for record in lost] == ["CRITICAL"]
        assert feed.dropped == 2
        for _ in range(10_000):
            feed.publish(numbered(stored([3]), evicted(3)), 0.0)
        assert feed.dropped == 20_002
        before_s = time.monotonic()
    assert time.monotonic() - before_s < 5.0, "nobody is left to wait for"


async def test_start_when_the_port_is_taken_then_said_and_nothing_is_left_open() -> None:
    first = KvFeed(settings(), PAGE_SIZE, PLAIN)
    async with feeding(first):
        taken = int(ports(first).endpoint.rpartition(":")[2])
        second = KvFeed(KvFeedSettings("127.0.0.1", 0, taken), PAGE_SIZE, PLAIN)
        with pytest.raises(CannotListen, match=f"127.0.0.1:{taken}: Address already in use"):
            second.start()
        second.close(1.0)


async def test_source_when_started_then_tells_what_to_connect_to() -> None:
    feed = KvFeed(settings(Encoding.ARRAY, "t"), PAGE_SIZE, PLAIN)
    async with feeding(feed):
        source = ports(feed)
        assert source.endpoint.startswith("tcp://127.0.0.1:")
        assert source.endpoint != source.replay_endpoint
        assert (source.topic, source.encoding, source.page_size, source.replay_batches) == ("t", "array", 4, 10_000)
