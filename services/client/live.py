"""Which turns of a client, or of a session, run on the server now: so that none is left behind."""

import asyncio
from typing import Protocol, Self


class LiveTurn(Protocol):
    """What is known of a turn that runs."""

    @property
    def is_read(self) -> bool:
        """Whether somebody still holds its iterator."""

    async def leave(self) -> None:
        """Ends it as aborted."""


class LiveTurns:
    """A set of turns. What is added here is in `parent`, too, until it is removed here."""

    def __init__(self, parent: Self | None = None) -> None:
        self._parent = parent
        self._turns: set[LiveTurn] = set()

    def sibling(self) -> "LiveTurns":
        """Another set with the same parent."""
        return LiveTurns(self._parent)

    def add(self, turn: LiveTurn) -> None:
        self._turns.add(turn)
        if self._parent is not None:
            self._parent.add(turn)

    def remove(self, turn: LiveTurn) -> None:
        """Idempotent."""
        self._turns.discard(turn)
        if self._parent is not None:
            self._parent.remove(turn)

    async def leave_all(self) -> None:
        """Returns when the server has ended all of them."""
        await asyncio.gather(*(turn.leave() for turn in self._turns))

    async def leave_broken_off(self) -> None:
        """Ends those that nobody reads any more."""
        await asyncio.gather(*(turn.leave() for turn in self._turns if not turn.is_read))
