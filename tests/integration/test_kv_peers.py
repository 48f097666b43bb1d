"""The programs that KV events are for, unchanged and in processes of their own, read those of a real server."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from engine.core.events import Numbered, PrefixStored
from engine.core.ids import pack_ids
from engine.core.ownership import PoolKind
from services.client import Client
from telemetry.kv.feed import KvFeed, KvSource
from telemetry.settings import Encoding, KvFeedSettings
from tests.kit.kv_peers import Indexer, Relay, indexer, needs_peers, relay
from tests.kit.kv_subscriber import KvSubscriber, ports, source_of, subscribed
from tests.kit.kv_traffic import draw_prompt, draw_stems
from tests.kit.server_rig import CONFIG, running_server
from tests.kit.tcp_proxy import tcp_proxy

pytestmark = needs_peers

MAX_TOKENS = 6
SEED = 20


@dataclass(slots=True)
class Stage:
    """A server whose events are published, and a reader of ours that says when nothing is under way."""

    client: Client
    source: KvSource
    reader: KvSubscriber

    async def run(self, token_ids: Sequence[int]) -> int:
        """One turn. Returns how many tokens of its prompt the server took from its prefix cache."""
        turn = self.client.generate(token_ids=list(token_ids), max_tokens=MAX_TOKENS, ignore_eos=True)
        await turn.text()
        assert turn.usage is not None
        return turn.usage.tokens_from_tree

    async def settle(self) -> None:
        """Until the reader has as many pages as the server says that its cache has, and nothing more comes."""
        async with asyncio.timeout(20):
            while True:
                before = self.reader.next
                await asyncio.sleep(0.02)
                await self.reader.catch_up()
                if self.reader.next == before and len(self.reader.belief.of_group()) == await self._num_cached():
                    return

    async def _num_cached(self) -> int:
        books = (await self.client.pools()).find("full")
        return books.evictable + books.protected

    def believed(self, token_ids: Sequence[int]) -> int:
        """Tokens at the begin of a prompt that our reader believes are cached."""
        ids = tuple(token_ids)
        return max((len(path) for path in self.reader.belief.of_group() if ids[: len(path)] == path), default=0)


@asynccontextmanager
async def staged(encoding: Encoding) -> AsyncIterator[Stage]:
    config = replace(CONFIG, kv_events_port=0, kv_events_encoding=encoding.value)
    async with running_server(config) as rig:
        (told,) = await rig.client.kv_event_sources()
        source = source_of(told)
        async with subscribed(source, listens=False) as reader:
            yield Stage(rig.client, source, reader)


async def require_same_prefixes(stage: Stage, peer: Indexer, draw: random.Random, num_prompts: int = 12) -> list[int]:
    """For prompts drawn anew: what the indexer finds is what the server then takes from its cache. Returns the lengths.

    A server computes one token of a prompt at least, so the last one is left out of the question.
    """
    stems, lengths = draw_stems(random.Random(SEED)), []
    for _ in range(num_prompts):
        prompt = draw_prompt(draw, stems)
        await stage.settle()
        await peer.until_matched(prompt[:-1], stage.believed(prompt[:-1]))
        found = await peer.matched(prompt[:-1])
        assert await stage.run(prompt) == found
        lengths.append(found)
    return lengths


async def fill(stage: Stage, draw: random.Random, num_turns: int) -> None:
    stems = draw_stems(random.Random(SEED))
    for _ in range(num_turns):
        await stage.run(draw_prompt(draw, stems))


@pytest.mark.parametrize("encoding", Encoding)
async def test_indexer_when_it_hears_stores_evictions_and_a_flush_then_it_finds_what_the_server_does(
    encoding: Encoding,
) -> None:
    draw = random.Random(SEED)
    async with staged(encoding) as stage, indexer() as peer:
        await peer.register(stage.source)
        await fill(stage, draw, 10)
        lengths = await require_same_prefixes(stage, peer, draw)
        assert len(set(lengths)) > 3, f"hardly anything was compared: {lengths}"
        await fill(stage, draw, 40)
        assert "BlockRemoved" in {event["type"] for event in stage.reader.events}, "nothing was evicted"
        lengths = await require_same_prefixes(stage, peer, draw)
        assert len(set(lengths)) > 3, f"hardly anything was compared: {lengths}"
        known = max(stage.reader.belief.of_group(), key=len)
        await stage.client.flush_cache()
        await peer.until_matched(known, 0)
        await stage.settle()
        assert stage.reader.belief.clears == 1
        lengths = await require_same_prefixes(stage, peer, draw)
        assert lengths[0] == 0
        assert max(lengths) > 0


@pytest.mark.parametrize("encoding", Encoding)
async def test_indexer_when_batches_are_lost_on_the_way_then_it_asks_for_them_and_finds_what_the_server_does(
    encoding: Encoding,
) -> None:
    draw = random.Random(SEED + 1)
    async with (
        staged(encoding) as stage,
        tcp_proxy(stage.source.endpoint.removeprefix("tcp://")) as (proxy, address),
        indexer() as peer,
    ):
        await peer.register(stage.source, f"tcp://{address}")
        await fill(stage, draw, 4)
        await require_same_prefixes(stage, peer, draw, num_prompts=3)
        proxy.is_open = False
        proxy.cut()
        lost = [draw.randrange(256) for _ in range(40)]
        await stage.run(lost)
        await stage.settle()
        assert stage.believed(lost) == 40
        assert await peer.matched(lost) == 0, "nothing was lost on the way"
        connected, proxy.is_open = proxy.connections, True
        async with asyncio.timeout(20):
            while proxy.connections == connected:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)
        while await peer.matched(lost) == 0:  # the next batch that arrives shows the gap
            await fill(stage, draw, 1)
        lengths = await require_same_prefixes(stage, peer, draw)
        assert max(lengths) > 0


async def test_indexer_when_it_registers_late_then_the_first_batch_that_it_hears_makes_it_ask_for_all() -> None:
    draw = random.Random(SEED + 2)
    async with staged(Encoding.MAP) as stage, indexer() as peer:
        await fill(stage, draw, 20)
        await peer.register(stage.source)
        await asyncio.sleep(0.3)  # its subscription has to arrive
        await fill(stage, draw, 1)
        lengths = await require_same_prefixes(stage, peer, draw)
        assert max(lengths) > 0


@pytest.mark.parametrize("encoding", Encoding)
async def test_relay_when_it_computes_all_hashes_again_then_none_differs(encoding: Encoding) -> None:
    draw = random.Random(SEED + 3)
    async with staged(encoding) as stage, relay(stage.source) as peer:
        while not peer.said:  # its subscription has to arrive
            await fill(stage, draw, 1)
            await asyncio.sleep(0.05)
        await stage.client.flush_cache()  # from here on it knows the parents of all that it hears
        await stage.settle()
        await caught_up(peer, stage)
        before = dict(peer.counts)
        await fill(stage, draw, 50)
        await stage.client.flush_cache()
        await stage.settle()
        await caught_up(peer, stage)
        counts = peer.counts
        assert counts["hash_checked"] - before["hash_checked"] > 100
        assert counts["hash_mismatch"] == 0
        assert counts["hash_unverifiable"] == before["hash_unverifiable"]
        assert (counts["dropped"], counts["duplicate_stores"]) == ({}, 0)
        assert counts["forwarded_removed"] > before["forwarded_removed"]
        assert counts["forwarded_cleared"] == before["forwarded_cleared"] + 1


async def caught_up(peer: Relay, stage: Stage) -> None:
    async with asyncio.timeout(20):
        while peer.next < stage.reader.next:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)


async def test_peers_when_there_are_namespaces_and_groups_then_hashes_verify_and_none_is_taken_for_another() -> None:
    ids = list(range(8))
    sizes = {PoolKind.FULL: 64, PoolKind.SWA: 48, PoolKind.MAMBA: 24}
    feed = KvFeed(KvFeedSettings("127.0.0.1", 0, 0), 4, sizes, window=8)
    feed.start()
    events = (
        PrefixStored(PoolKind.FULL, (1, 2), pack_ids(ids), None, "tenant"),
        PrefixStored(PoolKind.FULL, (3,), pack_ids(range(8, 12)), 2),
        PrefixStored(PoolKind.SWA, (5,), beside=(3,)),
        PrefixStored(PoolKind.MAMBA, (6,), beside=(3,)),
        PrefixStored(PoolKind.FULL, (4,), pack_ids(ids[:4])),
    )
    try:
        async with indexer() as finder, relay(ports(feed)) as checker:
            await finder.register(ports(feed))
            await asyncio.sleep(0.5)  # their subscriptions have to arrive
            feed.publish(tuple(Numbered(1, event) for event in events), 0.0)
            await finder.until_matched(range(12), 4)
            await finder.until_matched(range(12), 12, cache_salt="tenant")
            async with asyncio.timeout(20):
                while not checker.said:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.01)
            counts = checker.counts
            assert (counts["hash_checked"], counts["hash_mismatch"], counts["hash_unverifiable"]) == (4, 0, 0)
            assert counts["dropped"] == {"non_main_attention_group": 2}
    finally:
        feed.close(1.0)
