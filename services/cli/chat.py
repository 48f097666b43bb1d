"""`tenure chat`: conversations in streaming sessions, with their books under every turn."""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import TypeVar

from services.cli.answers import announcing_reconnects, print_answer, wait_loaded
from services.cli.arguments import BadInputError
from services.cli.conversation import Conversation, ConversationOver
from services.cli.lines import Lines, open_lines
from services.cli.run import run_work
from services.cli.terminal import Terminal, open_terminal
from services.client import Client, SamplingOptions, Turn, connect

PROMPT = "you> "
NEW_SESSION = "/new"
UNDO = "/undo"

_Result = TypeVar("_Result")


def run_chat(target: str, options: SamplingOptions, *, system: str | None, is_quiet: bool) -> int:
    return run_work(target, _chat(target, options, system, open_terminal(is_quiet=is_quiet)))


async def _chat(target: str, options: SamplingOptions, system: str | None, terminal: Terminal) -> int:
    interrupts = Interrupts()
    lines = open_lines(PROMPT)
    chat = Chat(target, options, system, terminal, lines, interrupts)
    try:
        async with connect(target, on_reconnecting=announcing_reconnects(terminal)) as client:
            await wait_loaded(client, terminal)
            while await chat.hold_conversation(client):
                terminal.note("session closed; a new one begins.")
    except asyncio.CancelledError:
        if interrupts.is_leaving:
            return 128 + signal.SIGINT
        raise
    except ConversationOver as over:
        terminal.complain(f"tenure: {over}")
        return 1
    finally:
        lines.close()
    terminal.note("session closed.")
    # A person has seen what was refused; a script looks at the exit code.
    return 1 if chat.num_refused and not sys.stdin.isatty() else 0


def read_command(line: str) -> str | None:
    """What is asked of the chat itself, in small letters; None for a message to the model."""
    return line.strip().lower() if line.startswith("/") else None


class Interrupted(Exception):
    """Ctrl-C was pressed."""


class Interrupts:
    """SIGINT ends what is awaited through `guard`; when that is nothing, the whole task that made this."""

    def __init__(self) -> None:
        self.is_leaving = False
        """Whether SIGINT has ended the whole task."""
        self._whole = asyncio.current_task()
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
        elif self._whole is not None:
            self.is_leaving = True
            self._whole.cancel()


class Chat:
    """What stays the same from one session of a chat to the next."""

    def __init__(
        self,
        target: str,
        options: SamplingOptions,
        system: str | None,
        terminal: Terminal,
        lines: Lines,
        interrupts: Interrupts,
    ) -> None:
        self._target = target
        self._options = options
        self._system = system
        self._terminal = terminal
        self._lines = lines
        self._interrupts = interrupts
        self.num_refused = 0
        """Lines that got no answer."""

    async def hold_conversation(self, client: Client) -> bool:
        """One session, from its opening to its close. Whether another one is wanted."""
        async with client.session(streaming=True) as session:
            self._terminal.note(
                f"session {session.session_id}. Ctrl-C stops an answer, Ctrl-D leaves, "
                f"{UNDO} takes the last turn back, {NEW_SESSION} starts anew."
            )
            conversation = Conversation(client, session, self._options, self._system, self._terminal, self._target)
            while (line := await self._ask()) is not None:
                command = read_command(line)
                if command == NEW_SESSION:
                    return True
                if line.strip() and not await self._take(conversation, line, command):
                    self.num_refused += 1
        return False

    async def _take(self, conversation: Conversation, line: str, command: str | None) -> bool:
        """Whether the line was not refused."""
        if command is None:
            # A blank before a slash says that it is none of ours, and is no part of the message.
            return await self._run_turn(conversation, line[1:] if line.startswith(" /") else line)
        if command == UNDO:
            return await conversation.undo()
        self._terminal.complain(
            f"[there is no {command}; there are {UNDO} and {NEW_SESSION}. To send a message that begins with a slash, "
            "put a blank before it]"
        )
        return False

    async def _run_turn(self, conversation: Conversation, line: str) -> bool:
        """Whether the line was not refused. Ctrl-C takes its turn back."""

        async def show(turn: Turn) -> bool:
            """Whether the answer came to its end."""
            try:
                await self._interrupts.guard(print_answer(turn, self._terminal))
            except Interrupted:
                return False
            return True

        return await conversation.run_turn(line, show)

    async def _ask(self) -> str | None:
        """The next line; None at the end of the input, or when Ctrl-C was pressed at the prompt."""
        while True:
            try:
                return await self._interrupts.guard(self._lines.next_line())
            except Interrupted:
                return None
            except BadInputError as error:
                self.num_refused += 1
                self._terminal.complain(f"tenure: {error}")
