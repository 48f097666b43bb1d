"""`tenure chat`: a conversation in a streaming session, with its books under every turn."""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import TypeVar

from services.cli.books import TurnBook
from services.cli.lines import LineReader
from services.cli.report import report_error
from services.client import Client, ClientSession, Message, SamplingOptions, TenureError, Turn, connect

PROMPT = "you> "

_SESSION_LOST = ("UNAVAILABLE", "SHUTDOWN", "SESSION_CLOSED", "SESSION_EXPIRED", "SESSION_UNKNOWN")
"""Reasons after which there is no session to go on with."""

_Result = TypeVar("_Result")


def run_chat(target: str, options: SamplingOptions, *, system: str | None) -> int:
    return asyncio.run(report_error(target, _chat(target, options, system)))


async def _chat(target: str, options: SamplingOptions, system: str | None) -> int:
    interrupts = Interrupts()
    reader = LineReader(sys.stdin.fileno())
    async with connect(target) as client, client.session(streaming=True) as session:
        print(f"session {session.session_id}. Ctrl-C stops an answer, Ctrl-D leaves.", flush=True)
        conversation = Conversation(client, session, options, system)
        while (line := await _ask(reader, interrupts)) is not None:
            if line.strip():
                await conversation.run_turn(line, interrupts)
    print("session closed.", flush=True)
    return 0


class Interrupted(Exception):
    """Ctrl-C was pressed."""


class Interrupts:
    """SIGINT ends whatever is awaited through `guard`, and nothing else."""

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._is_pressed = False
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._on_interrupt)

    async def guard(self, work: Coroutine[object, object, _Result]) -> _Result:
        """Awaits `work`. Raises Interrupted, once `work` has ended, when SIGINT came meanwhile."""
        task = asyncio.create_task(work)
        self._task, self._is_pressed = task, False
        try:
            return await task
        except asyncio.CancelledError:
            if self._is_pressed:
                raise Interrupted from None
            raise
        finally:
            self._task = None

    def _on_interrupt(self) -> None:
        if self._task is not None:
            self._is_pressed = True
            self._task.cancel()


async def _ask(reader: LineReader, interrupts: Interrupts) -> str | None:
    """The next line; None at the end of the input, or when Ctrl-C was pressed at the prompt."""
    if sys.stdin.isatty():
        print(PROMPT, end="", flush=True)
    try:
        return await interrupts.guard(reader.next_line())
    except Interrupted:
        print()
        return None


class Conversation:
    """The turns of one session, printed as they come."""

    def __init__(self, client: Client, session: ClientSession, options: SamplingOptions, system: str | None) -> None:
        self._client = client
        self._session = session
        self._options = options
        self._system = system
        self._book = TurnBook()

    async def run_turn(self, line: str, interrupts: Interrupts) -> None:
        """Prints the answer and its books. A turn that is refused or aborted leaves the session as it was."""
        messages = [] if self._system is None else [Message("system", self._system)]
        turn = self._session.turn(line, messages=messages, **self._options)
        is_interrupted = False
        try:
            await interrupts.guard(print_answer(turn))
        except Interrupted:
            is_interrupted = not turn.is_committed
        except TenureError as error:
            print(f"[{error}]", flush=True)
            if error.reason in _SESSION_LOST:
                raise
            return
        stats = await self._client.pools()
        if is_interrupted:
            print(f"[{self._book.take_back(turn, stats)}]", flush=True)
            return
        self._system = None
        print(f"[{self._book.close_turn(turn, stats)}]", flush=True)


async def print_answer(turn: Turn) -> None:
    """Prints text as it comes, and ends its line also when the answer is cut short."""
    try:
        async for piece in turn:
            print(piece.text, end="", flush=True)
    finally:
        with suppress(BrokenPipeError):
            print(flush=True)
