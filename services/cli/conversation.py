"""The turns of one session of a chat, and what is told of each."""

from collections.abc import Awaitable, Callable

from services.cli.books import TurnBook
from services.cli.report import describe_error, is_about_an_option, is_silence
from services.cli.terminal import Terminal
from services.client import Client, ClientSession, Message, SamplingOptions, TenureError, Turn

_SESSION_LOST = (
    *("SHUTDOWN", "SESSION_CLOSED", "SESSION_EXPIRED", "SESSION_UNKNOWN"),
    *("SERVER_STOPPING", "SERVER_LOADING", "ENGINE_FAILED"),
)
"""Reasons after which there is no session to go on with."""
_MAYBE_LOST = ("TURN_UNKNOWN", "TURN_LEFT", "CANCELLED")
"""Reasons after which that has to be asked."""
_FULL = ("PROMPT_EXCEEDS_CONTEXT", "PROMPT_EXCEEDS_POOL")

Show = Callable[[Turn], Awaitable[bool]]
"""Shows an answer. Whether it came to its end, and was not stopped by the person who asked."""


class ConversationOver(Exception):
    """The session is lost. The message says why."""


class Conversation:
    """The turns of one session, printed as they come."""

    def __init__(
        self,
        client: Client,
        session: ClientSession,
        options: SamplingOptions,
        system: str | None,
        terminal: Terminal,
        target: str,
    ) -> None:
        self._client = client
        self._session = session
        self._options = options
        self._system = system
        self._terminal = terminal
        self._target = target
        self._book = TurnBook()

    async def run_turn(self, line: str, show: Show) -> bool:
        """Has the answer shown, and tells its books. A turn that is refused or aborted leaves the session as it was.

        False when it was refused. Raises ConversationOver, and TenureError when an option of the command is at fault.
        """
        messages = [] if self._system is None else [Message("system", self._system)]
        turn = self._session.turn(line, messages=messages, **self._options)
        try:
            has_come_to_its_end = await show(turn)
            if has_come_to_its_end or turn.is_committed:
                self._system = None
            await self._tell_books(turn)
        except TenureError as error:
            await self._tell_error(error)
            return False
        return True

    async def _tell_books(self, turn: Turn) -> None:
        stats = await self._client.pools()
        tell = self._book.close_turn if turn.is_committed else self._book.take_back
        self._terminal.note(f"[{tell(turn, stats)}]")

    async def _tell_error(self, error: TenureError) -> None:
        if is_about_an_option(error):
            raise error
        if await self._is_lost(error):
            raise ConversationOver(f"the session is lost: {self._explain(error)}") from error
        self._terminal.complain(f"[{describe_error(error, self._target)}]")
        if error.reason in _FULL:
            self._terminal.note("[the conversation has grown too long for this; /new starts a new session]")

    async def _is_lost(self, error: TenureError) -> bool:
        if is_silence(error) or error.reason in _SESSION_LOST:
            return True
        if error.reason not in _MAYBE_LOST:
            return False
        try:
            await self._client.find_session(self._session.session_id)
        except TenureError:
            return True
        return False

    def _explain(self, error: TenureError) -> str:
        if is_silence(error):
            return f"the server at {self._target} does not answer any more"
        if error.reason in _MAYBE_LOST or error.reason == "SESSION_UNKNOWN":
            return f"the server at {self._target} does not know it any more; was it started anew?"
        return error.message
