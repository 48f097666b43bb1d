"""What is remembered of the spans of a turn, or of a trace → protobuf."""

import re

import grpc

from protos.v1 import traces_pb2
from services.backend import Backend
from services.errors import CallError, EdgeReason, Problem, invalid_field
from telemetry.spans.record import Attributes, FinishedSpan, Link, SpanEvent, Value
from telemetry.spans.ring import SpanRing

SPANS_MAX = 1024
"""Of one answer, the newest: some 30 ms of the event loop."""
_TRACE_ID = re.compile(r"[0-9a-f]{32}")
_NS = 1e9


def find_trace(backend: Backend, request: traces_pb2.GetTraceRequest) -> traces_pb2.GetTraceResponse:
    """Raises CallError: INVALID_ARGUMENT for what names no trace, NOT_FOUND where nothing is kept."""
    assert backend.spans is not None, "a server remembers spans"
    ring = backend.spans
    trace_id = _read_trace_id(ring, request)
    spans = ring.find_trace(trace_id)
    if not spans:
        raise _unknown("trace_id", "no span of that trace is kept", ring)
    shown = spans[-SPANS_MAX:]
    return traces_pb2.GetTraceResponse(
        spans=map(_encode_span, shown), spans_dropped=ring.dropped + len(spans) - len(shown)
    )


def _read_trace_id(ring: SpanRing, request: traces_pb2.GetTraceRequest) -> str:
    if request.trace_id:
        if request.turn_id or request.HasField("session_id"):
            raise invalid_field("trace_id", "stands for itself: neither a turn nor a session goes with it")
        if not _TRACE_ID.fullmatch(request.trace_id):
            problem = "must be 32 hexadecimal digits in small letters"
            raise invalid_field("trace_id", problem, value=request.trace_id)
        return request.trace_id
    if not request.turn_id:
        message = "is missing: name a turn, or a trace by trace_id"
        raise invalid_field("turn_id", message, reason=EdgeReason.INPUT_MISSING)
    session_id = request.session_id if request.HasField("session_id") else None
    found = ring.find_turn(request.turn_id, session_id)
    if found is None:
        of_session = "" if session_id is None else " of that session"
        raise _unknown("turn_id", f"no turn of that name{of_session} has ended lately", ring)
    return found


def _unknown(field_name: str, message: str, ring: SpanRing) -> CallError:
    pushed_out = f"; {ring.dropped:,} older spans had to make room for newer ones" if ring.dropped else ""
    text = f"{field_name}: {message}{pushed_out}"
    return CallError(Problem(grpc.StatusCode.NOT_FOUND, EdgeReason.TRACE_UNKNOWN.value, text, field_name))


def _encode_span(span: FinishedSpan) -> traces_pb2.Span:
    return traces_pb2.Span(
        trace_id=span.context.trace_id,
        span_id=span.context.span_id,
        parent_span_id=span.parent_span_id,
        name=span.name,
        kind=span.kind,
        start_s=span.start_ns / _NS,
        end_s=span.end_ns / _NS,
        status=span.status,
        status_message=span.status_message,
        attributes=_encode_attributes(span.attributes),
        events=map(_encode_event, span.events),
        links=map(_encode_link, span.links),
    )


def _encode_event(event: SpanEvent) -> traces_pb2.SpanEvent:
    return traces_pb2.SpanEvent(
        time_s=event.time_ns / _NS, name=event.name, attributes=_encode_attributes(event.attributes)
    )


def _encode_link(link: Link) -> traces_pb2.SpanLink:
    return traces_pb2.SpanLink(trace_id=link.context.trace_id, span_id=link.context.span_id, relation=link.relation)


def _encode_attributes(attributes: Attributes) -> list[traces_pb2.SpanAttribute]:
    return [traces_pb2.SpanAttribute(key=key, value=_show(value)) for key, value in attributes.items()]


def _show(value: Value) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6g}"
        case tuple():
            return ", ".join(value)
        case _:
            return str(value)
