"""The thread that publishes KV events: a PUB socket for what is new, a ROUTER for what was missed."""

import logging
import math
import threading
import time
from collections.abc import Callable
from ipaddress import ip_address

import zmq

from engine.runtime.clock import Clock
from telemetry.kv.announcer import HASHES_MAX, Announcer
from telemetry.kv.backlog import Backlog, ReplayBuffer, Told
from telemetry.kv.bell import Bell
from telemetry.kv.prefix_index import Whole
from telemetry.kv.renewal import Renewal
from telemetry.kv.replay import Replayer
from telemetry.kv.wire_format import AllBlocksCleared, WireEvent, encode_batch, pack_sequence
from telemetry.settings import KvFeedSettings

_log = logging.getLogger("tenure.telemetry")

BATCH_HASHES = 512
"""A batch that has so many is sent, and the rest of the same publish goes into another one."""
PAUSE_S = 0.0001
"""After a full event. Without it this thread would keep the interpreter for its whole time slice, 5 ms, each time that
the engine's loop wants it."""
LIVE_WAITING_MAX = 1000
"""Batches that wait for a slow reader; it misses those after that, sees the gap, and asks for them."""
REPLAY_WAITING_MAX = 100
MESSAGE_BYTES_MAX = 4096
"""Of what readers send: a topic or a number."""
END_S = 0.2
"""What the thread may take to count what is left, when its time is over."""
LINGER_S = 0.5
"""What readers may take at the end for what is in their pipes already."""

AskWhole = Callable[[bool], None]
"""Called by the thread when all should be told again: with True for a late listener, with False because there is room
in the backlog after there was none."""


class CannotListen(OSError):
    """A socket can't be had, mostly because the port is taken."""

    def __init__(self, code: int, endpoint: str) -> None:
        super().__init__(code, f"{endpoint}: {zmq.strerror(code)}")
        self.endpoint = endpoint


class Publisher:
    """Has two sockets from the moment it is made, and a thread from `start` to `close`."""

    def __init__(
        self, settings: KvFeedSettings, backlog: Backlog, announcer: Announcer, clock: Clock, ask_whole: AskWhole
    ) -> None:
        """Raises CannotListen, with nothing left open."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._pub = _listen(self._context, zmq.PUB, settings.host, settings.port, LIVE_WAITING_MAX)
            self._router = _listen(self._context, zmq.ROUTER, settings.host, settings.replay_port, REPLAY_WAITING_MAX)
        except CannotListen:
            self._context.destroy(linger=0)
            raise
        self.endpoint = to_told(self._pub.getsockopt_string(zmq.LAST_ENDPOINT))
        self.replay_endpoint = to_told(self._router.getsockopt_string(zmq.LAST_ENDPOINT))
        self.events_sent = 0
        self.batches_sent = 0
        self.dropped = 0
        """Changes that the thread left unsent when it ended."""
        self.is_over = False
        """The thread sends nothing more; what is put into the backlog stays there."""
        self._encoding = settings.encoding
        self._topic = settings.topic.encode()
        self._backlog = backlog
        self._announcer = announcer
        self._clock = clock
        self._ask_whole = ask_whole
        self._kept = ReplayBuffer()
        self._replayer = Replayer(self._router, self._kept, clock)
        self._bell = Bell()
        self._poller = zmq.Poller()
        for heard in (self._router, self._bell.fileno()):
            self._poller.register(heard, zmq.POLLIN)
        self._close_by_s: float | None = None
        self._renewal = Renewal()
        self._num_unsent = 0
        """Changes of the publish that is being sent."""
        self._thread = threading.Thread(target=self._run, name="tenure-kv-feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """There is something in the backlog. Never waits."""
        self._bell.ring()

    def close(self, timeout_s: float) -> None:
        """Sends what waits, for so long at most, and drops the rest. Idempotent."""
        if self._close_by_s is None:
            self._close_by_s = self._clock.now() + timeout_s
            self._bell.ring()
        self._thread.join(timeout_s + END_S)
        if not self._thread.is_alive():
            self._bell.close()

    # The thread

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # allowed (ADR 5): without this thread readers would wait for ever, unknown to us
            _log.critical("event=kv_feed_lost error=%s: %s", type(error).__name__, error, exc_info=error)
        finally:
            self._end()

    def _serve(self) -> None:
        while self._close_by_s is None:
            self._wait()
            self._publish_next()
            self._replayer.hear()
            self._replayer.send()
            self._ask_for_whole()
        while not self._is_too_late and self._publish_next():
            pass

    def _end(self) -> None:
        self.dropped = self._num_unsent + self._backlog.clear()
        self.is_over = True
        if self.dropped:
            _log.warning("event=kv_feed_unsent changes=%d", self.dropped)
        left_s = 0.0 if self._close_by_s is None else max(0.0, self._close_by_s - self._clock.now())
        self._router.close(linger=0)
        self._pub.close(linger=int(min(left_s, LINGER_S) * 1000))
        self._context.term()  # waits for what lingers

    @property
    def _is_too_late(self) -> bool:
        return self._close_by_s is not None and self._clock.now() >= self._close_by_s

    def _wait(self) -> None:
        if self._backlog.num_waiting:
            return
        waits = [self._replayer.wait_s, self._renewal.wait_s(self._clock.now())]
        known = [wait_s for wait_s in waits if wait_s is not None]
        self._poller.poll(math.ceil(1000 * min(known)) if known else None)
        self._bell.silence()

    def _publish_next(self) -> bool:
        """All of one publish of the engine, unless it is time to end. Whether there was any."""
        told = self._backlog.take()
        if told is None:
            return False
        began_s, self._num_unsent = self._clock.now(), len(told.changes)
        batch: list[WireEvent] = []
        num_hashes = 0
        for number, change in enumerate(told.changes):
            for event in self._announcer.events(change):
                batch.append(event)
                size = 0 if isinstance(event, AllBlocksCleared) else len(event.block_hashes)
                num_hashes += size
                if size == HASHES_MAX:
                    time.sleep(PAUSE_S)
                if num_hashes >= BATCH_HASHES:
                    self._send(told, batch)
                    batch, num_hashes = [], 0
                    self._num_unsent = len(told.changes) - number
                    if self._is_too_late:
                        return False
        self._send(told, batch)
        self._num_unsent = 0
        if any(isinstance(change, Whole) for change in told.changes):
            now_s = self._clock.now()
            self._renewal.note_told(now_s - began_s, now_s)
        return True

    def _send(self, told: Told, batch: list[WireEvent]) -> None:
        if not batch:
            return
        payload = encode_batch(told.unix_s, batch, self._encoding)
        sequence = self._kept.add(payload)
        self._pub.send_multipart([self._topic, pack_sequence(sequence), payload])  # PUB drops, and never waits
        self.batches_sent += 1
        self.events_sent += len(batch)

    def _ask_for_whole(self) -> None:
        if self._backlog.take_news_of_room():
            self._ask_whole(False)
        if self._replayer.take_lateness():
            self._renewal.note_late()
        if self._renewal.take_due(self._clock.now()):
            self._ask_whole(True)


def to_told(endpoint: str) -> str:
    """As it is told to readers: all addresses of the machine are `*`, as ZeroMQ writes it, for 0.0.0.0 is nobody's."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return f"tcp://*:{port}" if ip_address(host.strip("[]")).is_unspecified else endpoint


def _listen(
    context: "zmq.Context[zmq.Socket[bytes]]", kind: int, host: str, port: int, waiting_max: int
) -> "zmq.Socket[bytes]":
    is_v6 = ":" in host
    endpoint = f"tcp://[{host}]:{port}" if is_v6 else f"tcp://{host}:{port}"
    listening = context.socket(kind)
    listening.setsockopt(zmq.IPV6, int(is_v6))
    listening.setsockopt(zmq.SNDHWM, waiting_max)
    listening.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
    if kind == zmq.ROUTER:
        listening.setsockopt(zmq.ROUTER_MANDATORY, 1)  # else a reader that is full misses batches without a trace
    try:
        listening.bind(endpoint)
    except zmq.ZMQError as error:
        raise CannotListen(error.errno or 0, endpoint) from error
    return listening
