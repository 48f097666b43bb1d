"""What waits between the engine's loop and the publisher's thread, and the batches kept to be sent again."""

from collections import deque
from dataclasses import dataclass

from telemetry.kv.prefix_index import Change

CHANGES_MAX = 8192
"""Changes that may wait for the publisher's thread."""
REPLAY_BATCHES = 10_000
REPLAY_BYTES = 64 << 20
"""Of payloads. Whichever bound is met first drops the oldest batches."""


@dataclass(frozen=True, slots=True)
class Told:
    """What one publish of the engine changed."""

    unix_s: float
    changes: tuple[Change, ...]


class Backlog:
    """One thread puts, another takes; neither waits. Counters of their own in place of a lock."""

    def __init__(self, changes_max: int = CHANGES_MAX) -> None:
        self._changes_max = changes_max
        self._waiting: deque[Told] = deque()
        self._num_put = 0
        self._num_taken = 0
        self._num_wishes = 0
        """For room, by the side that puts."""
        self._num_granted = 0
        """Of them, by the side that takes."""

    @property
    def num_waiting(self) -> int:
        """Changes. The thread that looks may be late by what the other one does meanwhile."""
        return self._num_put - self._num_taken

    @property
    def has_room(self) -> bool:
        """Whether half of it is free, so that it will not be full again at once."""
        return self.num_waiting <= self._changes_max // 2

    def put(self, told: Told) -> bool:
        """Whether there was room for all of it; else nothing was put, and there will be news of room."""
        if self.num_waiting and self.num_waiting + len(told.changes) > self._changes_max:
            self._num_wishes += 1
            return False
        self._num_put += len(told.changes)
        self._waiting.append(told)
        return True

    def take(self) -> Told | None:
        """The oldest; it is no longer counted as waiting."""
        if not self._waiting:
            return None
        told = self._waiting.popleft()
        self._num_taken += len(told.changes)
        return told

    def want_room(self) -> bool:
        """Whether half of it is free; else there will be news of room. For the side that puts."""
        if self.has_room:
            return True
        self._num_wishes += 1
        return False

    def take_news_of_room(self) -> bool:
        """Whether room was missed, and half of it is free now. Says so once for all who missed it until it looked.

        For the thread that takes. A wish that comes while it looks is not lost: it is for the next time.
        """
        num_wishes = self._num_wishes
        if num_wishes == self._num_granted or not self.has_room:
            return False
        self._num_granted = num_wishes
        return True

    def clear(self) -> int:
        """Takes all. Returns how many changes that was. For the thread that takes."""
        num_cleared = 0
        while (told := self.take()) is not None:
            num_cleared += len(told.changes)
        return num_cleared


class ReplayBuffer:
    """The newest batches by their number, which grows by one from 0."""

    def __init__(self, batches_max: int = REPLAY_BATCHES, bytes_max: int = REPLAY_BYTES) -> None:
        self._batches_max, self._bytes_max = batches_max, bytes_max
        self._payloads: dict[int, bytes] = {}
        self._num_bytes = 0
        self.first = 0
        """Number of the oldest one kept."""
        self.next = 0
        """Number that the next one gets."""

    def add(self, payload: bytes) -> int:
        """Keeps it, and drops the oldest ones that it leaves no room for. Returns its number."""
        sequence = self.next
        self._payloads[sequence] = payload
        self._num_bytes += len(payload)
        self.next += 1
        while len(self._payloads) > self._batches_max or (self._num_bytes > self._bytes_max and self.first < sequence):
            self._num_bytes -= len(self._payloads.pop(self.first))
            self.first += 1
        return sequence

    def find(self, sequence: int) -> bytes | None:
        """None when it is not kept any more, or does not exist yet."""
        return self._payloads.get(sequence)
