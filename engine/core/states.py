"""The recurrent states of one holder: which slot holds the state behind how many tokens, and which slots are spare.

    tokens:   0 ......... base ......... checkpoint ......... live | in flight
    slots:              kept             kept               kept   | one for each plan in flight

A step starts from one slot and writes another, so the state that it started from is there still when it fails or turns
out to have run past the end. The slots of what is no longer needed are written in turn.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

WORKING = 2
"""Slots that the steps of a running turn write in turn."""
STATES_A_TURN = 5
"""Most slots that one turn needs to run alone: the last commit's state and checkpoint, two to work with, and the one
of the cache that it started from."""


@dataclass(slots=True)
class States:
    """Slots of one holder, in its own name; `read` may be the cache's. Lengths in tokens, slot 0 is "no tokens"."""

    read: int = 0
    """The slot that the next plan starts from."""
    kept: dict[int, int] = field(default_factory=dict)
    """Length → the slot with the state behind so many tokens, as an answered step left it."""
    spare: list[int] = field(default_factory=list)
    """Slots with nothing that is needed."""
    writing: deque[tuple[int, int]] = field(default_factory=deque)
    """(length, slot) of each plan in flight, oldest first."""
    base_len: int | None = None
    """Length of the last commit's state, which stays whatever a turn does. None: it is the cache's, or no tokens'."""
    checkpoint_len: int | None = None
    """Length of the state that may go to the cache: a whole number of checkpoint intervals."""

    def slots(self) -> list[int]:
        """All that is the holder's own."""
        return [*self.kept.values(), *self.spare, *(slot for _, slot in self.writing)]

    @property
    def num_slots(self) -> int:
        return len(self.kept) + len(self.spare) + len(self.writing)

    @property
    def num_missing(self) -> int:
        """How many more it needs to work and to keep a checkpoint."""
        return max(0, WORKING + 1 + (self.base_len is not None) - self.num_slots)

    def plan(self, stop_len: int) -> tuple[int, int]:
        """A step that ends behind `stop_len` tokens is planned: (slot that it starts from, slot that it writes)."""
        read, write = self.read, self.spare.pop() if self.spare else self._take_live()
        self.writing.append((stop_len, write))
        self.read = write
        return read, write

    def _take_live(self) -> int:
        """A slot whose state the plan in flight has started from: it is behind by a step already."""
        length = next(self._live_lens(), None)
        assert length is not None, f"no slot to write to: {self}"
        assert self.kept[length] != self.read, f"the next step would start from what it writes: {self}"
        return self.kept.pop(length)

    def _live_lens(self) -> Iterator[int]:
        """Lengths whose states are neither the last commit's nor a checkpoint."""
        return (length for length in self.kept if length not in (self.base_len, self.checkpoint_len))

    def answer(self) -> int:
        """The oldest plan in flight left its state: what was the newest is spare. Returns the length."""
        length, slot = self.writing.popleft()
        self.spare += [self.kept.pop(old) for old in tuple(self._live_lens())]
        self.kept[length] = slot
        return length

    def can_keep_checkpoint(self) -> bool:
        """Whether enough slots are left to work with when the newest state is kept as the checkpoint."""
        return self.num_slots - 1 - (self.base_len is not None) >= WORKING

    def keep_checkpoint(self, length: int) -> None:
        """The state behind `length` tokens is the checkpoint from now on, in place of an older one."""
        old, self.checkpoint_len = self.checkpoint_len, length
        if old is not None and old not in (self.base_len, length):
            self.spare.append(self.kept.pop(old))

    def give_checkpoint(self) -> int:
        """The slot of the checkpoint, which is another's from now on. The next step may still start from it."""
        assert self.checkpoint_len is not None, f"no checkpoint to give: {self}"
        slot = self.kept.pop(self.checkpoint_len)
        if self.base_len == self.checkpoint_len:
            self.base_len = None
        self.checkpoint_len = None
        return slot

    def forget_checkpoint(self) -> None:
        """The checkpoint is a state like others: its slot becomes spare with the next answer."""
        self.checkpoint_len = None

    def cut(self, length: int) -> list[int]:
        """Keeps the state behind `length` tokens and the last checkpoint up to there. Returns the slots that are over.

        No plan is in flight any more. Where the state at `length` is not its own, the caller says where it is.
        """
        checkpoint = self.checkpoint_len
        left = {at for at in (length, checkpoint) if at is not None and at <= length and at in self.kept}
        over = [slot for at, slot in self.kept.items() if at not in left]
        over += [*self.spare, *(slot for _, slot in self.writing)]
        self.kept = {at: slot for at, slot in self.kept.items() if at in left}
        self.spare, self.writing = [], deque()
        self.checkpoint_len = checkpoint if checkpoint in left else None
        self.base_len = length if length in left else None
        self.read = self.kept.get(length, 0)
        return over
