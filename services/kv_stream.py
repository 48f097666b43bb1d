"""`Admin.KvEvents`: the books of one instant, then every event about them, for as long as somebody listens."""

from collections.abc import AsyncGenerator, Sequence

from protos.v1 import ownership_pb2
from services.backend import Backend
from services.errors import EdgeReason, invalid_field, unavailable
from services.kv_codec import encode_events
from services.shared_books import SharedBooks
from telemetry.kv.event_log import KvEventLog, KvRecord

BATCH_EVENTS = 256
"""Of a message: half a millisecond of the event loop's time."""
BATCH_UNITS = 2**18
"""A message ends with the event that reaches so many."""
LAPPED_TIMES = 10.0
"""Between two books of one stream at least so many times as long passes as the first ones took to make: a reader that
can not keep up costs a bounded share."""


async def stream_kv_events(
    backend: Backend, request: ownership_pb2.KvEventsRequest, books: SharedBooks | None = None
) -> AsyncGenerator[ownership_pb2.KvEventsResponse, None]:
    """Never ends by itself. Raises CallError: FIELD_INVALID, and SERVER_STOPPING once the engine has stopped.

    A reader that is slow gets more events a message; one that is so slow that its next event is gone gets the books
    anew, after a pause. Nothing waits for it. `books`: of the server, for all its streams.
    """
    log, engine, books = backend.kv_log, backend.engine, books or SharedBooks()
    assert log is not None, "a server numbers its events"
    cursor = _find_cursor(request, log)
    has_begun, pause_s = False, 0.0
    while True:
        records = None if cursor is None else log.since(cursor, BATCH_EVENTS)
        if cursor is None or records is None:
            if has_begun:
                log.note_lapped()
                await log.wait_closed(pause_s)
            made = await books.take(engine, log)
            for message in made.messages:
                yield message
            cursor, has_begun, pause_s = made.sequence + 1, True, LAPPED_TIMES * made.took_s
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


def _cut(records: Sequence[KvRecord]) -> Sequence[KvRecord]:
    """As many as are a message: at least one."""
    num_units = 0
    for number, record in enumerate(records, 1):
        num_units += len(record.fact.pages)
        if num_units >= BATCH_UNITS:
            return records[:number]
    return records
