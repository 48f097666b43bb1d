"""What other tasks ask of the loop: a bounded queue of commands with replies, read by the loop alone."""

import asyncio
from collections import deque
from dataclasses import dataclass

from engine.core.commands import Abort, AbortReason, Close, Flush, Flushed, Fork, Lengths, Open, Submit, Truncate
from engine.core.errors import Refusal, RefusalReason
from engine.core.faults import Fault
from engine.core.ids import Rid
from engine.core.provenance import UnitHistory
from engine.runtime.handle import Base, EngineClosed, again

Answered = Open | Close | Fork | Truncate | Submit | Flush | Fault
"""Commands, and faults to plant, whose sender waits for the core's answer."""
Answer = Lengths | Flushed | UnitHistory | None
"""What `Core.apply` or `Core.plant` returns."""


@dataclass(frozen=True, slots=True)
class Posted:
    """A command and where its answer goes: what the core returns, or the Refusal or StreamRefusal."""

    command: Answered
    reply: asyncio.Future[Answer]
    base: Base | None = None
    """Of a Submit: what its input was made to follow."""


class Inbox:
    """Rings whenever there is something to read.

    All is read in the order in which it came. Aborts are never refused: they are bounded by the number of live turns,
    for each turn has one at most.
    """

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._waiting: deque[Posted | Abort] = deque()
        self._aborting: set[Rid] = set()
        self._bell = asyncio.Event()
        self._closed: EngineClosed | None = None

    async def send(self, command: Answered, base: Base | None = None) -> Answer:
        """Returns what the core does, once the core has taken `command`. Raises Refusal, QUEUE_FULL included, or
        EngineClosed.

        With `base`: raises StreamRefusal, HISTORY_MOVED, when the turn would follow something else by then.
        """
        if self._closed is not None:
            raise again(self._closed)
        num_commands = len(self._waiting) - len(self._aborting)
        if num_commands >= self._size_max:
            message = f"{num_commands} commands wait already"
            raise Refusal(RefusalReason.QUEUE_FULL, message, value=num_commands, limit=self._size_max)
        reply: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append(Posted(command, reply, base))
        self._bell.set()
        return await reply

    def post_abort(self, rid: Rid, reason: AbortReason) -> None:
        """Has the turn aborted. Of several reasons the first counts."""
        if self._closed is None and rid not in self._aborting:
            self._aborting.add(rid)
            self._waiting.append(Abort(rid, reason))
            self._bell.set()

    def ring(self) -> None:
        """Wakes the loop."""
        self._bell.set()

    async def wait(self, timeout_s: float) -> None:
        """Returns when it rang, or after `timeout_s`; always lets other tasks run once. For the loop only."""
        if self._bell.is_set():
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._bell.wait()
        except TimeoutError:
            return

    def silence(self) -> None:
        """Stops the ringing; whatever comes from now on rings again. For the loop only, before it reads."""
        self._bell.clear()

    def take(self) -> Posted | Abort | None:
        """What has waited longest. For the loop only, which owes a command a reply."""
        if not self._waiting:
            return None
        taken = self._waiting.popleft()
        if isinstance(taken, Abort):
            self._aborting.remove(taken.rid)
        return taken

    def close(self, reason: EngineClosed) -> None:
        """Answers all that waits, and all that comes later, with `reason`."""
        self._closed = reason
        while (taken := self.take()) is not None:
            if isinstance(taken, Posted) and not taken.reply.done():
                taken.reply.set_exception(again(reason))
