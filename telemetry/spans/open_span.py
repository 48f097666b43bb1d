"""A span that has not ended yet."""

from telemetry.names import Attr, EventName, Relation
from telemetry.spans.record import Attributes, FinishedSpan, Link, SpanContext, SpanEvent, SpanStatus, Value
from telemetry.spans.tracer import Tracer

EVENTS_MAX = 128
"""Of one span; what comes later is counted only. As many as the SDKs keep."""


class OpenSpan:
    """Ended once, explicitly; never current anywhere."""

    __slots__ = ("_events", "_links", "_num_lost", "_parent_span_id", "_start_ns", "attributes", "context", "name")

    def __init__(self, name: str, context: SpanContext, parent: SpanContext | None, start_ns: int) -> None:
        self.name = name
        self.context = context
        self.attributes: dict[str, Value] = {}
        self._parent_span_id = "" if parent is None else parent.span_id
        self._start_ns = start_ns
        self._events: list[SpanEvent] = []
        self._links: list[Link] = []
        self._num_lost = 0

    @classmethod
    def child(cls, tracer: Tracer, name: str, parent: SpanContext | None, start_ns: int) -> "OpenSpan":
        """Below `parent`, or the root of a trace of its own."""
        return cls(name, tracer.begin(parent, name), parent, start_ns)

    def add_event(self, name: EventName, time_ns: int, attributes: Attributes) -> None:
        if len(self._events) < EVENTS_MAX:
            self._events.append(SpanEvent(name, time_ns, attributes))
        else:
            self._num_lost += 1

    def link(self, context: SpanContext | None, relation: Relation) -> None:
        """To nothing when there is no such span."""
        if context is not None:
            self._links.append(Link(context, relation))

    def end(self, end_ns: int, status: SpanStatus = SpanStatus.UNSET, message: str = "") -> FinishedSpan:
        if self._num_lost:
            self.attributes[Attr.EVENTS_LOST] = self._num_lost
        return FinishedSpan(
            name=self.name,
            context=self.context,
            parent_span_id=self._parent_span_id,
            start_ns=self._start_ns,
            end_ns=max(end_ns, self._start_ns),
            attributes=self.attributes,
            events=tuple(self._events),
            links=tuple(self._links),
            status=status,
            status_message=message,
        )
