"""The client: connect, open sessions, run turns."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar, Unpack

from grpc import aio
from grpc_health.v1 import health_pb2

from protos.v1 import admin_pb2, admin_pb2_grpc, generate_pb2_grpc, session_pb2, session_pb2_grpc
from services.client.errors import TenureError, to_error
from services.client.live import LiveTurns
from services.client.model import CheckReport, ModelInfo, decode_check, decode_model
from services.client.pools import PoolStats, decode_pools
from services.client.requests import Message, SamplingOptions, TurnInput, build_request
from services.client.sessions import SessionInfo, decode_session
from services.client.stream import RESUME_TIMEOUT_S, Patience
from services.client.turn import Turn
from services.limits import client_options

_Response = TypeVar("_Response")


CLOSE_TIMEOUT_S = 10.0
"""How long closing a session may take; a server that does not answer closes it when it has been idle for too long."""


def connect(
    target: str,
    *,
    resume_timeout_s: float = RESUME_TIMEOUT_S,
    on_reconnecting: Callable[[], None] | None = None,
) -> "Client":
    """A client of the server at `target`, as in `127.0.0.1:50051`. Use it as `async with connect(...) as client`.

    The connection is made with the first call. When it breaks, turns that run are resumed on a new one, for which the
    client tries for `resume_timeout_s`; 0 gives up at once. `on_reconnecting` is called when that takes over a second.
    """
    patience = Patience(resume_timeout_s=resume_timeout_s, on_reconnecting=on_reconnecting)
    return Client(aio.insecure_channel(target, options=client_options()), patience)


class Client:
    """Runs turns with and without sessions. Every call raises TenureError when the server says no, or nothing."""

    def __init__(self, channel: aio.Channel, patience: Patience | None = None) -> None:
        self._channel = channel
        self._patience = patience or Patience()
        self._live = LiveTurns()
        self._sessions = session_pb2_grpc.SessionStub(channel)
        self._generate = generate_pb2_grpc.GenerateStub(channel)
        self._admin = admin_pb2_grpc.AdminStub(channel)
        # By name: the published types of the generated stub know no methods.
        self._check_health = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the turns that still run, then lets the connection go. Idempotent. Sessions are closed by themselves."""
        try:
            await self._live.leave_all()
        finally:
            await self._channel.close()

    async def is_ready(self) -> bool:
        """Whether the server takes turns now. Raises TenureError when it does not answer at all."""
        answer = await _answer(self._check_health(health_pb2.HealthCheckRequest(service="readiness")))
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def session(
        self, session_id: str | None = None, *, streaming: bool = True, idle_timeout_s: float | None = None
    ) -> "ClientSession":
        """A session, opened by `async with` and closed at its end. Without a name the server chooses one.

        A streaming one, the default, is one conversation; with `streaming=False` it is a tree of turns with parents.
        After `idle_timeout_s` without a turn the server closes it; None is the server's setting.
        """
        request = session_pb2.OpenRequest(session_id=session_id, streaming=streaming, idle_timeout_s=idle_timeout_s)
        return ClientSession(self._sessions, self._generate, request, self._patience, LiveTurns(self._live))

    def generate(
        self,
        text: str | None = None,
        *,
        token_ids: Sequence[int] | None = None,
        messages: Sequence[Message] | None = None,
        turn_id: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Turn:
        """One turn without a session. `text` is continued as it is; `messages` go through the model's chat template."""
        request = build_request(TurnInput(text, token_ids, messages), turn_id, options)
        return Turn(
            self._generate, request, patience=replace(self._patience, timeout_s=timeout_s), live=LiveTurns(self._live)
        )

    async def pools(self) -> PoolStats:
        """The server's books."""
        return decode_pools(await _answer(self._admin.PoolStats(admin_pb2.PoolStatsRequest())))

    async def check(self) -> CheckReport:
        """Has the server prove its books page by page, now."""
        return decode_check(await _answer(self._admin.Check(admin_pb2.CheckRequest())))

    async def model(self) -> ModelInfo:
        """What is served."""
        return decode_model(await _answer(self._admin.GetModel(admin_pb2.GetModelRequest())))

    async def config(self) -> dict[str, str]:
        """The server's configuration in force."""
        response = await _answer(self._admin.GetConfig(admin_pb2.GetConfigRequest()))
        return {setting.name: setting.value for setting in response.settings}

    async def find_session(self, session_id: str) -> SessionInfo:
        """One open session. Raises TenureError, SESSION_UNKNOWN."""
        response = await _answer(self._sessions.Get(session_pb2.GetRequest(session_id=session_id)))
        return decode_session(response.session)

    async def sessions(self, page_size: int = 0) -> AsyncIterator[SessionInfo]:
        """All open sessions, in the order of their ids; asked for page by page as they are read."""
        request = session_pb2.ListRequest(page_size=page_size)
        while True:
            response = await _answer(self._sessions.List(request))
            for info in response.sessions:
                yield decode_session(info)
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token


class ClientSession:
    """An open session. The turns of a streaming one run one after the other; an ordinary one runs several branches."""

    def __init__(
        self,
        sessions: "session_pb2_grpc.SessionAsyncStub",
        generate: "generate_pb2_grpc.GenerateAsyncStub",
        request: session_pb2.OpenRequest,
        patience: Patience,
        live: LiveTurns,
    ) -> None:
        self._patience = patience
        self._live = live
        self._sessions = sessions
        self._generate = generate
        self._request = request
        self.session_id = request.session_id
        """Its name; when the server was to choose it, empty until the session is open."""

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
        response = await _answer(self._sessions.Open(self._request))
        self.session_id = response.session_id

    async def close(self) -> None:
        """Ends the turns that still run, and releases all that the session holds. Idempotent."""
        await self._live.leave_all()
        if self.session_id:
            request = session_pb2.CloseRequest(session_id=self.session_id)
            await _answer(self._sessions.Close(request, timeout=CLOSE_TIMEOUT_S))

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
        **options: Unpack[SamplingOptions],
    ) -> Turn:
        """The next turn: what the user says (`content`), or chat messages, or raw text, or token ids; one of them.

        In a session that is not streaming, `parent` is the turn to append to. While somebody reads a turn of a
        streaming session the server refuses a second one, SESSION_BUSY; a turn that was broken off is ended first.
        Raises RuntimeError when the session was not opened and has no name.
        """
        if not self.session_id:
            raise RuntimeError("the session is not open: use `async with client.session() as session`, or `open()` it")
        if content is not None:
            messages = (*(messages or ()), Message("user", content))
        request = build_request(TurnInput(text, token_ids, messages), turn_id, options)
        request.session_id = self.session_id
        if parent is not None:
            request.parent_turn_id = parent
        return Turn(
            self._generate,
            request,
            patience=replace(self._patience, timeout_s=timeout_s),
            live=self._live,
            one_at_a_time=self._request.streaming,
        )


async def _answer(call: Awaitable[_Response]) -> _Response:
    """Awaits a call. Raises TenureError."""
    try:
        return await call
    except aio.AioRpcError as error:
        raise to_error(error) from None
