"""The turns of one session of a chat, and what is told of each."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.cli.books import TurnBook
from services.cli.pools import settled_pools
from services.cli.report import describe_error, is_about_an_option, is_silence
from services.cli.terminal import Terminal
from services.client import Client, ClientSession, Message, SamplingOptions, TenureError, Turn

_SESSION_LOST = (
    *("SHUTDOWN", "SESSION_CLOSED", "SESSION_CLOSING", "SESSION_EXPIRED", "SESSION_UNKNOWN"),
    *("SERVER_STOPPING", "SERVER_LOADING", "ENGINE_FAILED"),
)
"""Reasons after which there is no session to go on with."""
_MAYBE_LOST = ("TURN_UNKNOWN", "TURN_LEFT", "CANCELLED")
"""Reasons after which that has to be asked."""
_FULL = ("PROMPT_EXCEEDS_CONTEXT", "PROMPT_EXCEEDS_POOL")

Show = Callable[[Turn], Awaitable[bool]]
"""Shows an answer. Whether it came to its end, and was not stopped by the person who asked."""


@dataclass(frozen=True, slots=True)
class _Point:
    """Where the conversation was before a turn."""

    session_len: int
    system: str | None
    last_committed: int | None


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
        self._session_len = 0
        self._points: list[_Point] = []

    async def run_turn(self, line: str, show: Show) -> bool:
        """Has the answer shown, and tells its books. A turn that is refused or aborted leaves the session as it was.

        False when it was refused. Raises ConversationOver, and TenureError when an option of the command is at fault.
        """
        messages = [] if self._system is None else [Message("system", self._system)]
        before = _Point(self._session_len, self._system, self._book.last_committed)
        turn = self._session.turn(line, messages=messages, **self._options)
        try:
            has_come_to_its_end = await show(turn)
            if has_come_to_its_end or turn.is_committed:
                self._system = None
                self._points.append(before)
                self._session_len = turn.session_len or 0
            await self._tell_books(turn)
        except TenureError as error:
            await self._tell_error(error)
            return False
        return True

    async def undo(self) -> bool:
        """Takes the last turn back that is still in the session, if any. False when the server refused it."""
        if not self._points:
            self._terminal.complain("[there is no turn to take back]")
            return True
        point = self._points[-1]
        try:
            lengths = await self._session.truncate(point.session_len)
        except TenureError as error:
            await self._tell_error(error)
            return False
        self._points.pop()
        self._system, self._session_len = point.system, point.session_len
        self._book.last_committed = point.last_committed
        self._terminal.note(f"[taken back: the session is at {lengths.session_len} tokens]")
        return True

    async def _tell_books(self, turn: Turn) -> None:
        stats = await settled_pools(self._client)
        tell = self._book.close_turn if turn.is_committed else self._book.take_back
        self._terminal.note(f"[{tell(turn, stats)}; name {turn.turn_id}]")

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
