"""`tenure.v1.Generate`: one turn in, its tokens out; how to go on with it when the stream is lost; and its abort."""

import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from grpc import aio

from engine.core.commands import AbortReason
from engine.core.ids import SessionId, TurnId
from engine.core.sampling import SEED_MAX
from engine.runtime.handle import Delta, Finished, Started, StreamReason, StreamRefusal, TurnStream
from protos.v1 import generate_pb2, generate_pb2_grpc
from services.backend import Backend, BackendCell
from services.calls import current_call
from services.codec import (
    decode_resume,
    decode_turn,
    encode_delta,
    encode_finished,
    encode_started,
    find_unknown_enum,
)
from services.content import digest_content
from services.drafts import ChatDraft, IdsDraft, InputDraft, TextDraft, TurnDraft
from services.errors import CallError, from_abort
from services.limits import LIMITS
from services.prompts import build_prompt, refuse_past_context
from services.validation import (
    require_known,
    validate,
    validate_abort,
    validate_resume,
    validate_turn,
)
from telemetry.names import Attr, Relation

RENDERINGS_MAX = 4
"""How often a chat turn is rendered anew because its session moved on meanwhile."""

_Responses = AsyncGenerator[generate_pb2.GenerateResponse, None]
_Context = aio.ServicerContext[generate_pb2.GenerateRequest, generate_pb2.GenerateResponse]
_ResumeContext = aio.ServicerContext[generate_pb2.ResumeRequest, generate_pb2.GenerateResponse]


class GenerateServicer(generate_pb2_grpc.GenerateServicer):
    def __init__(self, backend: BackendCell) -> None:
        self._backend = backend

    async def Generate(self, request: generate_pb2.GenerateRequest, context: _Context) -> _Responses:
        deadline = _deadline_of(context.time_remaining)
        backend = self._backend.require()
        # Before they are copied: a message holds millions of small ids.
        refuse_past_context(len(request.tokens.token_ids), backend.engine.context_len)
        require_known(find_unknown_enum(request))
        draft = decode_turn(request)
        given = validate_turn(draft)
        turn_id = draft.turn_id or secrets.token_hex(8)
        _describe_call(backend, draft, given, turn_id)
        events = await _open_stream(backend, draft, given, turn_id=turn_id, deadline=deadline)
        async with aclosing(_tell(turn_id, draft.session_id, events)) as messages:
            async for message in messages:
                yield message

    async def Resume(self, request: generate_pb2.ResumeRequest, context: _ResumeContext) -> _Responses:
        backend = self._backend.require()
        draft = decode_resume(request)
        validate_resume(draft)
        session_id = None if draft.session_id is None else SessionId(draft.session_id)
        _link_turn(backend, session_id, TurnId(draft.turn_id))
        events = await backend.engine.resume(session_id, TurnId(draft.turn_id), draft.from_token, draft.held_digest)
        async with aclosing(_tell(draft.turn_id, draft.session_id, events)) as messages:
            async for message in messages:
                yield message

    async def Abort(
        self,
        request: generate_pb2.AbortRequest,
        context: aio.ServicerContext[generate_pb2.AbortRequest, generate_pb2.AbortResponse],
    ) -> generate_pb2.AbortResponse:
        session_id = request.session_id if request.HasField("session_id") else None
        validate_abort(session_id, request.turn_id)
        current_call().set(Attr.TURN_ID, request.turn_id)
        current_call().set_session(session_id)
        await self._backend.require().engine.abort(
            None if session_id is None else SessionId(session_id), TurnId(request.turn_id)
        )
        return generate_pb2.AbortResponse()


_OPERATIONS: dict[type[InputDraft], str] = {
    ChatDraft: "chat",
    TextDraft: "text_completion",
    IdsDraft: "text_completion",
}
"""What a call for a turn does, in the words of the GenAI conventions."""


def _describe_call(backend: Backend, draft: TurnDraft, given: InputDraft, turn_id: str) -> None:
    call = current_call()
    call.name_after(_OPERATIONS[type(given)], backend.model_name)
    call.set(Attr.TURN_ID, turn_id)
    call.set_session(draft.session_id)


def _link_turn(backend: Backend, session_id: SessionId | None, turn_id: TurnId) -> None:
    """The call is for a turn that has begun before: its span leads to that."""
    call = current_call()
    call.set(Attr.TURN_ID, turn_id)
    call.set_session(session_id)
    found = None if backend.find_turn is None else backend.find_turn(session_id, turn_id)
    if found is not None:
        call.link(found, Relation.RESUMED)


async def _open_stream(
    backend: Backend,
    draft: TurnDraft,
    given: InputDraft,
    *,
    turn_id: str,
    deadline: Callable[[], float | None],
) -> TurnStream:
    """The turn's events: of a new turn, or of the one that the client named before."""
    content = b""
    if draft.turn_id is not None:
        # Before the input is made: what a repeated turn once followed may not be the end of its session any more.
        content = digest_content(draft)
        session_id = None if draft.session_id is None else SessionId(draft.session_id)
        attached = await backend.engine.attach(session_id, TurnId(turn_id), content)
        if attached is not None:
            _link_turn(backend, session_id, TurnId(turn_id))
            return attached
    seed = secrets.randbelow(SEED_MAX + 1)
    for renderings_left in reversed(range(RENDERINGS_MAX)):
        prompt = await build_prompt(backend, draft, given)
        deadline_s = deadline()  # what is left of it now: making the prompt takes time, too
        turn = validate(
            draft,
            prompt,
            turn_id=turn_id,
            seed=seed,
            deadline_s=deadline_s,
            caller=current_call().caller,
            content=content,
        )
        try:
            return await backend.engine.submit(turn)
        except StreamRefusal as refusal:
            if refusal.reason is not StreamReason.HISTORY_MOVED or not renderings_left:
                raise
    raise AssertionError("the last rendering was submitted or raised")


async def _tell(turn_id: str, session_id: str | None, events: TurnStream) -> _Responses:
    """Events as messages. Raises CallError behind the end of a turn that was aborted."""
    attempt = 0
    async with aclosing(events):
        async for event in events:
            match event:
                case Started():
                    attempt = event.attempt
                    yield encode_started(turn_id, session_id, event, current_call().caller.trace_id)
                case Delta():
                    yield encode_delta(event, attempt)
                case Finished():
                    yield encode_finished(event)
                    if isinstance(event.outcome, AbortReason):
                        raise CallError(from_abort(event.outcome, event.detail, event.incident_id))


def _deadline_of(time_remaining: Callable[[], float | None]) -> Callable[[], float | None]:
    """Tells the seconds until the turn of a call that begins now must have ended, a little before the call does."""
    began_with_s = time_remaining()
    if began_with_s is None:
        return lambda: None
    margin_s = LIMITS.deadline_margin(began_with_s)
    return lambda: max(0.0, (time_remaining() or 0.0) - margin_s)
