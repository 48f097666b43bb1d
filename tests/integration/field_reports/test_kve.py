"""KVE: what is told of the KV cache is all of it, and a listener that was away gets there again."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace

import pytest

from engine.core.events import KvMoved, TurnRetracted
from engine.core.ids import SessionId, TurnId
from engine.core.ownership import Move, PoolKind
from services.client import KvBooks, KvEventInfo
from telemetry.kv.feed import KvFeed
from telemetry.settings import KvFeedSettings
from tests.kit.kv_rig import KvRig, Pools, assert_same, begin_books, following, replay_to
from tests.kit.kv_subscriber import KvSubscriber, ports, source_of, subscribed, tree_paths
from tests.kit.runtime_rig import RuntimeRig, read_all, running
from tests.kit.scraping import scrape
from tests.kit.server_rig import CONFIG, running_server
from tests.kit.shadow_executor import shadow_capabilities

# Our own stream, over gRPC


async def follow(rig: KvRig, books: KvBooks, from_sequence: int) -> None:
    """A listener that begins at that event, and leaves once it has all there is."""
    async with aclosing(rig.client.kv_events(from_sequence, books.log_id)) as items:
        await replay_to(items, books, rig.log.last_sequence)


async def test_own_stream_when_its_reader_starts_anew_then_it_replays_or_begins_with_the_books_and_is_right() -> None:
    """KVE-01 (llm-d/llm-d-kv-cache#372): children of what was stored while nobody listened are not lost."""
    prefix = list(range(12))
    async with following(events_max=64) as rig:
        async with aclosing(rig.client.kv_events()) as items:
            books = await begin_books(items)
            await read_all(await rig.runtime.submit("b1", prefix, max_tokens=2))
            await rig.runtime.full_pool()
            await replay_to(items, books, rig.log.last_sequence)
        await read_all(await rig.runtime.submit("b3", [*prefix, 50, 51, 52, 53, 54], max_tokens=2))
        await read_all(await rig.runtime.submit("b4", [*prefix, 50, 51, 52, 53, 60, 61, 62, 63], max_tokens=2))
        await rig.runtime.full_pool()
        await follow(rig, books, books.sequence + 1)
        assert_same(books, await rig.runtime.engine.image())
        missed = books.sequence + 1
        for number in range(40):
            await read_all(await rig.runtime.submit(f"more{number}", [number + 100] * 9, max_tokens=2))
        await rig.runtime.full_pool()
        assert rig.log.since(missed) is None, "what the reader wants next is not kept any more"
        await follow(rig, books, missed)
        assert_same(books, await rig.runtime.engine.image())


@pytest.mark.parametrize(
    "pools",
    [Pools(pool_pages=15), Pools(pool_pages=15, window=6, swa_pages=17, state_slots=22)],
    ids=["full", "windows and states"],
)
async def test_own_stream_when_kv_is_filled_evicted_flushed_closed_retracted_and_aborted_then_equal_at_every_idle(
    pools: Pools,
) -> None:
    """KVE-05 (LMCache/LMCache#5076): removals are told as stores are."""
    async with following(pools) as rig, aclosing(rig.client.kv_events()) as items:
        books, runtime = await begin_books(items), rig.runtime

        async def compare(what: str) -> set[Move]:
            """Returns how units moved since the last comparison."""
            await runtime.wait_no_turns()
            await runtime.full_pool()
            before = books.sequence
            stats = await rig.client.pools()
            told = await replay_to(items, books, stats.kv_sequence)
            assert books.find_differences(stats) == (), what
            assert_same(books, await runtime.engine.image())
            assert [event.sequence for event in told if isinstance(event, KvEventInfo)] == list(
                range(before + 1, stats.kv_sequence + 1)
            )
            moves = {each.event.move for each in runtime.sink.events if isinstance(each.event, KvMoved)}
            runtime.sink.events.clear()
            return moves

        await read_all(await runtime.submit("fill", list(range(20)), max_tokens=2))
        assert Move.DONATE in await compare("fill")
        for number in range(4):
            await read_all(await runtime.submit(f"evict{number}", [number + 30] * 20, max_tokens=2))
        assert Move.EVICT in await compare("evict")
        await rig.client.flush_cache()
        assert await compare("flush") == {Move.EVICT}
        await runtime.open("s")
        await runtime.run("first", [1] * 9, "s")
        await runtime.run("second", [2], "s")
        assert {Move.PARK, Move.LEND} <= await compare("session")
        await runtime.engine.close_session(SessionId("s"))
        assert Move.RELEASE in await compare("close")
        turns = [await runtime.submit(f"retract{number}", [number + 60] * 3, max_tokens=26) for number in range(4)]
        await asyncio.gather(*map(read_all, turns))
        assert any(isinstance(each.event, TurnRetracted) for each in runtime.sink.events)
        await compare("retract")
        left = await runtime.submit("abort", [70] * 9, max_tokens=30)
        await anext(left)
        await runtime.engine.abort(None, TurnId("abort"))
        await read_all(left)
        assert Move.RELEASE in await compare("abort")


# The wire format of others


PAGE_SIZE = 4


def agree(reader: KvSubscriber, rig: RuntimeRig, groups: Mapping[int | None, PoolKind]) -> bool:
    """Whether a reader believes of each group what the cache has of that pool."""
    return all(reader.belief.of_group(group) == tree_paths(rig.sink.events, pool) for group, pool in groups.items())


async def test_wire_feed_when_its_reader_starts_anew_then_it_gets_the_parents_too_and_is_right() -> None:
    """KVE-01 (llm-d/llm-d-kv-cache#372): a reader without memory has all from the replay, then the children."""
    prefix = list(range(12))
    feed = KvFeed(KvFeedSettings("127.0.0.1", 0, 0), PAGE_SIZE, shadow_capabilities().pool_sizes)
    feed.start()
    try:
        async with running(sinks=(feed,)) as rig:
            async with subscribed(ports(feed)) as before:
                await read_all(await rig.submit("b1", prefix, max_tokens=2))
                await before.until(lambda: agree(before, rig, {None: PoolKind.FULL}) and bool(before.belief.paths))
            await read_all(await rig.submit("b3", [*prefix, 50, 51, 52, 53, 54], max_tokens=2))
            async with subscribed(ports(feed)) as anew:
                await read_all(await rig.submit("b4", [*prefix, 50, 51, 52, 53, 60, 61, 62, 63], max_tokens=2))
                await anew.until(lambda: agree(anew, rig, {None: PoolKind.FULL}))
                assert len(anew.belief.paths) > len(before.belief.paths)
    finally:
        feed.close(1.0)


async def test_wire_feed_when_configured_then_a_prompt_of_three_pages_is_three_blocks_and_counted() -> None:
    """KVE-03 (ai-dynamo/dynamo#11984): what is acknowledged at start is sent, and the metrics say how much."""
    async with running_server(replace(CONFIG, kv_events_port=0, metrics_port=0)) as server:
        (told,) = await server.client.kv_event_sources()
        async with subscribed(source_of(told), listens=False) as reader:
            await reader.catch_up()
            known = set(reader.belief.paths)
            turn = server.client.generate(token_ids=list(range(100, 112)), max_tokens=1, ignore_eos=True)
            assert await server.collect(turn)
            await reader.until(lambda: len(set(reader.belief.paths) - known) == 3)
            assert server.metrics is not None
            page = await scrape(server.metrics)
            sent = page.value("tenure_telemetry_sent_total", tenure_signal="kv_feed")
            assert sent == len(reader.events) > 0


@pytest.mark.parametrize(
    ("pools", "groups"),
    [
        (Pools(pool_pages=15), {None: PoolKind.FULL}),
        (
            Pools(pool_pages=15, window=6, swa_pages=17, state_slots=22),
            {0: PoolKind.FULL, 1: PoolKind.SWA, 2: PoolKind.MAMBA},
        ),
    ],
    ids=["full", "windows and states"],
)
async def test_wire_feed_when_kv_is_filled_evicted_flushed_closed_retracted_and_aborted_then_equal_at_every_idle(
    pools: Pools, groups: dict[int | None, PoolKind]
) -> None:
    """KVE-05 (LMCache/LMCache#5076): what a router believes is what the cache has, after all that can free it."""
    sizes = shadow_capabilities(
        pool_pages=pools.pool_pages, swa_pages=pools.swa_pages, state_slots=pools.state_slots
    ).pool_sizes
    feed = KvFeed(KvFeedSettings("127.0.0.1", 0, 0), PAGE_SIZE, sizes, pools.window)
    feed.start()
    try:
        async with (
            subscribed(ports(feed)) as reader,
            running(
                sinks=(feed,),
                in_flight_max=2,
                pool_pages=pools.pool_pages,
                window=pools.window,
                swa_pages=pools.swa_pages,
                state_slots=pools.state_slots,
            ) as rig,
        ):
            await free_in_every_way(rig, reader, groups)
            assert "BlockRemoved" in {event["type"] for event in reader.events}
            assert feed.dropped == 0
    finally:
        feed.close(1.0)


async def free_in_every_way(rig: RuntimeRig, reader: KvSubscriber, groups: Mapping[int | None, PoolKind]) -> None:
    async def compare() -> None:
        await rig.wait_no_turns()
        await rig.full_pool()
        await reader.until(lambda: agree(reader, rig, groups))

    await read_all(await rig.submit("fill", list(range(20)), max_tokens=2))
    await compare()
    assert reader.belief.paths
    for number in range(4):
        await read_all(await rig.submit(f"evict{number}", [number + 30] * 20, max_tokens=2))
    await compare()
    await rig.engine.flush()
    await compare()
    assert not reader.belief.paths
    await rig.open("s")
    await rig.run("first", [1] * 9, "s")
    await rig.run("second", [2], "s")
    await compare()
    await rig.engine.close_session(SessionId("s"))
    await compare()
    turns = [await rig.submit(f"retract{number}", [number + 60] * 3, max_tokens=26) for number in range(4)]
    await asyncio.gather(*map(read_all, turns))
    assert any(isinstance(each.event, TurnRetracted) for each in rig.sink.events)
    await compare()
    left = await rig.submit("abort", [70] * 9, max_tokens=30)
    await anext(left)
    await rig.engine.abort(None, TurnId("abort"))
    await read_all(left)
    await compare()
