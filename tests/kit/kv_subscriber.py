"""A listener to the KV events that other programs read: takes frames apart by a table of its own, and keeps books.

It shares no code with the publisher: what it believes is what a router would believe.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from engine.core.events import KvMoved, Numbered, PrefixStored
from engine.core.ids import unpack_ids
from engine.core.ownership import OwnerKind, PoolKind
from services.client import KvEventSource
from telemetry.kv.feed import KvFeed, KvSource

WAIT_S = 20.0
STORED = (
    *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys"),
    *("group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "ownership", "session_id"),
)
FIELDS = {
    "BlockStored": STORED,
    "BlockRemoved": ("block_hashes", "medium", "group_idx", "locality", "ownership"),
    "AllBlocksCleared": ("ownership",),
}
"""The agreed order after the tag, as vLLM's classes have it."""
END = b"\xff" * 8

Fields = dict[str, Any]
Path = tuple[int, ...]
"""All tokens from the begin of the prompt to the end of a page."""
Block = tuple[int | None, int]
"""Group and hash."""


def read_events(payload: bytes) -> list[Fields]:
    """Each event with its `type`, from maps or arrays. Fails on what is no batch."""
    unix_s, events, rank = msgspec.msgpack.decode(payload)
    assert isinstance(unix_s, float), f"{unix_s!r} is no time"
    assert rank is None
    return [event if isinstance(event, dict) else _from_array(event) for event in events]


def _from_array(event: list[object]) -> Fields:
    kind = str(event[0])
    return {"type": kind, **dict(zip(FIELDS[kind], event[1:], strict=True))}


@dataclass(slots=True)
class Belief:
    """What somebody who hears the events thinks is in the cache. Fails on an event that breaks the format's rules."""

    paths: dict[Block, Path] = field(default_factory=dict)
    clears: int = 0

    def of_group(self, group: int | None = None) -> set[Path]:
        return {path for (group_idx, _), path in self.paths.items() if group_idx == group}

    def apply(self, event: Fields) -> None:
        group = event.get("group_idx")
        match event["type"]:
            case "BlockStored":
                self._store(event, group)
            case "BlockRemoved":
                for block_hash in event["block_hashes"]:
                    del self.paths[group, block_hash]  # fails for one that is not there
            case "AllBlocksCleared":
                self.paths.clear()
                self.clears += 1
            case other:
                raise AssertionError(f"no event: {other}")

    def _store(self, event: Fields, group: int | None) -> None:
        hashes, tokens, size = event["block_hashes"], event["token_ids"], event["block_size"]
        assert len(hashes) * size == len(tokens), "whole pages, and their tokens"
        assert len(set(hashes)) == len(hashes), "a hash twice in an event"
        path = self._path_of(event["parent_block_hash"], group)
        for at, block_hash in enumerate(hashes):
            path += tuple(tokens[at * size : (at + 1) * size])
            assert (group, block_hash) not in self.paths, "stored twice"
            self.paths[group, block_hash] = path

    def _path_of(self, parent: int | None, group: int | None) -> Path:
        """A window's parent may have no window of its own: it is one of the main group then."""
        if parent is None:
            return ()
        main = None if group is None else 0
        return self.paths[main, parent]  # fails for a child before its parent


def tree_paths(events: Iterable[Numbered], pool: PoolKind = PoolKind.FULL) -> set[Path]:
    """What units of a pool the prefix cache really has, by the path each stands for, from the engine's own events."""
    pages: dict[int, Path] = {}
    beside: dict[int, Path] = {}
    for _, event in events:
        if isinstance(event, PrefixStored) and event.pool is PoolKind.FULL:
            path = pages[event.parent] if event.parent is not None else ()
            ids = unpack_ids(event.ids).tolist()
            size = len(ids) // len(event.pages)
            for at, page in enumerate(event.pages):
                path += tuple(ids[at * size : (at + 1) * size])
                pages[page] = path
        elif isinstance(event, PrefixStored) and event.pool is pool:
            beside |= {unit: pages[page] for unit, page in zip(event.pages, event.beside, strict=True)}
        elif isinstance(event, KvMoved) and event.source.kind is OwnerKind.CACHE:
            for unit in event.pages:
                (pages if event.pool is PoolKind.FULL else beside if event.pool is pool else {}).pop(unit, None)
    return set((pages if pool is PoolKind.FULL else beside).values())


@dataclass(slots=True)
class KvSubscriber:
    """A reader as it should be: takes batches by their number, and asks for those that it missed."""

    live: zmq.asyncio.Socket
    asking: zmq.asyncio.Socket
    topics: set[bytes] = field(default_factory=set)
    next: int = 0
    replays: int = 0
    events: list[Fields] = field(default_factory=list)
    belief: Belief = field(default_factory=Belief)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One replay at a time."""

    async def listen(self) -> None:
        while True:
            topic, number, payload = await self.live.recv_multipart()
            self.topics.add(topic)
            at = int.from_bytes(number, "big")
            if at > self.next:
                await self.catch_up()
            self.take(at, payload)

    async def catch_up(self) -> None:
        """Asks for all that was missed, be it that nothing came since."""
        self.replays += 1
        for number, payload in await self.replay(self.next):
            self.take(number, payload)

    def take(self, number: int, payload: bytes) -> None:
        """A batch, unless it came before."""
        if number < self.next:
            return
        assert number == self.next, f"{number} came, {self.next} is next"
        self.next += 1
        for event in read_events(payload):
            self.events.append(event)
            self.belief.apply(event)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits for what comes, and asks for what the subscription came too late for."""
        async with asyncio.timeout(WAIT_S):
            while not holds():
                await self.catch_up()
                await asyncio.sleep(0.005)

    async def replay(self, start: int) -> list[tuple[int, bytes]]:
        """All batches that are kept from this number on."""
        batches: list[tuple[int, bytes]] = []
        async with self.turn, asyncio.timeout(WAIT_S):
            await self.asking.send_multipart([b"", start.to_bytes(8, "big")])
            while True:
                empty, number, payload = await self.asking.recv_multipart()
                assert empty == b""
                if number == END:
                    assert payload == b""
                    return batches
                batches.append((int.from_bytes(number, "big"), payload))


def ports(feed: KvFeed) -> KvSource:
    """Of a feed that listens."""
    source = feed.source()
    assert source is not None, "it does not listen any more"
    return source


def source_of(told: KvEventSource) -> KvSource:
    """As a client was told it by the server."""
    return KvSource(
        endpoint=told.endpoint,
        replay_endpoint=told.replay_endpoint,
        topic=told.topic,
        encoding=told.encoding,
        schema_version=told.schema_version,
        page_size=told.page_size,
        hash=told.hash,
        replay_batches=told.replay_batches,
    )


@asynccontextmanager
async def subscribed(source: KvSource, topic: bytes = b"", *, listens: bool = True) -> AsyncIterator[KvSubscriber]:
    """Connected. What is published before the subscription has arrived is missed, as it is by every reader.

    Without `listens` it takes only what the test gives it.
    """
    context = zmq.asyncio.Context()
    live, asking = context.socket(zmq.SUB), context.socket(zmq.DEALER)
    live.subscribe(topic)
    live.connect(source.endpoint)
    asking.connect(source.replay_endpoint)
    subscriber = KvSubscriber(live, asking)
    tasks = [asyncio.create_task(subscriber.listen(), name="subscriber")] if listens else []
    try:
        yield subscriber
        for task in tasks:
            if task.done():
                await task  # it failed
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        live.close(linger=0)
        asking.close(linger=0)
        context.term()
