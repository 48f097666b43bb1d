"""`tenure.v1.Session`: opens and closes sessions."""

import secrets

from grpc import aio

from engine.core.ids import SessionId
from protos.v1 import session_pb2, session_pb2_grpc
from services.backend import BackendCell
from services.codec import decode_open
from services.errors import invalid_field
from services.validation import check_name, validate_open


class SessionServicer(session_pb2_grpc.SessionServicer):
    def __init__(self, backend: BackendCell) -> None:
        self._backend = backend

    async def Open(  # noqa: N802 - the name in the proto
        self,
        request: session_pb2.OpenRequest,
        context: aio.ServicerContext[session_pb2.OpenRequest, session_pb2.OpenResponse],
    ) -> session_pb2.OpenResponse:
        draft = decode_open(request)
        validate_open(draft)
        session_id = draft.session_id or secrets.token_hex(8)
        engine = self._backend.require().engine
        await engine.open_session(SessionId(session_id), streaming=draft.streaming, idle_timeout_s=draft.idle_timeout_s)
        return session_pb2.OpenResponse(session_id=session_id)

    async def Close(  # noqa: N802 - the name in the proto
        self,
        request: session_pb2.CloseRequest,
        context: aio.ServicerContext[session_pb2.CloseRequest, session_pb2.CloseResponse],
    ) -> session_pb2.CloseResponse:
        if not request.session_id:
            raise invalid_field("session_id", "is empty: which session?")
        check_name("session_id", request.session_id)
        await self._backend.require().engine.close_session(SessionId(request.session_id))
        return session_pb2.CloseResponse()
