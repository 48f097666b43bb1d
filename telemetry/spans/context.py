"""Where a span stands, as it travels: in the headers of a call, and opaquely through the core.

Source: https://www.w3.org/TR/trace-context/
"""

import re
from collections.abc import Iterable

from engine.runtime.handle import NOBODY, Caller
from telemetry.spans.record import SpanContext

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
"""Version, trace id, span id, flags, and what versions to come may have behind that."""
_KEY = r"[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13}"
_VALUE = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER = re.compile(rf"(?:{_KEY})=(?:{_VALUE})")
_MEMBERS_MAX, _STATE_CHARS_MAX = 32, 512
_CALLER_SPAN = re.compile(r"([0-9a-f]{16})-(0[01]);(.*)", re.DOTALL)
_SAMPLED = 1


def read_headers(metadata: Iterable[tuple[str, str | bytes]] | None) -> SpanContext | None:
    """The caller's span; None when the call names none, or none that is valid, or two."""
    headers = tuple((key, value) for key, value in metadata or () if isinstance(value, str))
    parents = [value for key, value in headers if key == "traceparent"]
    found = _TRACEPARENT.fullmatch(parents[0]) if len(parents) == 1 else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    is_known = version == "00" and more is None
    if not (is_known or version not in ("00", "ff")) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    states = ",".join(value for key, value in headers if key == "tracestate")
    return SpanContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED), _read_state(states))


def _read_state(text: str) -> str:
    """The vendors' own entries, as they came; nothing of them when one is none."""
    members = [member for part in text.split(",") if (member := part.strip(" \t"))]
    if len(text) > _STATE_CHARS_MAX or len(members) > _MEMBERS_MAX or not all(map(_MEMBER.fullmatch, members)):
        return ""
    return ",".join(members)


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
