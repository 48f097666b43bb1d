"""Where a span stands, as it travels: in the headers of a call, and opaquely through the core.

Source: https://www.w3.org/TR/trace-context/
"""

import re
from collections.abc import Iterable

from engine.runtime.handle import NOBODY, Caller
from telemetry.spans.record import SpanContext

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
"""Version, trace id, span id, flags."""
_TRACESTATE = re.compile(r"[\x20-\x7e]{1,512}")
_CALLER_SPAN = re.compile(r"([0-9a-f]{16})-(0[01]);(.*)", re.DOTALL)
_SAMPLED = 1


def read_headers(metadata: Iterable[tuple[str, str | bytes]] | None) -> SpanContext | None:
    """The caller's span; None when the call names none, or none that is valid."""
    headers = {key: value for key, value in metadata or () if isinstance(value, str)}
    found = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
    if found is None or not int(found[1], 16) or not int(found[2], 16):
        return None
    tracestate = headers.get("tracestate", "")
    if not _TRACESTATE.fullmatch(tracestate):
        tracestate = ""
    return SpanContext(found[1], found[2], bool(int(found[3], 16) & _SAMPLED), tracestate)


def write_caller(context: SpanContext) -> Caller:
    """What the core hands on, unread, to the events of what is done for this span."""
    return Caller(context.trace_id, f"{context.span_id}-{int(context.is_sampled):02d};{context.tracestate}")


def read_caller(caller: Caller) -> SpanContext | None:
    """The span that `write_caller` was given; None for nobody."""
    if caller == NOBODY:
        return None
    found = _CALLER_SPAN.fullmatch(caller.span)
    if found is None or not caller.trace_id:
        return None
    return SpanContext(caller.trace_id, found[1], found[2] == "01", found[3])
