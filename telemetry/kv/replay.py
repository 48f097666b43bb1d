"""Sends missed batches again to those who ask, a few at a time, so that nobody who asks holds up what is new."""

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import zmq

from engine.runtime.clock import Clock
from telemetry.kv.backlog import ReplayBuffer
from telemetry.kv.wire_format import END_SEQUENCE, pack_sequence, unpack_sequence

ASKED_MAX = 64
"""Replays that may be under way; who asks beyond that is told that there is nothing: some readers wait for ever."""
TURN_BATCHES = 64
"""Sent in one turn, over all that asked."""
TURN_REQUESTS = 16
STUCK_S = 0.005
"""How long a reader that takes no more is left alone."""
STALLED_S = 10.0
"""A reader that took nothing for so long is given up."""


class Router(Protocol):
    """What is used of a ROUTER socket that reports who is gone and who is full (ROUTER_MANDATORY)."""

    def recv_multipart(self, flags: int) -> list[bytes]: ...

    def send_multipart(self, msg_parts: list[bytes], flags: int) -> object: ...


@dataclass(slots=True)
class _Replay:
    asker: bytes
    next: int
    end: int
    """Before which it ends: what comes later is sent to all anyway."""
    moved_s: float
    is_stuck: bool = False


class Replayer:
    """The ROUTER's side. For one thread."""

    def __init__(self, router: Router, kept: ReplayBuffer, clock: Clock) -> None:
        self._router = router
        self._kept = kept
        self._clock = clock
        self._running: deque[_Replay] = deque()
        self._was_late = False

    @property
    def wait_s(self) -> float | None:
        """How long there is nothing to do, unless somebody asks for something; None is for ever."""
        if not self._running:
            return None
        return STUCK_S if all(replay.is_stuck for replay in self._running) else 0.0

    def take_lateness(self) -> bool:
        """Whether somebody asked for batches that are not kept any more. Says so once."""
        was_late, self._was_late = self._was_late, False
        return was_late

    def hear(self) -> None:
        """Takes what was asked, some of it. What is no request is ignored: this is a public door."""
        for _ in range(TURN_REQUESTS):
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            start = _start_of(frames)
            if start is None:
                continue
            if len(self._running) >= ASKED_MAX:
                with suppress(zmq.ZMQError):
                    self._router.send_multipart(_end_for(frames[0]), zmq.NOBLOCK)
                continue
            self._was_late |= start < self._kept.first
            start = max(start, self._kept.first)
            self._running.append(_Replay(frames[0], start, self._kept.next, self._clock.now()))

    def send(self) -> None:
        """One turn of all that is asked for."""
        quota = max(1, TURN_BATCHES // max(1, len(self._running)))
        served: set[bytes] = set()
        for _ in range(len(self._running)):
            replay = self._running.popleft()
            # who asked twice gets one answer after the other, not both at once
            if replay.asker in served or not self._is_over(replay, quota):
                self._running.append(replay)
            served.add(replay.asker)

    def _is_over(self, replay: _Replay, quota: int) -> bool:
        """Sends some of it, as much as the reader takes."""
        now_s = self._clock.now()
        for _ in range(quota):
            try:
                is_end = self._send_next(replay)
            except zmq.Again:
                replay.is_stuck = True
                return now_s - replay.moved_s > STALLED_S
            except zmq.ZMQError:  # nobody is there any more
                return True
            replay.is_stuck, replay.moved_s = False, now_s
            if is_end:
                return True
        return False

    def _send_next(self, replay: _Replay) -> bool:
        """Whether that was the end. Raises zmq.Again when the reader takes no more, ZMQError when it is gone."""
        if replay.next < self._kept.first:
            self._was_late = True
            replay.next = self._kept.first
        payload = self._kept.find(replay.next) if replay.next < replay.end else None
        if payload is None:
            self._router.send_multipart(_end_for(replay.asker), zmq.NOBLOCK)
            return True
        self._router.send_multipart([replay.asker, b"", pack_sequence(replay.next), payload], zmq.NOBLOCK)
        replay.next += 1
        return False


def _end_for(asker: bytes) -> list[bytes]:
    """Readers look at the number or at the payload, so both say it."""
    return [asker, b"", END_SEQUENCE, b""]


def _start_of(frames: list[bytes]) -> int | None:
    """The number that is asked for: the asker's name, an empty frame, 8 bytes."""
    if len(frames) != 3 or frames[1]:
        return None
    return unpack_sequence(frames[2])
