"""The client: connect, open sessions, run turns."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self, Unpack

from grpc import aio
from grpc_health.v1 import health_pb2

from protos.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    generate_pb2_grpc,
    incidents_pb2,
    ownership_pb2,
    session_pb2,
    session_pb2_grpc,
    traces_pb2,
)
from services.client.asking import Asking
from services.client.history import History, decode_history
from services.client.incidents import Incident, decode_incident
from services.client.inspection import ServerState, UnitHistory, decode_snapshot, decode_unit
from services.client.kv_events import KvEventSource, KvItem, decode_source, read_events
from services.client.live import LiveTurns
from services.client.model import CheckReport, ModelInfo, decode_check, decode_model
from services.client.options import OptionError, require_name, set_field
from services.client.pools import KINDS, Flushed, PoolStats, decode_pools
from services.client.requests import Message, TurnInput, TurnOptions, build_request
from services.client.session import ClientSession
from services.client.sessions import SessionInfo, decode_session
from services.client.stream import RESUME_TIMEOUT_S, Patience
from services.client.traces import Trace, decode_trace
from services.client.turn import Turn
from services.limits import client_options


def connect(
    target: str,
    *,
    resume_timeout_s: float = RESUME_TIMEOUT_S,
    on_reconnecting: Callable[[], None] | None = None,
    answer_timeout_s: float | None = None,
) -> "Client":
    """A client of the server at `target`, as in `127.0.0.1:50051`. Use it as `async with connect(...) as client`.

    The connection is made with the first call. When it breaks, turns that run are resumed on a new one, for which the
    client tries for `resume_timeout_s`; 0 gives up at once. `on_reconnecting` is called when that takes over a second.
    Calls that only look at the server are answered within `answer_timeout_s`, or raise TenureError, NO_ANSWER; without
    it within 5 s, or 30 s where more has to be put together. Raises OptionError for what can not be.
    """
    patience = Patience(resume_timeout_s=resume_timeout_s, on_reconnecting=on_reconnecting)
    return Client(aio.insecure_channel(target, options=client_options()), patience, answer_timeout_s)


class Client:
    """Runs turns with and without sessions. Every call raises TenureError when the server says no, or nothing."""

    def __init__(
        self, channel: aio.Channel, patience: Patience | None = None, answer_timeout_s: float | None = None
    ) -> None:
        self._channel = channel
        self._asking = Asking(channel, answer_timeout_s)
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
        """Ends the turns that still run, then lets the connection go. Idempotent. It closes no session."""
        try:
            await self._live.leave_all()
        finally:
            await self._channel.close()

    async def is_ready(self) -> bool:
        """Whether the server takes turns now. Raises TenureError when it does not answer at all."""
        return await self.is_serving("readiness")

    async def is_serving(self, service: str = "") -> bool:
        """What a probe is told: of `startup`, `liveness` or `readiness`. Also answered on a server's health port."""
        response = await self._asking.ask(
            "is_serving", self._check_health, health_pb2.HealthCheckRequest(service=service)
        )
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    def session(
        self,
        session_id: str | None = None,
        *,
        streaming: bool = True,
        idle_timeout_s: float | None = None,
        priority: int = 0,
    ) -> ClientSession:
        """A session, opened by `async with` and closed at its end. Without a name the server chooses one.

        A streaming one, the default, is one conversation; with `streaming=False` it is a tree of turns with parents.
        After `idle_timeout_s` without a turn the server closes it; None is the server's setting. `priority` is that of
        its turns which name none. Raises OptionError for what can not be sent.
        """
        require_name("session_id", session_id)
        request = session_pb2.OpenRequest()
        given = {"session_id": session_id, "streaming": streaming, "idle_timeout_s": idle_timeout_s}
        for name, value in (given | {"priority": priority}).items():
            set_field(request, name, value)
        return ClientSession(self._sessions, self._generate, request, self._patience, LiveTurns(self._live))

    def generate(
        self,
        text: str | None = None,
        *,
        token_ids: Sequence[int] | None = None,
        messages: Sequence[Message] | None = None,
        turn_id: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[TurnOptions],
    ) -> Turn:
        """One turn without a session. `text` is continued as it is; `messages` go through the model's chat template."""
        request = build_request(TurnInput(text, token_ids, messages), turn_id, options)
        return Turn(
            self._generate, request, patience=replace(self._patience, timeout_s=timeout_s), live=LiveTurns(self._live)
        )

    async def pools(self) -> PoolStats:
        """The server's books."""
        return decode_pools(await self._asking.ask("pools", self._admin.PoolStats, admin_pb2.PoolStatsRequest()))

    async def check(self) -> CheckReport:
        """Has the server prove its books page by page, now."""
        return decode_check(await self._asking.ask("check", self._admin.Check, admin_pb2.CheckRequest()))

    async def model(self) -> ModelInfo:
        """What is served."""
        return decode_model(await self._asking.ask("model", self._admin.GetModel, admin_pb2.GetModelRequest()))

    async def config(self) -> dict[str, str]:
        """The server's configuration in force."""
        response = await self._asking.ask("config", self._admin.GetConfig, admin_pb2.GetConfigRequest())
        return {setting.name: setting.value for setting in response.settings}

    async def explain(self, unit: int, pool: str = "full") -> UnitHistory:
        """Who owns a page (of `swa`: an SWA page, `mamba`: a state, `rows`: a row), and who did before.

        Raises OptionError for a pool that does not exist.
        """
        numbers = {name: number for number, name in KINDS.items()}
        if pool not in numbers:
            raise OptionError("pool", f"there is none of the kind {pool!r}; there are {', '.join(numbers)}")
        request = admin_pb2.ExplainRequest(pool=numbers[pool])
        set_field(request, "unit", unit)
        response = await self._asking.ask("explain", self._admin.Explain, request)
        return decode_unit(response.history)

    async def snapshot(self) -> ServerState:
        """Pools, turns, sessions and steps in flight, at one instant."""
        return decode_snapshot(await self._asking.ask("snapshot", self._admin.Snapshot, admin_pb2.SnapshotRequest()))

    async def history(self, last_s: float | None = None, *, with_facts: bool = True) -> History:
        """The last so many seconds, or all that the server remembers: at most an hour."""
        request = admin_pb2.GetHistoryRequest(without_facts=not with_facts)
        set_field(request, "last_s", last_s)
        return decode_history(await self._asking.ask("history", self._admin.GetHistory, request))

    async def incidents(self) -> tuple[Incident, ...]:
        """What went wrong lately, oldest first."""
        response = await self._asking.ask("incidents", self._admin.ListIncidents, incidents_pb2.ListIncidentsRequest())
        return tuple(map(decode_incident, response.incidents))

    async def dump(self, incident_id: str | None = None) -> str:
        """All that is known of an incident, or of this moment. Raises TenureError, INCIDENT_UNKNOWN."""
        request = incidents_pb2.DumpRequest()
        set_field(request, "incident_id", incident_id)
        response = await self._asking.ask("dump", self._admin.Dump, request)
        return response.text

    def kv_events(self, from_sequence: int | None = None, log_id: str | None = None) -> AsyncGenerator[KvItem, None]:
        """The books of this moment, then every event about them, in order and for ever: `KvBooks` follows them.

        With `from_sequence`, of log `log_id`, events from that one on; the books first when it is not kept any more.
        Books in between mean that the reader was too slow, and that events were lost. Close it to stop listening.
        """
        request = ownership_pb2.KvEventsRequest()
        set_field(request, "from_sequence", from_sequence)
        set_field(request, "log_id", log_id)
        open_call = partial(self._admin.KvEvents, request)
        return read_events(open_call, self._asking, is_answered_at_once=from_sequence is None)

    async def kv_event_sources(self) -> tuple[KvEventSource, ...]:
        """Where other programs are told what the prefix cache holds; empty when they are not."""
        request = ownership_pb2.GetKvEventSourcesRequest()
        response = await self._asking.ask("kv_event_sources", self._admin.GetKvEventSources, request)
        return tuple(map(decode_source, response.sources))

    async def flush_cache(self) -> Flushed:
        """Frees all that the prefix cache holds and nobody uses."""
        request = ownership_pb2.FlushCacheRequest()
        response = await self._asking.ask("flush_cache", self._admin.FlushCache, request)
        return Flushed(response.pages, response.swa_pages, response.states)

    async def trace(
        self, turn_id: str | None = None, *, session_id: str | None = None, trace_id: str | None = None
    ) -> Trace:
        """The spans of the newest turn that has ended, and of all else in its trace; or of a trace.

        `turn_id` and `session_id` narrow it down. Of a trace id its first 8 digits, or more, are enough when no other
        trace begins so. Raises TenureError, TRACE_UNKNOWN, when the server has none of them, or none any more.
        """
        request = traces_pb2.GetTraceRequest()
        given = {"turn_id": turn_id, "session_id": session_id, "trace_id": trace_id}
        for name, value in given.items():
            require_name(name, value)
            set_field(request, name, value)
        return decode_trace(await self._asking.ask("trace", self._admin.GetTrace, request))

    async def find_session(self, session_id: str) -> SessionInfo:
        """One open session. Raises TenureError, SESSION_UNKNOWN."""
        request = session_pb2.GetRequest()
        set_field(request, "session_id", session_id)
        response = await self._asking.ask("find_session", self._sessions.Get, request)
        return decode_session(response.session)

    async def sessions(self, page_size: int = 0) -> AsyncIterator[SessionInfo]:
        """All open sessions, in the order of their ids; asked for page by page as they are read."""
        request = session_pb2.ListRequest()
        set_field(request, "page_size", page_size)
        while True:
            response = await self._asking.ask("sessions", self._sessions.List, request)
            for info in response.sessions:
                yield decode_session(info)
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token
