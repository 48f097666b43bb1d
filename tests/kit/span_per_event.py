"""A sink that ends a span for every event, with no regard for what it costs: a load for what exports spans."""

from engine.core.events import Numbered
from telemetry.spans.record import FinishedSpan, SpanTarget
from telemetry.spans.tracer import Tracer


class SpanPerEvent:
    """An `EventSink`. `num_ended`: spans so far."""

    def __init__(self, target: SpanTarget) -> None:
        self._tracer = Tracer([target])
        self.num_ended = 0

    def publish(self, events: tuple[Numbered, ...], now: float) -> None:
        for _, event in events:
            now_ns = self._tracer.timeline.unix_ns(now)
            context = self._tracer.begin(None, "event")
            self._tracer.end(FinishedSpan(type(event).__name__, context, now_ns, now_ns))
            self.num_ended += 1
