"""What other tasks ask of the loop: a bounded queue of commands with replies, read by the loop alone."""

import asyncio
from collections import deque
from dataclasses import dataclass

from engine.core.commands import Abort, AbortReason, Close, Open, Submit
from engine.core.errors import Refusal, RefusalReason
from engine.core.ids import Rid
from engine.runtime.handle import EngineClosed

Answered = Open | Close | Submit
"""Commands whose sender waits for the core's answer."""


@dataclass(frozen=True, slots=True)
class Posted:
    """A command and where its answer goes: None, or the Refusal or StreamRefusal."""

    command: Answered
    reply: asyncio.Future[None]
    base_len: int | None = None
    """Of a Submit: tokens of history that its input was made for."""


class Inbox:
    """Rings whenever there is something to read.

    Aborts have their own place, one a turn, so that none is ever refused: they are bounded by the number of live turns.
    """

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._posted: deque[Posted] = deque()
        self._aborts: dict[Rid, AbortReason] = {}
        self._bell = asyncio.Event()
        self._closed: EngineClosed | None = None

    async def send(self, command: Answered, base_len: int | None = None) -> None:
        """Returns once the core has taken `command`. Raises Refusal, QUEUE_FULL included, or EngineClosed.

        With `base_len`: raises StreamRefusal, HISTORY_MOVED, when the session has another history by then.
        """
        if self._closed is not None:
            raise self._closed
        if len(self._posted) >= self._size_max:
            raise Refusal(
                RefusalReason.QUEUE_FULL,
                f"{len(self._posted)} commands wait already",
                value=len(self._posted),
                limit=self._size_max,
            )
        reply: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._posted.append(Posted(command, reply, base_len))
        self._bell.set()
        await reply

    def post_abort(self, rid: Rid, reason: AbortReason) -> None:
        """Has the turn aborted. Of several reasons the first counts."""
        if self._closed is None:
            self._aborts.setdefault(rid, reason)
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

    def take_command(self) -> Posted | None:
        """The oldest command that waits. For the loop only, which owes it a reply."""
        return self._posted.popleft() if self._posted else None

    def take_aborts(self) -> tuple[Abort, ...]:
        """All aborts that wait. For the loop only, after the commands: an abort may follow its own Submit."""
        aborts = tuple(Abort(rid, reason) for rid, reason in self._aborts.items())
        self._aborts.clear()
        return aborts

    def close(self, reason: EngineClosed) -> None:
        """Answers all that waits, and all that comes later, with `reason`."""
        self._closed = reason
        self._aborts.clear()
        while self._posted:
            reply = self._posted.popleft().reply
            if not reply.done():
                reply.set_exception(reason)
