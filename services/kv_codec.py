"""The books, the events about them, and where they are published → protobuf."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, auto
from itertools import groupby

from engine.core.events import Draining, KvMoved, Protected, Unprotected
from engine.core.image import BooksImage, PoolImage
from engine.core.ownership import CACHE, FREE, MOVES, Owner
from protos.v1 import ownership_pb2
from services.admin_codec import OWNER_KINDS, POOL_KINDS
from services.limits import LIMITS
from telemetry.kv.event_log import KvRecord
from telemetry.kv.feed import KvSource

_RUN_BYTES = 64
"""More than any run takes in a message, its owner included."""
RUNS_MAX = LIMITS.message_bytes_max // _RUN_BYTES
"""Runs of a message: so many always fit."""

_REST_RUNS = 256

Run = tuple[int, int]
"""The first unit, and how many."""


class _Part(Enum):
    """What a run says of its units, in the order in which that is sent."""

    PROTECTED = auto()
    DRAINING = auto()
    OWNED = auto()


def encode_image(
    image: BooksImage,
    log_id: str,
    sequence: int,
    time_s: float,
    runs_max: int = RUNS_MAX,
    rest: Callable[[], None] = lambda: None,
) -> Iterator[ownership_pb2.KvSnapshot]:
    """The books of one instant, after event `sequence`, in as few messages as hold them: mostly one.

    Each has all pools; runs go on where those of the message before ended, and those of owners come last, so that the
    snapshot is complete as soon as every unit has its owner. O(units + runs): of a million units some hundredths of
    a second, and 5 s where no two neighbours have one owner. Reads nothing that changes: any thread may run it, and
    lets others run in `rest`, which is called after each millisecond of work or so.
    """
    snapshot = _begin(image, log_id, sequence, time_s)
    num_runs = num_to_rest = 0
    for number, pool in enumerate(image.pools):
        for part, run, owner in _runs(pool):
            if num_runs == runs_max:
                yield snapshot
                snapshot, num_runs = _begin(image, log_id, sequence, time_s), 0
            _add(snapshot.pools[number], part, run, owner)
            num_runs += 1
            num_to_rest += 1
            if num_to_rest == _REST_RUNS:
                rest()
                num_to_rest = 0
    yield snapshot


def encode_events(records: Iterable[KvRecord]) -> ownership_pb2.KvEventBatch:
    """About 2 us an event."""
    return ownership_pb2.KvEventBatch(events=map(_encode_event, records))


def encode_sources(sources: Iterable[KvSource]) -> ownership_pb2.GetKvEventSourcesResponse:
    return ownership_pb2.GetKvEventSourcesResponse(sources=map(_encode_source, sources))


def encode_owner(owner: Owner) -> ownership_pb2.UnitOwner:
    return ownership_pb2.UnitOwner(kind=OWNER_KINDS[owner.kind], number=owner.name)


def find_runs(units: Iterable[int]) -> Iterator[Run]:
    """Neighbours among `units`, which are ascending."""
    first = count = 0
    for unit in units:
        if count and unit == first + count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = unit, 1
    if count:
        yield first, count


def _begin(image: BooksImage, log_id: str, sequence: int, time_s: float) -> ownership_pb2.KvSnapshot:
    pools = [ownership_pb2.KvPoolImage(pool=POOL_KINDS[pool.pool], size=len(pool.owners)) for pool in image.pools]
    return ownership_pb2.KvSnapshot(log_id=log_id, sequence=sequence, time_s=time_s, pools=pools)


def _runs(pool: PoolImage) -> Iterator[tuple[_Part, Run, Owner]]:
    """The owner is told with those of OWNED only."""
    for run in find_runs(sorted(pool.protected)):
        yield _Part.PROTECTED, run, CACHE
    for run in find_runs(sorted(pool.draining)):
        yield _Part.DRAINING, run, FREE
    for owner, run in _owned(pool.owners):
        yield _Part.OWNED, run, owner


def _add(pool: ownership_pb2.KvPoolImage, part: _Part, run: Run, owner: Owner) -> None:
    first, count = run
    match part:
        case _Part.PROTECTED:
            pool.protected.add(first=first, count=count)
        case _Part.DRAINING:
            pool.draining.add(first=first, count=count)
        case _Part.OWNED:
            pool.owned.add(owner=encode_owner(owner), run=ownership_pb2.UnitRun(first=first, count=count))


def _owned(owners: Sequence[Owner]) -> Iterator[tuple[Owner, Run]]:
    """Without padding, unit 0."""
    first = 1
    for owner, group in groupby(owners[1:]):
        count = sum(1 for _ in group)
        yield owner, (first, count)
        first += count


def _encode_event(record: KvRecord) -> ownership_pb2.KvEvent:
    fact = record.fact
    event = ownership_pb2.KvEvent(
        sequence=record.sequence,
        time_s=record.time_s,
        step=record.step,
        pool=POOL_KINDS[fact.pool],
        units=fact.pages,
    )
    match fact:
        case KvMoved():
            event.move.CopyFrom(_encode_move(fact, record))
        case Protected():
            event.protected.SetInParent()
        case Unprotected():
            event.unprotected.SetInParent()
        case Draining():
            draining = ownership_pb2.KvDraining(owner=encode_owner(fact.owner), until_step=fact.until)
            event.draining.CopyFrom(draining)
    return event


def _encode_move(moved: KvMoved, record: KvRecord) -> ownership_pb2.KvMove:
    return ownership_pb2.KvMove(
        what=MOVES[moved.move].event,
        source=encode_owner(moved.source),
        target=encode_owner(moved.target),
        session_id=record.session_id,
        turn_id=record.turn_id,
        trace_id=moved.trace_id,
    )


def _encode_source(source: KvSource) -> ownership_pb2.KvEventSource:
    return ownership_pb2.KvEventSource(
        endpoint=source.endpoint,
        replay_endpoint=source.replay_endpoint,
        topic=source.topic,
        encoding=source.encoding,
        schema_version=source.schema_version,
        page_size=source.page_size,
        hash=source.hash,
        replay_batches=source.replay_batches,
    )
