"""A caller's span is taken from valid headers only, and comes out of the core as it went in."""

import pytest

from engine.runtime.handle import NOBODY, Caller
from telemetry.spans.context import read_caller, read_headers, write_caller
from telemetry.spans.record import SpanContext

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (f"00-{TRACE}-{SPAN}-01", SpanContext(TRACE, SPAN, True)),
        (f"00-{TRACE}-{SPAN}-00", SpanContext(TRACE, SPAN, False)),
        (f"cc-{TRACE}-{SPAN}-09", SpanContext(TRACE, SPAN, True)),
        (f"01-{TRACE}-{SPAN}-01-what-is-to-come", SpanContext(TRACE, SPAN, True)),
        (f"00-{TRACE}-{SPAN}-01-what-is-to-come", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}-01\n", None),
        ("x", None),
        ("", None),
    ],
)
def test_read_headers_when_traceparent_is_given_then_only_a_valid_one_counts(
    value: str, expected: SpanContext | None
) -> None:
    assert read_headers((("user-agent", "x"), ("traceparent", value))) == expected


def test_read_headers_when_none_then_nobody() -> None:
    assert read_headers(None) is None
    assert read_headers((("traceparent", b"00"),)) is None


def test_read_headers_when_traceparent_comes_twice_then_nobody() -> None:
    header = ("traceparent", f"00-{TRACE}-{SPAN}-01")
    assert read_headers((header, header)) is None


def test_read_headers_when_tracestate_comes_in_parts_then_joined() -> None:
    parts = (("tracestate", "a=1"), ("tracestate", "b=2"))
    found = read_headers((("traceparent", f"00-{TRACE}-{SPAN}-01"), *parts))
    assert found == SpanContext(TRACE, SPAN, True, "a=1,b=2")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("a=1,b=2", "a=1,b=2"),
        (" a=1 ,, t@vendor=x y", "a=1,t@vendor=x y"),
        ("a=" + "x" * 511, ""),
        ("a=\x07", ""),
        ("no member", ""),
        ("A=1", ""),
        ("a=b=c", ""),
        (",".join(f"k{number}=1" for number in range(33)), ""),
    ],
)
def test_read_headers_when_tracestate_is_given_then_kept_if_it_is_one(given: str, kept: str) -> None:
    found = read_headers((("traceparent", f"00-{TRACE}-{SPAN}-01"), ("tracestate", given)))
    assert found == SpanContext(TRACE, SPAN, True, kept)


@pytest.mark.parametrize("is_sampled", [True, False])
@pytest.mark.parametrize("tracestate", ["", "a=1,b=2;x"])
def test_caller_when_written_and_read_then_the_same_span(is_sampled: bool, tracestate: str) -> None:
    context = SpanContext(TRACE, SPAN, is_sampled, tracestate)
    assert read_caller(write_caller(context)) == context


@pytest.mark.parametrize("caller", [NOBODY, Caller(TRACE), Caller("", f"{SPAN}-01;"), Caller(TRACE, "x")])
def test_read_caller_when_there_is_no_span_then_none(caller: Caller) -> None:
    assert read_caller(caller) is None
