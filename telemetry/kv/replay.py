"""Sends missed batches again to those who ask, a few at a time, so that nobody who asks holds up what is new."""

from dataclasses import dataclass
from typing import Protocol

import zmq

from engine.runtime.clock import Clock
from telemetry.kv.backlog import ReplayBuffer
from telemetry.kv.wire_format import END_SEQUENCE, pack_sequence, unpack_sequence

ASKED_MAX = 64
"""Replays that may be under way; who asks beyond that is told that there is nothing: some readers wait for ever."""
PARKED_MAX = 256
"""Replays of readers that take nothing; beyond that the oldest is forgotten."""
TURN_BATCHES = 64
"""Sent in one turn, over all that asked."""
TURN_REQUESTS = 16
STUCK_S = 0.005
"""How long a reader that takes no more is left alone at first; doubled each time that it still takes none."""
STUCK_MAX_S = 0.1
STALLED_S = 10.0
"""A reader that took nothing for so long is parked: it does not count as under way, and is seldom tried."""
PARKED_S = 1.0
"""Between two attempts at a parked one."""


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
    try_at_s: float
    pause_s: float = STUCK_S
    is_parked: bool = False
    queued: int | None = None
    """What the same reader asked for meanwhile, the last time: begins when this one has ended."""


class Replayer:
    """The ROUTER's side. For one thread.

    Each reader that is there gets the end of what it asked for, however late it reads: only when far too many do not
    read is one forgotten. Where that end says less than there was, `take_lateness` says so, as the whole has to come.
    """

    def __init__(self, router: Router, kept: ReplayBuffer, clock: Clock) -> None:
        self._router = router
        self._kept = kept
        self._clock = clock
        self._replays: dict[bytes, _Replay] = {}
        """By who asked: one at a time."""
        self._was_late = False

    @property
    def wait_s(self) -> float | None:
        """How long there is nothing to do, unless somebody asks for something; None is for ever."""
        if not self._replays:
            return None
        return max(0.0, min(replay.try_at_s for replay in self._replays.values()) - self._clock.now())

    def take_lateness(self) -> bool:
        """Whether somebody asked for batches that it can not have. Says so once."""
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
            if frames[0] in self._replays:
                self._replays[frames[0]].queued = start
            else:
                self._begin(frames[0], start)

    def send(self) -> None:
        """One turn of all that is asked for."""
        now_s = self._clock.now()
        due = [replay for replay in self._replays.values() if replay.try_at_s <= now_s]
        quota = max(1, TURN_BATCHES // max(1, len(due)))
        for replay in due:
            if self._is_over(replay, quota, now_s):
                del self._replays[replay.asker]
                if replay.queued is not None:
                    self._begin(replay.asker, replay.queued)
        self._forget_parked()

    def _begin(self, asker: bytes, start: int) -> None:
        now_s, kept = self._clock.now(), self._kept
        self._was_late |= start < kept.first
        replay = _Replay(asker, max(start, kept.first), kept.next, now_s, now_s)
        if sum(not other.is_parked for other in self._replays.values()) >= ASKED_MAX:
            self._was_late |= replay.next < replay.end
            replay.next, replay.is_parked = replay.end, True  # nothing but the end
        self._replays[asker] = replay

    def _forget_parked(self) -> None:
        parked = [replay for replay in self._replays.values() if replay.is_parked]
        for replay in parked[: max(0, len(parked) - PARKED_MAX)]:
            self._was_late |= replay.next < replay.end
            del self._replays[replay.asker]

    def _is_over(self, replay: _Replay, quota: int, now_s: float) -> bool:
        """Sends some of it, as much as the reader takes."""
        for _ in range(quota):
            try:
                is_end = self._send_next(replay)
            except zmq.Again:
                _put_off(replay, now_s)
                return False
            except zmq.ZMQError:  # nobody is there any more
                replay.queued = None
                return True
            replay.moved_s, replay.pause_s, replay.is_parked = now_s, STUCK_S, False
            if is_end:
                return True
        return False

    def _send_next(self, replay: _Replay) -> bool:
        """Whether that was the end. Raises zmq.Again when the reader takes no more, ZMQError when it is gone."""
        if replay.next < min(replay.end, self._kept.first):
            self._was_late = True
            replay.next = self._kept.first
        payload = self._kept.find(replay.next) if replay.next < replay.end else None
        if payload is None:
            self._router.send_multipart(_end_for(replay.asker), zmq.NOBLOCK)
            return True
        self._router.send_multipart([replay.asker, b"", pack_sequence(replay.next), payload], zmq.NOBLOCK)
        replay.next += 1
        return False


def _put_off(replay: _Replay, now_s: float) -> None:
    replay.is_parked |= now_s - replay.moved_s > STALLED_S
    replay.try_at_s = now_s + (PARKED_S if replay.is_parked else replay.pause_s)
    replay.pause_s = min(2 * replay.pause_s, STUCK_MAX_S)


def _end_for(asker: bytes) -> list[bytes]:
    """Readers look at the number or at the payload, so both say it."""
    return [asker, b"", END_SEQUENCE, b""]


def _start_of(frames: list[bytes]) -> int | None:
    """The number that is asked for: the asker's name, an empty frame, 8 bytes."""
    if len(frames) != 3 or frames[1]:
        return None
    return unpack_sequence(frames[2])
