"""The caller's trace, from the W3C `traceparent` header of a call."""

import re
from collections.abc import Iterable

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
"""Version, trace id, span id, flags: https://www.w3.org/TR/trace-context/#traceparent-header"""
_NO_TRACE = "0" * 32


def read_trace_id(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """32 hexadecimal digits, or "" when the call carries none that is valid."""
    for key, value in metadata or ():
        if key == "traceparent" and isinstance(value, str):
            found = _TRACEPARENT.fullmatch(value)
            if found is not None and found[1] != _NO_TRACE:
                return found[1]
    return ""
