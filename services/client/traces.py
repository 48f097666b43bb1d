"""The spans of a trace, as the client sees them: where the time of a turn went, and how its KV came to it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from protos.v1 import traces_pb2


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened at one instant, in seconds since 1970."""

    time_s: float
    name: str
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SpanLink:
    """Another span, of this or of another trace, that a span goes on from; `relation` says how."""

    trace_id: str
    span_id: str
    relation: str
    leads_to: str = ""
    """For people, as in `turn t1` or `kv.park of t1`; empty when the server does not keep it any more."""


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of time. Keys and values of attributes are for people, as docs/telemetry.md has them."""

    trace_id: str
    span_id: str
    parent_span_id: str
    """Empty for the root of a trace. The parent may be another process's, or not kept any more."""
    name: str
    kind: str
    """`server` or `internal`."""
    start_s: float
    """Seconds since 1970 by the server's clock."""
    end_s: float
    status: str
    """`unset`, `ok` or `error`."""
    status_message: str
    attributes: Mapping[str, str]
    events: tuple[SpanEvent, ...]
    links: tuple[SpanLink, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """What a server still has of one trace."""

    spans: tuple[Span, ...]
    """By start, the oldest first; never none."""
    spans_dropped: int
    """Spans of all traces that were lost since the server started."""


def decode_trace(response: traces_pb2.GetTraceResponse) -> Trace:
    return Trace(tuple(map(_decode_span, response.spans)), response.spans_dropped)


def _decode_span(span: traces_pb2.Span) -> Span:
    return Span(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_span_id,
        name=span.name,
        kind=span.kind,
        start_s=span.start_s,
        end_s=span.end_s,
        status=span.status,
        status_message=span.status_message,
        attributes=_decode_attributes(span.attributes),
        events=tuple(SpanEvent(each.time_s, each.name, _decode_attributes(each.attributes)) for each in span.events),
        links=tuple(SpanLink(link.trace_id, link.span_id, link.relation, link.leads_to) for link in span.links),
    )


def _decode_attributes(attributes: Iterable[traces_pb2.SpanAttribute]) -> dict[str, str]:
    return {each.key: each.value for each in attributes}
