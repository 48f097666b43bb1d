"""The stream of what happens to the books, as its reader sees it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import grpc
from grpc import aio

from protos.v1 import ownership_pb2
from services.client.asking import Asking
from services.client.errors import TenureError, to_error
from services.client.inspection import UnitOwner, decode_owner
from services.client.pools import KINDS

FREE = UnitOwner("free")


class KvWhat(StrEnum):
    """What an event says of its units."""

    MOVED = "moved"
    PROTECTED = "protected"
    UNPROTECTED = "unprotected"
    DRAINING = "draining"
    UNKNOWN = "unknown"
    """Something that a newer server tells."""


@dataclass(frozen=True, slots=True)
class PoolImage:
    """One pool, unit by unit. Unit 0 is padding, and reads free."""

    kind: str
    owners: tuple[UnitOwner, ...]
    protected: frozenset[int]
    """Units of the prefix cache that somebody uses."""
    draining: frozenset[int]
    """Units that were given up while a step in flight may touch them. Their next move ends that."""


@dataclass(frozen=True, slots=True)
class KvBooksImage:
    """The books of all pools, after event `sequence`."""

    log_id: str
    """Of this run of the server: numbers start anew with each."""
    sequence: int
    time_s: float
    pools: tuple[PoolImage, ...]


@dataclass(frozen=True, slots=True)
class KvEventInfo:
    """One numbered event. Which of the fields at the end are filled depends on `what`."""

    sequence: int
    time_s: float
    """Seconds since 1970 by the server's clock."""
    step: int
    pool: str
    units: tuple[int, ...]
    what: KvWhat
    move: str = ""
    """In the past tense, as in `parked`."""
    source: UnitOwner | None = None
    """Of a move; of draining the owner, which it stays."""
    target: UnitOwner | None = None
    session_id: str = ""
    turn_id: str = ""
    trace_id: str = ""
    until_step: int = 0
    """Of draining: the step whose answer ends it."""


KvItem: TypeAlias = KvBooksImage | KvEventInfo


@dataclass(frozen=True, slots=True)
class KvEventSource:
    """A publisher of what the prefix cache holds, for programs that know other servers' KV events."""

    endpoint: str
    replay_endpoint: str
    topic: str
    encoding: str
    schema_version: str
    page_size: int
    hash: str
    replay_batches: int


# In quotes: the class is generic in the published types only.
_Call: TypeAlias = "aio.UnaryStreamCall[ownership_pb2.KvEventsRequest, ownership_pb2.KvEventsResponse]"


async def read_events(
    open_call: Callable[[], _Call], asking: Asking, *, is_answered_at_once: bool
) -> AsyncGenerator[KvItem, None]:
    """Items in order, for ever. Raises TenureError when the server ends it, or has sent half of its books.

    `is_answered_at_once`: the books come first, and are waited for only so long.
    """
    decoder, call = _Decoder(), open_call()
    messages = aiter(call)
    try:
        if is_answered_at_once:
            first = await asking.first("kv_events", messages)
            for item in decoder.take(first) if first is not None else ():
                yield item
        async for message in messages:
            for item in decoder.take(message):
                yield item
    except aio.AioRpcError as error:
        raise to_error(error) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Not the reader was cancelled, but the call: its client was closed meanwhile.
        problem = "the client was closed while its stream was read"
        raise TenureError("STREAM_LEFT", problem, code=grpc.StatusCode.CANCELLED) from None
    finally:
        call.cancel()


class _Decoder:
    """Puts books together that come in several messages."""

    def __init__(self) -> None:
        self._parts: list[ownership_pb2.KvSnapshot] = []

    def take(self, message: ownership_pb2.KvEventsResponse) -> Iterator[KvItem]:
        if message.WhichOneof("content") == "snapshot":
            self._parts.append(message.snapshot)
            if _is_complete(self._parts):
                yield decode_image(self._parts)
                self._parts = []
            return
        if self._parts:
            raise TenureError("BOOKS_INCOMPLETE", "events before the books were whole", code=grpc.StatusCode.DATA_LOSS)
        yield from map(decode_event, message.events.events)


def _is_complete(parts: list[ownership_pb2.KvSnapshot]) -> bool:
    """Whether every unit has its owner."""
    owned = sum(run.run.count for part in parts for pool in part.pools for run in pool.owned)
    return owned >= sum(pool.size - 1 for pool in parts[0].pools)


def decode_image(parts: list[ownership_pb2.KvSnapshot]) -> KvBooksImage:
    """All messages of one snapshot."""
    first = parts[0]
    pools = tuple(_decode_pool([part.pools[at] for part in parts]) for at in range(len(first.pools)))
    return KvBooksImage(first.log_id, first.sequence, first.time_s, pools)


def _decode_pool(parts: list[ownership_pb2.KvPoolImage]) -> PoolImage:
    owners = [FREE] * parts[0].size
    for part in parts:
        for owned in part.owned:
            owner, run = decode_owner(owned.owner), owned.run
            owners[run.first : run.first + run.count] = [owner] * run.count
    return PoolImage(
        kind=KINDS.get(parts[0].pool, f"kind {parts[0].pool}"),
        owners=tuple(owners),
        protected=frozenset(unit for part in parts for run in part.protected for unit in _units(run)),
        draining=frozenset(unit for part in parts for run in part.draining for unit in _units(run)),
    )


def _units(run: ownership_pb2.UnitRun) -> range:
    return range(run.first, run.first + run.count)


def decode_event(event: ownership_pb2.KvEvent) -> KvEventInfo:
    kind = event.WhichOneof("what")
    move, draining = event.move, event.draining
    source = target = None
    if kind == "move":
        source, target = decode_owner(move.source), decode_owner(move.target)
    elif kind == "draining":
        source = decode_owner(draining.owner)
    return KvEventInfo(
        sequence=event.sequence,
        time_s=event.time_s,
        step=event.step,
        pool=KINDS.get(event.pool, f"kind {event.pool}"),
        units=tuple(event.units),
        what=_WHATS.get(kind or "", KvWhat.UNKNOWN),
        move=move.what,
        source=source,
        target=target,
        session_id=move.session_id,
        turn_id=move.turn_id,
        trace_id=move.trace_id,
        until_step=draining.until_step,
    )


_WHATS = {
    "move": KvWhat.MOVED,
    "protected": KvWhat.PROTECTED,
    "unprotected": KvWhat.UNPROTECTED,
    "draining": KvWhat.DRAINING,
}


def decode_source(source: ownership_pb2.KvEventSource) -> KvEventSource:
    return KvEventSource(
        endpoint=source.endpoint,
        replay_endpoint=source.replay_endpoint,
        topic=source.topic,
        encoding=source.encoding,
        schema_version=source.schema_version,
        page_size=source.page_size,
        hash=source.hash,
        replay_batches=source.replay_batches,
    )
