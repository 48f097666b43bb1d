"""`Admin.KvEvents`: the books of one instant, then every event about them, for as long as somebody listens."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from engine.core.image import BooksImage
from engine.runtime.handle import EngineHandle
from protos.v1 import ownership_pb2
from services.backend import Backend
from services.errors import EdgeReason, invalid_field, unavailable
from services.kv_codec import encode_events, encode_image
from telemetry.kv.event_log import KvEventLog, KvRecord

BATCH_EVENTS = 256
"""Of a message: half a millisecond of the event loop's time."""
BATCH_UNITS = 2**18
"""A message ends with the event that reaches so many."""
_RETRIES_MAX = 200
_RETRY_PAUSE_S = 0.005
"""Between two attempts to take an image: whatever the engine is about to tell, it has told by then."""


async def stream_kv_events(
    backend: Backend, request: ownership_pb2.KvEventsRequest
) -> AsyncGenerator[ownership_pb2.KvEventsResponse, None]:
    """Never ends by itself. Raises CallError: FIELD_INVALID, and SERVER_STOPPING once the engine has stopped.

    A reader that is slow gets more events a message; one that is so slow that its next event is gone gets the books
    anew. Nothing waits for it.
    """
    log, engine = backend.kv_log, backend.engine
    assert log is not None, "a server numbers its events"
    cursor = _find_cursor(request, log)
    has_begun = False
    while True:
        records = None if cursor is None else log.since(cursor, BATCH_EVENTS)
        if cursor is None or records is None:
            if has_begun:
                log.note_lapped()
            image, last = await _take_image(engine, log)
            for snapshot in await asyncio.to_thread(_encode_books, image, log.log_id, last, log.wall_s()):
                yield ownership_pb2.KvEventsResponse(snapshot=snapshot)
            cursor, has_begun = last + 1, True
        elif records:
            batch = _cut(records)
            yield ownership_pb2.KvEventsResponse(events=encode_events(batch))
            cursor, has_begun = cursor + len(batch), True
        elif not await log.wait_for(cursor):
            raise unavailable(EdgeReason.SERVER_STOPPING, "the server is stopping: nothing more happens to its books")


def _find_cursor(request: ownership_pb2.KvEventsRequest, log: KvEventLog) -> int | None:
    """The first event to send; None: the books come first. Raises CallError."""
    if not request.HasField("from_sequence"):
        return None
    wanted = request.from_sequence
    if wanted < 1:
        raise invalid_field("from_sequence", "events are numbered from 1", value=wanted)
    if not request.log_id:
        raise invalid_field("log_id", "must be given with from_sequence: numbers start anew with each log")
    is_kept = request.log_id == log.log_id and log.first_sequence <= wanted <= log.last_sequence + 1
    return wanted if is_kept else None


async def _take_image(engine: EngineHandle, log: KvEventLog) -> tuple[BooksImage, int]:
    """The books of an instant at which the log had heard all of them, and its last event then."""
    image = await engine.image()
    for _ in range(_RETRIES_MAX):
        if image.seq == log.last_core_seq:
            return image, log.last_sequence
        await asyncio.sleep(_RETRY_PAUSE_S)
        image = await engine.image()
    raise RuntimeError(f"the log of KV events stands at {log.last_core_seq}, the engine at {image.seq}")


def _encode_books(image: BooksImage, log_id: str, sequence: int, time_s: float) -> list[ownership_pb2.KvSnapshot]:
    return list(encode_image(image, log_id, sequence, time_s))


def _cut(records: Sequence[KvRecord]) -> Sequence[KvRecord]:
    """As many as are a message: at least one."""
    num_units = 0
    for number, record in enumerate(records, 1):
        num_units += len(record.fact.pages)
        if num_units >= BATCH_UNITS:
            return records[:number]
    return records
