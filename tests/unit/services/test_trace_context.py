"""A trace id is taken from a valid header only: what clients send is never logged as it is."""

import pytest

from services.trace_context import read_trace_id

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (f"00-{TRACE}-00f067aa0ba902b7-01", TRACE),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", ""),
        (f"00-{TRACE.upper()}-00f067aa0ba902b7-01", ""),
        (f"00-{TRACE}-00f067aa0ba902b7-01\n", ""),
        ("x", ""),
        ("", ""),
    ],
)
def test_read_trace_id_when_header_is_given_then_only_a_valid_one_counts(value: str, expected: str) -> None:
    assert read_trace_id((("user-agent", "x"), ("traceparent", value))) == expected


def test_read_trace_id_when_no_header_then_empty() -> None:
    assert read_trace_id(None) == ""
