"""`tenure.v1.Session`: opens, shows, forks, rewinds and closes sessions."""

import asyncio
import secrets
from contextlib import suppress
from typing import TypeAlias

from grpc import aio

from engine.core.commands import Fork
from engine.core.errors import Refusal, RefusalReason
from engine.core.ids import SessionId, TurnId
from engine.runtime.handle import EngineClosed, EngineHandle
from protos.v1 import session_pb2, session_pb2_grpc
from services.backend import BackendCell
from services.calls import current_call
from services.codec import decode_fork, decode_list, decode_open, encode_fork, encode_sessions, encode_truncate
from services.errors import invalid_field
from services.listing import list_page
from services.validation import require_name, validate_fork, validate_list, validate_open

# In quotes: generic in the published types only.
_OpeningContext: TypeAlias = (
    "aio.ServicerContext[session_pb2.OpenRequest, session_pb2.OpenResponse]"
    " | aio.ServicerContext[session_pb2.ForkRequest, session_pb2.ForkResponse]"
)


class SessionServicer(session_pb2_grpc.SessionServicer):
    def __init__(self, backend: BackendCell) -> None:
        self._backend = backend
        self._closing: set[asyncio.Task[None]] = set()

    async def Open(
        self,
        request: session_pb2.OpenRequest,
        context: aio.ServicerContext[session_pb2.OpenRequest, session_pb2.OpenResponse],
    ) -> session_pb2.OpenResponse:
        draft = decode_open(request)
        validate_open(draft)
        session_id = SessionId(draft.session_id or secrets.token_hex(8))
        engine = self._backend.require().engine
        current_call().set_session(session_id)
        await engine.open_session(
            session_id,
            streaming=draft.streaming,
            idle_timeout_s=draft.idle_timeout_s,
            priority=draft.priority,
            caller=current_call().caller,
        )
        if not draft.session_id:
            await self._require_reader(context, engine, session_id)
        return session_pb2.OpenResponse(session_id=session_id)

    async def _require_reader(
        self,
        context: _OpeningContext,
        engine: EngineHandle,
        session_id: SessionId,
    ) -> None:
        """Closes a session whose name its client will not be told: nobody else could."""
        try:
            if _is_late(context):
                raise asyncio.CancelledError
            await context.send_initial_metadata(())  # fails when the call has ended
        except (asyncio.CancelledError, aio.InternalError):
            closing = asyncio.create_task(_close_unread(engine, session_id), name="close-unread")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            raise

    async def Close(
        self,
        request: session_pb2.CloseRequest,
        context: aio.ServicerContext[session_pb2.CloseRequest, session_pb2.CloseResponse],
    ) -> session_pb2.CloseResponse:
        require_name("session_id", request.session_id, "which session?")
        current_call().set_session(request.session_id)
        await self._backend.require().engine.close_session(
            SessionId(request.session_id), drain=request.drain, caller=current_call().caller
        )
        return session_pb2.CloseResponse()

    async def Fork(
        self,
        request: session_pb2.ForkRequest,
        context: aio.ServicerContext[session_pb2.ForkRequest, session_pb2.ForkResponse],
    ) -> session_pb2.ForkResponse:
        draft = decode_fork(request)
        validate_fork(draft)
        new_session_id = SessionId(draft.new_session_id or secrets.token_hex(8))
        engine, caller = self._backend.require().engine, current_call().caller
        current_call().set_session(new_session_id)
        lengths = await engine.fork_session(
            Fork(
                SessionId(draft.session_id),
                new_session_id,
                at_turn=None if draft.at_turn is None else TurnId(draft.at_turn),
                at_len=draft.at_len,
                trace_id=caller.trace_id,
                caller_span=caller.span,
            )
        )
        if not draft.new_session_id:
            await self._require_reader(context, engine, new_session_id)
        return encode_fork(new_session_id, lengths)

    async def Truncate(
        self,
        request: session_pb2.TruncateRequest,
        context: aio.ServicerContext[session_pb2.TruncateRequest, session_pb2.TruncateResponse],
    ) -> session_pb2.TruncateResponse:
        require_name("session_id", request.session_id, "which session?")
        if not request.HasField("length"):
            raise invalid_field("length", "is not set; 0 would empty the session")
        current_call().set_session(request.session_id)
        engine = self._backend.require().engine
        return encode_truncate(await engine.truncate_session(SessionId(request.session_id), request.length))

    async def Get(
        self,
        request: session_pb2.GetRequest,
        context: aio.ServicerContext[session_pb2.GetRequest, session_pb2.GetResponse],
    ) -> session_pb2.GetResponse:
        require_name("session_id", request.session_id, "which session?")
        snapshot = await self._backend.require().engine.snapshot()
        found = tuple(state for state in snapshot.sessions if state.session_id == request.session_id)
        if not found:
            name = request.session_id
            message = f"no open session {name!r}"
            raise Refusal(RefusalReason.SESSION_UNKNOWN, message, field="session_id", value=name)
        return session_pb2.GetResponse(session=encode_sessions(found, snapshot.turns)[0])

    async def List(
        self,
        request: session_pb2.ListRequest,
        context: aio.ServicerContext[session_pb2.ListRequest, session_pb2.ListResponse],
    ) -> session_pb2.ListResponse:
        draft = decode_list(request)
        page_size = validate_list(draft)
        snapshot = await self._backend.require().engine.snapshot()
        page, token = list_page(snapshot.sessions, page_size, draft.page_token)
        return session_pb2.ListResponse(sessions=encode_sessions(page, snapshot.turns), next_page_token=token)


def _is_late(context: _OpeningContext) -> bool:
    """Whether the call's deadline has passed: its client listens no longer."""
    remaining_s: float | None = context.time_remaining()  # None without one, whatever the published types say
    return remaining_s is not None and remaining_s <= 0


async def _close_unread(engine: EngineHandle, session_id: SessionId) -> None:
    with suppress(Refusal, EngineClosed):
        await engine.close_session(session_id)
