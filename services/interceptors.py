"""The one place where exceptions of a call become its status."""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Never, TypeAlias, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from engine.core.errors import Refusal
from engine.runtime.handle import EngineClosed, EngineFailed, StreamRefusal
from services.calls import enter_call
from services.errors import (
    DETAILS_KEY,
    INCIDENT_KEY,
    CallError,
    EdgeReason,
    Problem,
    from_refusal,
    from_stream_refusal,
    to_status,
)
from telemetry.spans.call_span import CallSpan
from telemetry.spans.context import read_headers
from telemetry.spans.tracer import Tracer

_log = logging.getLogger(__name__)

DRAWN_SERVICES = ("tenure.v1.Session/", "tenure.v1.Generate/")
"""Whose calls are drawn in any case. Whoever watches the server asks the others again and again."""

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Answer = TypeVar("_Answer")

# Names in quotes: gRPC's classes are generic in their published types only, not when it runs.
_Handler: TypeAlias = "grpc.RpcMethodHandler[_Request, _Response]"
_Context: TypeAlias = "aio.ServicerContext[_Request, _Response]"
_Decode: TypeAlias = Callable[[bytes], _Request]
_Unary: TypeAlias = "Callable[[_Request, aio.ServicerContext[_Request, _Response]], Awaitable[_Response]]"
_Stream: TypeAlias = "Callable[[_Request, aio.ServicerContext[_Request, _Response]], AsyncGenerator[_Response, None]]"
_Exchange: TypeAlias = (
    "Callable[[AsyncIterator[_Request], aio.ServicerContext[_Request, _Response]], AsyncGenerator[_Response, None]]"
)
_RawUnary: TypeAlias = "Callable[[bytes, aio.ServicerContext[_Request, _Response]], Awaitable[_Response]]"
_RawExchange: TypeAlias = (
    "Callable[[AsyncIterator[bytes], aio.ServicerContext[_Request, _Response]], AsyncGenerator[_Response, None]]"
)


class ErrorInterceptor(aio.ServerInterceptor):
    """Wraps every method, and reads the requests itself, so that one that can not be read gets its status from here.

    Every call of `DRAWN_SERVICES` is a span, with the status that its client got; of other services those that name the
    trace that they belong to.

    Streams of ours are driven from here, by `write`, so that a servicer's generator is closed at once when its call is
    cancelled. A cancellation is never turned into something else.
    """

    def __init__(self, tracer: Tracer | None = None) -> None:
        """Without a tracer nothing is drawn."""
        self._tracer = tracer

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], "Awaitable[_Handler[_Request, _Response] | None]"],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "_Handler[_Request, _Response] | None":
        handler = await continuation(handler_call_details)
        return None if handler is None else _wrap(handler, handler_call_details.method, self._tracer)


def _wrap(
    handler: "_Handler[_Request, _Response]", method: str, tracer: Tracer | None
) -> "_Handler[_Request, _Response]":
    """Health and reflection, which answer for themselves, only have their requests read here."""
    # The published types know synchronous handlers only; the casts say what an asyncio server really has here.
    decode = handler.request_deserializer
    assert decode is not None, f"{method}: its requests are messages"
    is_ours = not method.startswith("/grpc.")
    behavior: object
    if handler.stream_stream is not None:
        behavior = _wrap_exchange(cast("_Exchange[_Request, _Response]", handler.stream_stream), decode, method)
        build = grpc.stream_stream_rpc_method_handler
    elif handler.unary_stream is not None:
        if is_ours:
            stream = cast("_Stream[_Request, _Response]", handler.unary_stream)
            behavior = _wrap_stream(stream, decode, method, tracer)
        else:  # the health service's Watch writes by itself, as a unary method that returns nothing
            behavior = _wrap_foreign(cast("_Unary[_Request, _Response]", handler.unary_stream), decode, method)
        build = grpc.unary_stream_rpc_method_handler
    else:
        assert handler.unary_unary is not None, f"{method}: a stream of requests has a stream of answers"
        unary = cast("_Unary[_Request, _Response]", handler.unary_unary)
        behavior = _wrap_unary(unary, decode, method, tracer) if is_ours else _wrap_foreign(unary, decode, method)
        build = grpc.unary_unary_rpc_method_handler
    return cast("_Handler[_Request, _Response]", build(behavior, None, handler.response_serializer))


def _wrap_unary(
    behavior: "_Unary[_Request, _Response]", decode: _Decode[_Request], method: str, tracer: Tracer | None
) -> "_RawUnary[_Request, _Response]":
    async def answer(raw: bytes, context: "_Context[_Request, _Response]") -> _Response:
        with _drawn(tracer, method, context) as span:
            request = await _read(raw, decode, context, method, span)
            return await _guard(behavior(request, context), context, method, span)

    return answer


def _wrap_stream(
    behavior: "_Stream[_Request, _Response]", decode: _Decode[_Request], method: str, tracer: Tracer | None
) -> "Callable[[bytes, _Context[_Request, _Response]], Awaitable[None]]":
    async def answer(raw: bytes, context: "_Context[_Request, _Response]") -> None:
        with _drawn(tracer, method, context) as span:
            request = await _read(raw, decode, context, method, span)
            await _guard(_drive(behavior(request, context), context), context, method, span)

    return answer


def _wrap_foreign(
    behavior: "_Unary[_Request, _Response]", decode: _Decode[_Request], method: str
) -> "_RawUnary[_Request, _Response]":
    async def answer(raw: bytes, context: "_Context[_Request, _Response]") -> _Response:
        return await behavior(await _read(raw, decode, context, method), context)

    return answer


def _wrap_exchange(
    behavior: "_Exchange[_Request, _Response]", decode: _Decode[_Request], method: str
) -> "_RawExchange[_Request, _Response]":
    async def answer(
        raws: AsyncIterator[bytes], context: "_Context[_Request, _Response]"
    ) -> AsyncGenerator[_Response, None]:
        requests = (await _read(raw, decode, context, method) async for raw in raws)
        async with aclosing(behavior(requests, context)) as messages:
            async for message in messages:
                yield message

    return answer


async def _read(
    raw: bytes,
    decode: _Decode[_Request],
    context: "_Context[_Request, _Response]",
    method: str,
    span: CallSpan | None = None,
) -> _Request:
    try:
        return decode(raw)
    except DecodeError:  # no entry in the log: whoever sends such things could fill it
        message = f"the request of {method} can not be read: it is no message of its type, or a text in it no UTF-8"
    problem = Problem(grpc.StatusCode.INVALID_ARGUMENT, EdgeReason.FIELD_INVALID.value, message)
    return await _abort(context, problem, span)


async def _drive(messages: AsyncGenerator[_Response, None], context: "_Context[_Request, _Response]") -> None:
    async with aclosing(messages):
        async for message in messages:
            await context.write(message)


async def _guard(
    call: Awaitable[_Answer], context: "_Context[_Request, _Response]", method: str, span: CallSpan
) -> _Answer:
    """Awaits `call`; whatever it raises becomes the call's status."""
    try:
        return await call
    except aio.InternalError:
        raise  # the call has ended under us: there is nobody to tell
    except Exception as error:  # allowed (ADR 5): whatever broke, the client gets a status and we get a line
        problem = _to_problem(error, method)
    return await _abort(context, problem, span)


@contextmanager
def _drawn(tracer: Tracer | None, method: str, context: "_Context[_Request, _Response]") -> Iterator[CallSpan]:
    """The span of this call, ended whatever becomes of it: a call that leaves without a status was cancelled, or had no
    time left."""
    parent = read_headers(context.invocation_metadata())
    is_drawn = parent is not None or method.lstrip("/").startswith(DRAWN_SERVICES)
    span = CallSpan(tracer if is_drawn else None, method, parent)
    enter_call(span)
    code = grpc.StatusCode.UNKNOWN  # of what escapes from here, unless its status was told: then the span has ended
    try:
        yield span
        code = grpc.StatusCode.OK
    except (asyncio.CancelledError, aio.InternalError):
        remaining_s: float | None = context.time_remaining()  # None without one, whatever the published types say
        is_late = remaining_s is not None and remaining_s <= 0
        code = grpc.StatusCode.DEADLINE_EXCEEDED if is_late else grpc.StatusCode.CANCELLED
        raise
    finally:
        _end_span(span, code)


def _end_span(span: CallSpan, code: grpc.StatusCode, message: str = "") -> None:
    number: int = code.value[0]
    span.end(code.name, number, message)


def is_worth_logging(record: logging.LogRecord) -> bool:
    """False for gRPC's entry that an answer could not be sent: its client is gone, which is no error of ours.

    A filter for the logger `GRPC_LOGGER`.
    """
    return record.exc_info is None or not isinstance(record.exc_info[1], aio.InternalError)


GRPC_LOGGER = "grpc._cython.cygrpc"
"""Where gRPC logs what goes wrong in calls."""


def _to_problem(error: Exception, method: str) -> Problem:
    match error:
        case CallError():
            return error.problem
        case Refusal():
            return from_refusal(error)
        case StreamRefusal():
            return from_stream_refusal(error)
        case EngineFailed():
            return _engine_failed(error)
        case EngineClosed():
            return Problem(grpc.StatusCode.UNAVAILABLE, EdgeReason.SERVER_STOPPING.value, str(error), retry_after_s=2.0)
        case _:
            return _incident(error, method)


def _engine_failed(error: EngineFailed) -> Problem:
    """All streams of an engine that fails end with one incident, which it has logged."""
    message, metadata = "the engine has failed", {INCIDENT_KEY: error.incident_id}
    if not error.incident_id:  # it was ended, and has not failed by itself
        return Problem(grpc.StatusCode.INTERNAL, EdgeReason.ENGINE_FAILED.value, f"{message}: {error}")
    message = f"{message}; please report incident {error.incident_id}"
    return Problem(grpc.StatusCode.INTERNAL, EdgeReason.ENGINE_FAILED.value, message, metadata=metadata)


def _incident(error: Exception, method: str) -> Problem:
    """A fault of ours: the client gets a number to report, the log gets the rest."""
    incident_id = secrets.token_hex(6)
    cause = type(error).__name__
    _log.error("event=incident incident_id=%s method=%s: %s", incident_id, method, cause, exc_info=error)
    message = f"something is wrong on the server; please report incident {incident_id}"
    metadata = {INCIDENT_KEY: incident_id}
    return Problem(grpc.StatusCode.INTERNAL, EdgeReason.INTERNAL_ERROR.value, message, metadata=metadata)


async def _abort(context: "_Context[_Request, _Response]", problem: Problem, span: CallSpan | None) -> Never:
    status = to_status(problem)
    if span is not None:
        _end_span(span, problem.code, status.message)
    details = ((DETAILS_KEY, status.SerializeToString()),)
    await context.abort(problem.code, status.message, details)
