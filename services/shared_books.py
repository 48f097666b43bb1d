"""The books of an instant as messages: made once for all who wait for them, and not all the time."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.core.image import BooksImage
from engine.runtime.clock import Clock, MonotonicClock
from engine.runtime.handle import EngineHandle
from protos.v1 import ownership_pb2
from services.errors import EdgeReason, unavailable
from services.kv_codec import encode_image
from telemetry.kv.event_log import KvEventLog

PAUSE_TIMES = 10.0
"""Until the next books at least so many times as long passes as the image kept the event loop, and at least as long as
it took to encode."""
RETRIES_MAX = 200
RETRY_PAUSE_S = 0.005
"""Between two looks whether the log has heard all: whatever the engine is about to tell, it has told by then."""
REST_S = 0.0001
"""For other threads, after each slice of encoding: else this one would keep the interpreter 5 ms each time."""


@dataclass(frozen=True, slots=True)
class BooksMessages:
    """For any number of readers: nobody may change them."""

    messages: Sequence[ownership_pb2.KvEventsResponse]
    sequence: int
    """The last event that is in the books."""
    took_s: float
    """What it took to make them."""


class _Taken(NamedTuple):
    """An image that the log has heard all of."""

    image: BooksImage
    sequence: int
    took_s: float


class _Behind(NamedTuple):
    """The log never heard all that the engine has in its books."""

    heard: int
    last: int


class SharedBooks:
    """One a server, on its event loop. However many ask, one making is under way; who asks meanwhile gets the same."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._making: asyncio.Task[BooksMessages | _Behind | None] | None = None
        self._not_before_s: float | None = None

    async def take(self, engine: EngineHandle, log: KvEventLog) -> BooksMessages:
        """Books that the events after `sequence` go on from. They may be some moments old.

        Raises CallError, SERVER_STOPPING, when the engine is over: what its log has not heard nobody will tell.
        """
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._make(engine, log), name="kv-books")
        # A caller that is cancelled leaves the making to the others.
        made = await asyncio.shield(self._making)
        if made is None:
            raise unavailable(EdgeReason.SERVER_STOPPING, "the server is stopping: nothing more happens to its books")
        if isinstance(made, _Behind):
            raise RuntimeError(f"the log of KV events stands at {made.heard}, the engine at {made.last}")
        return made

    async def _make(self, engine: EngineHandle, log: KvEventLog) -> BooksMessages | _Behind | None:
        """None: the engine is over."""
        if self._not_before_s is not None and await log.wait_closed(self._not_before_s - self._clock.now()):
            return None
        taken = await self._take_image(engine, log)
        if not isinstance(taken, _Taken):
            return taken
        began_s = self._clock.now()
        messages = await asyncio.to_thread(_encode, taken, log.log_id, log.wall_s())
        now_s = self._clock.now()
        encode_s = now_s - began_s
        self._not_before_s = now_s + max(PAUSE_TIMES * taken.took_s, encode_s)
        return BooksMessages(messages, taken.sequence, taken.took_s + encode_s)

    async def _take_image(self, engine: EngineHandle, log: KvEventLog) -> _Taken | _Behind | None:
        """The books of an instant at which the log had heard all of them, and its last event then."""
        for _ in range(RETRIES_MAX):
            if log.is_closed:
                return None
            if engine.last_seq == log.last_core_seq:
                began_s = self._clock.now()
                image = await engine.image()
                if image.seq == log.last_core_seq:
                    return _Taken(image, log.last_sequence, self._clock.now() - began_s)
            elif engine.is_over:
                return None
            await asyncio.sleep(RETRY_PAUSE_S)
        return _Behind(log.last_core_seq, engine.last_seq)


def _encode(taken: _Taken, log_id: str, time_s: float) -> list[ownership_pb2.KvEventsResponse]:
    snapshots = encode_image(taken.image, log_id, taken.sequence, time_s, rest=lambda: time.sleep(REST_S))
    return [ownership_pb2.KvEventsResponse(snapshot=snapshot) for snapshot in snapshots]
