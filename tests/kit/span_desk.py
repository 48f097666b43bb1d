"""A span sink whose ids and times are counted, and what it drew: for tests of spans."""

from collections.abc import Iterable, Sequence
from itertools import count

from engine.core.events import CoreEvent, Numbered
from telemetry.names import Attr, Relation
from telemetry.spans.record import FinishedSpan
from telemetry.spans.sink import SpanSink
from telemetry.spans.tracer import Timeline, Tracer


class HandClock:
    """Turned by hand, in seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s


class SpanShelf:
    """A `SpanTarget` that keeps everything."""

    def __init__(self) -> None:
        self.spans: list[FinishedSpan] = []

    def take(self, span: FinishedSpan) -> None:
        self.spans.append(span)


class SpanDesk:
    """Tells a `SpanSink` events and shows what it drew. Each `tell` is one second later than the last."""

    def __init__(self, trace_steps: int = 0) -> None:
        self.clock = HandClock()
        self.shelf = SpanShelf()
        ids = count(1)
        self.tracer = Tracer((self.shelf,), None, Timeline(self.clock, self.clock), lambda _bits: next(ids))
        self.sink = SpanSink(self.tracer, trace_steps)
        self.sink.begin()
        self._seq = count(1)

    def tell(self, *events: CoreEvent) -> None:
        """In one publication."""
        self.clock.now_s += 1
        self.sink.publish(tuple(Numbered(next(self._seq), event) for event in events), self.clock.now_s)

    def tell_each(self, events: Iterable[CoreEvent]) -> None:
        for event in events:
            self.tell(event)

    def of(self, name: str) -> list[FinishedSpan]:
        """Spans of that name, in the order in which they ended."""
        return [span for span in self.shelf.spans if span.name == name]

    def only(self, name: str) -> FinishedSpan:
        (span,) = self.of(name)
        return span

    def turn(self, turn_id: str) -> FinishedSpan:
        (span,) = [span for span in self.of("turn") if span.attributes[Attr.TURN_ID] == turn_id]
        return span

    def linked(self, span: FinishedSpan, relation: Relation) -> list[FinishedSpan]:
        """The spans that its links of this kind lead to; each of them must exist."""
        return find_linked(self.shelf.spans, span, relation)


def find_linked(spans: Sequence[FinishedSpan], span: FinishedSpan, relation: Relation) -> list[FinishedSpan]:
    """The spans that links of this kind lead to. Raises KeyError for one that is not among `spans`."""
    by_context = {(each.context.trace_id, each.context.span_id): each for each in spans}
    return [by_context[link.context.trace_id, link.context.span_id] for link in span.links if link.relation is relation]
