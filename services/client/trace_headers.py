"""Puts the caller's own span into the headers of a call, so that the server's spans are drawn below it."""

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()

Headers = tuple[tuple[str, str], ...]


def trace_headers() -> Headers:
    """W3C `traceparent` and `tracestate` of OpenTelemetry's current span; nothing when there is none."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return tuple(carrier.items())
