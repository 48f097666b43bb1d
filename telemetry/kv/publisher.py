"""The thread that publishes KV events: a PUB socket for what is new, a ROUTER for what was missed."""

import math
import threading
import time
from collections.abc import Callable

import zmq

from engine.runtime.clock import Clock
from telemetry.kv.announcer import HASHES_MAX, Announcer
from telemetry.kv.backlog import Backlog, ReplayBuffer, Told
from telemetry.kv.bell import Bell
from telemetry.kv.replay import Replayer
from telemetry.kv.wire_format import AllBlocksCleared, WireEvent, encode_batch, pack_sequence
from telemetry.settings import KvFeedSettings

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
RENEW_S = 10.0
"""Between two times that all is told again because somebody asked for what is not kept any more."""

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
        self.endpoint = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay_endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.events_sent = 0
        self.batches_sent = 0
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
        self._renew_at_s: float | None = None
        self._renewed_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="tenure-kv-feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """There is something in the backlog. Never waits."""
        self._bell.ring()

    def close(self, timeout_s: float) -> None:
        """Sends what waits, for so long at most. Idempotent."""
        if self._close_by_s is None:
            self._close_by_s = self._clock.now() + timeout_s
            self._bell.ring()
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._bell.close()

    # The thread

    def _run(self) -> None:
        try:
            while self._close_by_s is None:
                self._wait()
                self._publish_next()
                self._replayer.hear()
                self._replayer.send()
                self._ask_for_whole()
            while self._clock.now() < self._close_by_s and self._publish_next():
                pass
        finally:
            left_s = 0.0 if self._close_by_s is None else max(0.0, self._close_by_s - self._clock.now())
            self._router.close(linger=0)
            self._pub.close(linger=int(left_s * 1000))
            self._context.term()  # waits for what lingers

    def _wait(self) -> None:
        if self._backlog.num_waiting:
            return
        waits = [self._replayer.wait_s]
        if self._renew_at_s is not None:
            waits.append(max(0.0, self._renew_at_s - self._clock.now()))
        known = [wait_s for wait_s in waits if wait_s is not None]
        self._poller.poll(math.ceil(1000 * min(known)) if known else None)
        self._bell.silence()

    def _publish_next(self) -> bool:
        """All of one publish of the engine. Whether there was any."""
        told = self._backlog.take()
        if told is None:
            return False
        batch: list[WireEvent] = []
        num_hashes = 0
        for change in told.changes:
            for event in self._announcer.events(change):
                batch.append(event)
                size = 0 if isinstance(event, AllBlocksCleared) else len(event.block_hashes)
                num_hashes += size
                if size == HASHES_MAX:
                    time.sleep(PAUSE_S)
                if num_hashes >= BATCH_HASHES:
                    self._send(told, batch)
                    batch, num_hashes = [], 0
        self._send(told, batch)
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
        now_s = self._clock.now()
        if self._replayer.take_lateness() and self._renew_at_s is None:
            self._renew_at_s = now_s if self._renewed_s is None else max(now_s, self._renewed_s + RENEW_S)
        if self._renew_at_s is not None and self._renew_at_s <= now_s:
            self._renew_at_s, self._renewed_s = None, now_s
            self._ask_whole(True)


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
