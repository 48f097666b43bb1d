"""A session, as its client holds it: turns, forks, rewinding."""

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self, Unpack

from protos.v1 import generate_pb2_grpc, session_pb2, session_pb2_grpc
from services.client.errors import TenureError, answer
from services.client.live import LiveTurns
from services.client.options import require_name, set_field
from services.client.requests import Message, SessionTurnOptions, TurnInput, build_request
from services.client.sessions import Lengths
from services.client.stream import Patience
from services.client.trace_headers import trace_headers
from services.client.turn import Turn

CLOSE_TIMEOUT_S = 10.0
"""How long closing a session may take; a server that does not answer closes it when it has been idle for too long."""


class ClientSession:
    """An open session. The turns of a streaming one run one after the other; an ordinary one runs several branches."""

    def __init__(
        self,
        sessions: "session_pb2_grpc.SessionAsyncStub",
        generate: "generate_pb2_grpc.GenerateAsyncStub",
        request: session_pb2.OpenRequest,
        patience: Patience,
        live: LiveTurns,
        lengths: Lengths | None = None,
    ) -> None:
        """`lengths`: of a session that is open already, since it was forked."""
        self._patience = patience
        self._live = live
        self._sessions = sessions
        self._generate = generate
        self._request = request
        self._is_open = lengths is not None
        self.session_id = request.session_id
        """Its name; when the server was to choose it, empty until the session is open."""
        self.lengths = lengths
        """Of a fork: what it began with."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc is None:
            await self.close()
            return
        try:
            await self.close()
        except TenureError:
            # Whatever went wrong inside is what the caller has to hear; a server that is gone keeps no session.
            return

    async def open(self) -> None:
        """`async with` does it. A fork is open already, and stays as it is."""
        if not self._is_open:
            response = await answer(self._sessions.Open(self._request, metadata=trace_headers()))
            self.session_id = response.session_id
            self._is_open = True

    async def close(self, *, drain: bool = False) -> None:
        """Ends the turns that still run, and releases all that the session holds. Idempotent.

        With `drain` it waits until they have finished by themselves; new ones are refused meanwhile.
        """
        if not drain:
            await self._live.leave_all()
        if self.session_id:
            request = session_pb2.CloseRequest(session_id=self.session_id, drain=drain)
            timeout_s = None if drain else CLOSE_TIMEOUT_S
            await answer(self._sessions.Close(request, timeout=timeout_s, metadata=trace_headers()))

    async def fork(
        self, session_id: str | None = None, *, at_turn: str | None = None, at_length: int | None = None
    ) -> "ClientSession":
        """A new session, open, that begins with what this one has: up to the end of `at_turn`, then cut to `at_length`.

        Turns that run do not matter. Without a name the server chooses one. Use it as
        `async with await session.fork() as fork`.
        """
        self._require_name()
        require_name("session_id", session_id)
        request = session_pb2.ForkRequest(session_id=self.session_id)
        set_field(request, "new_session_id", session_id, "session_id")
        set_field(request, "at_turn_id", at_turn, "at_turn")
        set_field(request, "at_length", at_length)
        response = await answer(self._sessions.Fork(request, metadata=trace_headers()))
        opened = session_pb2.OpenRequest(session_id=response.session_id, streaming=self._request.streaming)
        lengths = Lengths(response.session_len, response.kv_tokens)
        return ClientSession(self._sessions, self._generate, opened, self._patience, self._live.sibling(), lengths)

    async def truncate(self, length: int) -> Lengths:
        """Rewinds the session to its first `length` tokens. Turns that were broken off are ended first."""
        self._require_name()
        request = session_pb2.TruncateRequest(session_id=self.session_id)
        set_field(request, "length", length)
        await self._live.leave_broken_off()
        response = await answer(self._sessions.Truncate(request, metadata=trace_headers()))
        return Lengths(response.session_len, response.kv_tokens)

    def turn(
        self,
        content: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        text: str | None = None,
        token_ids: Sequence[int] | None = None,
        turn_id: str | None = None,
        parent: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[SessionTurnOptions],
    ) -> Turn:
        """The next turn: what the user says (`content`), or chat messages, or raw text, or token ids; one of them.

        In a session that is not streaming, `parent` is the turn to append to, or whose followers are replaced. While
        somebody reads a turn of a streaming session the server refuses a second one, SESSION_BUSY; a turn that was
        broken off is ended first.
        Raises RuntimeError when the session was not opened and has no name.
        """
        self._require_name()
        if content is not None:
            messages = (*(messages or ()), Message("user", content))
        request = build_request(TurnInput(text, token_ids, messages), turn_id, options)
        request.session_id = self.session_id
        set_field(request, "parent_turn_id", parent, "parent")
        return Turn(
            self._generate,
            request,
            patience=replace(self._patience, timeout_s=timeout_s),
            live=self._live,
            one_at_a_time=self._request.streaming,
        )

    def _require_name(self) -> None:
        if not self.session_id:
            raise RuntimeError("the session is not open: use `async with client.session() as session`, or `open()` it")
