"""A finished span → OpenTelemetry's own, as its exporters take it."""

from importlib.metadata import version

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Status, StatusCode, TraceFlags, TraceState

from telemetry.names import SCOPE, Attr
from telemetry.spans.record import Attributes, FinishedSpan, Link, SpanContext, SpanEvent, SpanKind, SpanStatus, Value

_KINDS = {SpanKind.SERVER: trace.SpanKind.SERVER, SpanKind.INTERNAL: trace.SpanKind.INTERNAL}
_CODES = {SpanStatus.UNSET: StatusCode.UNSET, SpanStatus.OK: StatusCode.OK, SpanStatus.ERROR: StatusCode.ERROR}
_UNSET = Status(StatusCode.UNSET)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_NOT_SAMPLED = TraceFlags(TraceFlags.DEFAULT)
_NO_STATE = TraceState()
TEXT_CHARS_MAX = 4096
"""Of a name, an attribute or a status: a collector takes 4 MiB at once, of everything together."""


class SpanConverter:
    """Any thread may use it. Some 5 microseconds a span."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._scope = InstrumentationScope(SCOPE, version("tenure"))

    def convert(self, span: FinishedSpan) -> ReadableSpan:
        """Raises ValueError for ids that are no hexadecimal numbers."""
        context = _to_context(span.context)
        return ReadableSpan(
            name=_clean(span.name),
            context=context,
            parent=_to_parent(span, context) if span.parent_span_id else None,
            resource=self._resource,
            attributes=_clean_all(span.attributes),
            events=[_to_event(event) for event in span.events],
            links=[_to_link(link) for link in span.links],
            kind=_KINDS[span.kind],
            status=_to_status(span),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )


def _clean(text: str) -> str:
    """What can be sent of it: one that can not be would cost all spans of its batch."""
    if len(text) <= TEXT_CHARS_MAX and text.isascii():
        return text
    return text[:TEXT_CHARS_MAX].encode("utf-8", "backslashreplace").decode()


def _clean_all(attributes: Attributes) -> dict[str, Value]:
    return {key: _clean(value) if isinstance(value, str) else value for key, value in attributes.items()}


def _to_context(context: SpanContext) -> trace.SpanContext:
    return trace.SpanContext(
        int(context.trace_id, 16),
        int(context.span_id, 16),
        is_remote=False,
        trace_flags=_SAMPLED if context.is_sampled else _NOT_SAMPLED,
        trace_state=TraceState.from_header([context.tracestate]) if context.tracestate else _NO_STATE,
    )


def _to_parent(span: FinishedSpan, context: trace.SpanContext) -> trace.SpanContext:
    """What a call's span is below is its caller's, and so in another process."""
    return trace.SpanContext(
        context.trace_id,
        int(span.parent_span_id, 16),
        is_remote=span.kind is SpanKind.SERVER,
        trace_flags=context.trace_flags,
    )


def _to_event(event: SpanEvent) -> Event:
    return Event(event.name, _clean_all(event.attributes), event.time_ns)


def _to_link(link: Link) -> trace.Link:
    return trace.Link(_to_context(link.context), {Attr.LINK: link.relation})


def _to_status(span: FinishedSpan) -> Status:
    if span.status is SpanStatus.UNSET:
        return _UNSET
    return Status(_CODES[span.status], _clean(span.status_message) or None)
