"""The client: connect, open sessions, run turns."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from grpc import aio
from grpc_health.v1 import health_pb2

from protos.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    generate_pb2,
    generate_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
    types_pb2,
)
from services.client.errors import TenureError, to_error
from services.client.pools import PoolStats, decode_pools
from services.client.turn import Turn
from services.limits import client_options


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a dialogue."""

    role: str
    content: str


def connect(target: str) -> "Client":
    """A client of the server at `target`, as in `127.0.0.1:50051`. Use it as `async with connect(...) as client`.

    The connection is made with the first call.
    """
    return Client(aio.insecure_channel(target, options=client_options()))


class Client:
    """Runs turns with and without sessions. Every call raises TenureError when the server says no, or nothing."""

    def __init__(self, channel: aio.Channel) -> None:
        self._channel = channel
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
        await self._channel.close()

    async def is_ready(self) -> bool:
        """Whether the server takes turns now. Raises TenureError when it does not answer at all."""
        try:
            answer = await self._check_health(health_pb2.HealthCheckRequest(service="readiness"))
        except aio.AioRpcError as error:
            raise to_error(error) from None
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def session(
        self, session_id: str | None = None, *, streaming: bool = True, idle_timeout_s: float | None = None
    ) -> "ClientSession":
        """A session, opened by `async with` and closed at its end. Without a name the server chooses one."""
        request = session_pb2.OpenRequest(session_id=session_id, streaming=streaming, idle_timeout_s=idle_timeout_s)
        return ClientSession(self._sessions, self._generate, request)

    def generate(
        self,
        text: str | None = None,
        *,
        token_ids: Sequence[int] | None = None,
        messages: Sequence[Message] | None = None,
        turn_id: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        ignore_eos: bool = False,
        timeout_s: float | None = None,
    ) -> Turn:
        """One turn without a session. `text` is continued as it is; `messages` go through the model's chat template."""
        request = _build_request(text, token_ids, messages, turn_id, max_tokens, temperature, ignore_eos)
        return Turn(self._generate, request, timeout_s=timeout_s)

    async def pools(self) -> PoolStats:
        """The server's books."""
        try:
            return decode_pools(await self._admin.PoolStats(admin_pb2.PoolStatsRequest()))
        except aio.AioRpcError as error:
            raise to_error(error) from None


class ClientSession:
    """An open session. Its turns run one after the other."""

    def __init__(
        self,
        sessions: "session_pb2_grpc.SessionAsyncStub",
        generate: "generate_pb2_grpc.GenerateAsyncStub",
        request: session_pb2.OpenRequest,
    ) -> None:
        self._sessions = sessions
        self._generate = generate
        self._request = request
        self._last: Turn | None = None
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
        try:
            response = await self._sessions.Open(self._request)
        except aio.AioRpcError as error:
            raise to_error(error) from None
        self.session_id = response.session_id

    async def close(self) -> None:
        """Ends a running turn, and releases all that the session holds. Idempotent."""
        if self._last is not None:
            await self._last.leave()
        try:
            await self._sessions.Close(session_pb2.CloseRequest(session_id=self.session_id))
        except aio.AioRpcError as error:
            raise to_error(error) from None

    def turn(
        self,
        content: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        text: str | None = None,
        token_ids: Sequence[int] | None = None,
        turn_id: str | None = None,
        parent: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        ignore_eos: bool = False,
        timeout_s: float | None = None,
    ) -> Turn:
        """The next turn: what the user says (`content`), or chat messages, or raw text, or token ids; one of them.

        In a session that is not streaming, `parent` is the turn to append to.
        """
        if content is not None:
            messages = (*(messages or ()), Message("user", content))
        request = _build_request(text, token_ids, messages, turn_id, max_tokens, temperature, ignore_eos)
        request.session_id = self.session_id
        if parent is not None:
            request.parent_turn_id = parent
        predecessor = self._last if self._request.streaming else None
        self._last = Turn(self._generate, request, predecessor=predecessor, timeout_s=timeout_s)
        return self._last


def _build_request(
    text: str | None,
    token_ids: Sequence[int] | None,
    messages: Sequence[Message] | None,
    turn_id: str | None,
    max_tokens: int | None,
    temperature: float | None,
    ignore_eos: bool,
) -> generate_pb2.GenerateRequest:
    given = [
        name for name, value in (("text", text), ("token_ids", token_ids), ("messages", messages)) if value is not None
    ]
    if len(given) != 1:
        raise ValueError(f"give one of text, token_ids and messages, not {', '.join(given) or 'none'}")
    request = generate_pb2.GenerateRequest(
        # The client names its turns: only so can it abort one whose first message it has not seen.
        turn_id=uuid.uuid4().hex if turn_id is None else turn_id,
        sampling=types_pb2.SamplingParams(max_tokens=max_tokens, temperature=temperature, ignore_eos=ignore_eos),
    )
    if text is not None:
        request.text.text = text
        request.text.SetInParent()
    elif token_ids is not None:
        request.tokens.token_ids.extend(token_ids)
        request.tokens.SetInParent()
    else:
        request.chat.messages.extend(
            types_pb2.ChatMessage(role=message.role, content=message.content) for message in messages or ()
        )
        request.chat.SetInParent()
    return request
