"""What is remembered of the spans of a turn, or of a trace → protobuf."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc

from protos.v1 import traces_pb2
from services.backend import Backend
from services.errors import CallError, EdgeReason, Problem, invalid_field
from services.limits import MIB
from telemetry.names import Attr, SpanName
from telemetry.spans.record import Attributes, FinishedSpan, Link, SpanEvent, Value
from telemetry.spans.ring import Place, SpanRing

SPANS_MAX = 1024
BYTES_MAX = 3 * MIB
"""Of one answer, which has the newest. A message may have 4 MiB."""
PREFIX_MIN, _ID_DIGITS = 8, 32
_HEX = re.compile(r"[0-9A-Fa-f]+")
_NS = 1e9


@dataclass(frozen=True, slots=True)
class FoundTrace:
    """The spans of a trace. Nothing changes them any more."""

    spans: Sequence[FinishedSpan]
    known: Mapping[Place, FinishedSpan]
    """Where links may lead."""
    dropped: int

    def encode(self) -> traces_pb2.GetTraceResponse:
        """For a thread: long prompts have many events, and this takes some tenths of a second for thousands."""
        shown: list[traces_pb2.Span] = []
        num_bytes = 0
        for span in reversed(self.spans[-SPANS_MAX:]):
            encoded = _encode_span(span, self.known)
            num_bytes += encoded.ByteSize()
            if shown and num_bytes > BYTES_MAX:
                break
            shown.append(encoded)
        left_out = len(self.spans) - len(shown)
        return traces_pb2.GetTraceResponse(spans=reversed(shown), spans_dropped=self.dropped + left_out)


def find_trace(backend: Backend, request: traces_pb2.GetTraceRequest) -> FoundTrace:
    """Raises CallError: INVALID_ARGUMENT for what names no trace or several, NOT_FOUND where nothing is kept."""
    assert backend.spans is not None, "a server remembers spans"
    ring = backend.spans
    trace_id = _read_trace_id(ring, request)
    spans = ring.find_trace(trace_id)
    if not spans:
        raise _unknown("trace_id", "no span of that trace is kept", ring)
    return FoundTrace(spans, ring.index(), ring.dropped)


def _read_trace_id(ring: SpanRing, request: traces_pb2.GetTraceRequest) -> str:
    if request.trace_id:
        if request.turn_id or request.HasField("session_id"):
            raise invalid_field("trace_id", "stands for itself: neither a turn nor a session goes with it")
        return _complete_trace_id(ring, request.trace_id)
    session_id = request.session_id if request.HasField("session_id") else None
    found = ring.find_turn(request.turn_id or None, session_id)
    if found is None:
        of_name = " of that name" if request.turn_id else ""
        of_session = "" if session_id is None else " of that session"
        field_name = "turn_id" if request.turn_id or session_id is None else "session_id"
        raise _unknown(field_name, f"no turn{of_name}{of_session} has ended lately", ring)
    return found


def _complete_trace_id(ring: SpanRing, given: str) -> str:
    """The only id that begins so, or `given` itself, in small letters."""
    if not (PREFIX_MIN <= len(given) <= _ID_DIGITS and _HEX.fullmatch(given)):
        problem = f"must be {_ID_DIGITS} hexadecimal digits, or the first {PREFIX_MIN} of them or more"
        raise invalid_field("trace_id", problem, value=given)
    prefix = given.lower()
    found = ring.find_trace_ids(prefix)
    if len(found) > 1:
        raise invalid_field("trace_id", f"{len(found)} traces begin so: give more of its digits", value=given)
    return found[0] if found else prefix


def _unknown(field_name: str, message: str, ring: SpanRing) -> CallError:
    pushed_out = f"; {ring.dropped:,} older spans had to make room for newer ones" if ring.dropped else ""
    text = f"{field_name}: {message}{pushed_out}"
    return CallError(Problem(grpc.StatusCode.NOT_FOUND, EdgeReason.TRACE_UNKNOWN.value, text, field_name))


def _encode_span(span: FinishedSpan, known: Mapping[Place, FinishedSpan]) -> traces_pb2.Span:
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
        links=(_encode_link(link, known) for link in span.links),
    )


def _encode_event(event: SpanEvent) -> traces_pb2.SpanEvent:
    return traces_pb2.SpanEvent(
        time_s=event.time_ns / _NS, name=event.name, attributes=_encode_attributes(event.attributes)
    )


def _encode_link(link: Link, known: Mapping[Place, FinishedSpan]) -> traces_pb2.SpanLink:
    trace_id, span_id = link.context.trace_id, link.context.span_id
    leads_to = _describe_place((trace_id, span_id), known)
    return traces_pb2.SpanLink(trace_id=trace_id, span_id=span_id, relation=link.relation, leads_to=leads_to)


def _describe_place(place: Place, known: Mapping[Place, FinishedSpan]) -> str:
    """As in `turn t1` or `kv.park of t1`: what stands there, and of which turn it is a part. Empty when not kept."""
    span = known.get(place)
    if span is None:
        return ""
    if span.name == SpanName.TURN:
        return f"{span.name} {span.attributes.get(Attr.TURN_ID, '')}"
    parent = known.get((span.context.trace_id, span.parent_span_id))
    is_of_turn = parent is not None and parent.name == SpanName.TURN
    return f"{span.name} of {parent.attributes.get(Attr.TURN_ID, '')}" if parent and is_of_turn else span.name


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
