"""`tenure.v1.Generate`: one turn in, its tokens out; and its abort."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing

from grpc import aio

from engine.core.commands import AbortReason
from engine.core.ids import SessionId, TurnId
from engine.runtime.handle import Delta, Finished, Started, TurnRequest
from protos.v1 import generate_pb2, generate_pb2_grpc
from services.backend import Backend, BackendCell
from services.codec import decode_turn, encode_delta, encode_finished, encode_started
from services.errors import CallError, from_abort, invalid_field
from services.limits import LIMITS
from services.prompts import build_prompt
from services.trace_context import read_trace_id
from services.validation import check_name, validate, validate_turn

_Responses = AsyncGenerator[generate_pb2.GenerateResponse, None]
_Context = aio.ServicerContext[generate_pb2.GenerateRequest, generate_pb2.GenerateResponse]


class GenerateServicer(generate_pb2_grpc.GenerateServicer):
    def __init__(self, backend: BackendCell) -> None:
        self._backend = backend

    async def Generate(self, request: generate_pb2.GenerateRequest, context: _Context) -> _Responses:  # noqa: N802 - the name in the proto
        backend = self._backend.require()
        turn = await _build_turn(backend, request, _deadline_s(context), read_trace_id(context.invocation_metadata()))
        async with aclosing(await backend.engine.submit(turn)) as events:
            async for event in events:
                match event:
                    case Started():
                        yield encode_started(turn.turn_id, turn.session_id, event)
                    case Delta():
                        yield encode_delta(event)
                    case Finished():
                        yield encode_finished(event)
                        if isinstance(event.outcome, AbortReason):
                            raise CallError(from_abort(event.outcome, event.detail))

    async def Abort(  # noqa: N802 - the name in the proto
        self,
        request: generate_pb2.AbortRequest,
        context: aio.ServicerContext[generate_pb2.AbortRequest, generate_pb2.AbortResponse],
    ) -> generate_pb2.AbortResponse:
        if not request.turn_id:
            raise invalid_field("turn_id", "is empty: which turn?")
        session_id = request.session_id if request.HasField("session_id") else None
        check_name("session_id", session_id)
        check_name("turn_id", request.turn_id)
        await self._backend.require().engine.abort(
            None if session_id is None else SessionId(session_id), TurnId(request.turn_id)
        )
        return generate_pb2.AbortResponse()


async def _build_turn(
    backend: Backend, request: generate_pb2.GenerateRequest, deadline_s: float | None, trace_id: str
) -> TurnRequest:
    draft = decode_turn(request)
    given = validate_turn(draft)
    input_ids = await build_prompt(backend, draft, given)
    turn_id = draft.turn_id or secrets.token_hex(8)
    return validate(draft, input_ids, turn_id=turn_id, deadline_s=deadline_s, trace_id=trace_id)


def _deadline_s(context: _Context) -> float | None:
    """Seconds until the turn must have ended, a little before the call does."""
    remaining_s: float | None = context.time_remaining()
    return None if remaining_s is None else max(0.0, remaining_s - LIMITS.deadline_margin_s)
