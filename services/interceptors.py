"""The one place where exceptions of a call become its status."""

import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Never, TypeAlias, TypeVar, cast

import grpc
from grpc import aio

from engine.core.errors import Refusal
from engine.runtime.handle import EngineClosed, EngineFailed, StreamRefusal
from services.errors import DETAILS_KEY, CallError, EdgeReason, Problem, from_refusal, from_stream_refusal, to_status

_log = logging.getLogger(__name__)

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Answer = TypeVar("_Answer")

# A name in quotes: the handler's class is generic in its published types only, not when it runs.
_MaybeHandler: TypeAlias = "grpc.RpcMethodHandler[_Request, _Response] | None"
_Unary = Callable[[_Request, aio.ServicerContext[_Request, _Response]], Awaitable[_Response]]
_Stream = Callable[[_Request, aio.ServicerContext[_Request, _Response]], AsyncGenerator[_Response, None]]


class ErrorInterceptor(aio.ServerInterceptor):
    """Wraps every unary and server-streaming method.

    Streams are driven from here, by `write`, so that a servicer's generator is closed at once when its call is
    cancelled. A cancellation is never turned into something else.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], "Awaitable[_MaybeHandler[_Request, _Response]]"],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "_MaybeHandler[_Request, _Response]":
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.startswith("/grpc."):
            return handler  # unknown methods, and the health service, which answers for itself
        # The published types know synchronous handlers only; the casts say what an asyncio server really has here.
        serializers = (handler.request_deserializer, handler.response_serializer)
        if handler.unary_stream is not None:
            stream = cast("_Stream[_Request, _Response]", handler.unary_stream)
            driver = cast("Callable[[_Request, object], Iterator[_Response]]", _wrap_stream(stream, method))
            return grpc.unary_stream_rpc_method_handler(driver, *serializers)
        assert handler.unary_unary is not None, f"{method}: only unary requests are served"
        unary = cast("_Unary[_Request, _Response]", handler.unary_unary)
        return grpc.unary_unary_rpc_method_handler(
            cast("Callable[[_Request, object], _Response]", _wrap_unary(unary, method)), *serializers
        )


def _wrap_unary(behavior: _Unary[_Request, _Response], method: str) -> _Unary[_Request, _Response]:
    async def answer(request: _Request, context: aio.ServicerContext[_Request, _Response]) -> _Response:
        return await _guard(behavior(request, context), context, method)

    return answer


def _wrap_stream(
    behavior: _Stream[_Request, _Response], method: str
) -> Callable[[_Request, aio.ServicerContext[_Request, _Response]], Awaitable[None]]:
    async def answer(request: _Request, context: aio.ServicerContext[_Request, _Response]) -> None:
        await _guard(_drive(behavior(request, context), context), context, method)

    return answer


async def _drive(messages: AsyncGenerator[_Response, None], context: aio.ServicerContext[_Request, _Response]) -> None:
    async with aclosing(messages):
        async for message in messages:
            await context.write(message)


async def _guard(call: Awaitable[_Answer], context: aio.ServicerContext[_Request, _Response], method: str) -> _Answer:
    """Awaits `call`; whatever it raises becomes the call's status."""
    try:
        return await call
    except Exception as error:  # one of the three allowed: whatever broke, the client gets a status and we get a line
        problem = _to_problem(error, method)
    return await _abort(context, problem)


def _to_problem(error: Exception, method: str) -> Problem:
    match error:
        case CallError():
            return error.problem
        case Refusal():
            return from_refusal(error)
        case StreamRefusal():
            return from_stream_refusal(error)
        case EngineFailed():
            return _incident(error, method, EdgeReason.ENGINE_FAILED)
        case EngineClosed():
            return Problem(grpc.StatusCode.UNAVAILABLE, EdgeReason.SERVER_STOPPING.value, str(error), retry_after_s=2.0)
        case _:
            return _incident(error, method, EdgeReason.INTERNAL_ERROR)


def _incident(error: Exception, method: str, reason: EdgeReason) -> Problem:
    """A fault of ours: the client gets a number to report, the log gets the rest."""
    incident_id = secrets.token_hex(6)
    _log.error("event=incident incident_id=%s method=%s reason=%s", incident_id, method, reason, exc_info=error)
    message = f"something is wrong on the server; please report incident {incident_id}"
    return Problem(grpc.StatusCode.INTERNAL, reason.value, message, metadata={"incident_id": incident_id})


async def _abort(context: aio.ServicerContext[_Request, _Response], problem: Problem) -> Never:
    status = to_status(problem)
    details = ((DETAILS_KEY, status.SerializeToString()),)
    await context.abort(problem.code, status.message, details)
