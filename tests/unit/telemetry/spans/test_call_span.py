"""The span of a call: one end, the status that its client got, and a place in the caller's trace."""

import pytest

from engine.runtime.handle import NOBODY
from telemetry.names import Attr, Relation
from telemetry.spans.call_span import CallSpan
from telemetry.spans.context import read_caller
from telemetry.spans.record import SpanContext, SpanKind, SpanStatus
from tests.kit.span_desk import SpanDesk

METHOD = "/tenure.v1.Generate/Generate"
CALLER = SpanContext("a" * 32, "b" * 16, True, "k=v")


def test_call_when_it_names_a_trace_then_its_span_is_a_child_there() -> None:
    desk = SpanDesk()
    call = CallSpan(desk.tracer, METHOD, CALLER)
    call.name_after("chat", "small")
    call.link(CALLER, Relation.RESUMED)
    call.end("OK", 0)
    span = desk.only("chat small")
    assert (span.context.trace_id, span.parent_span_id, span.kind) == ("a" * 32, "b" * 16, SpanKind.SERVER)
    assert span.status is SpanStatus.UNSET
    assert span.context.tracestate == "k=v"
    assert span.attributes == {
        Attr.RPC_SYSTEM: "grpc",
        Attr.RPC_SERVICE: "tenure.v1.Generate",
        Attr.RPC_METHOD: "Generate",
        Attr.RPC_STATUS: 0,
        Attr.OPERATION: "chat",
        Attr.REQUEST_MODEL: "small",
    }
    assert read_caller(call.caller) == span.context


def test_call_when_it_names_none_then_the_root_of_a_trace() -> None:
    desk = SpanDesk()
    CallSpan(desk.tracer, METHOD, None).end("OK", 0)
    assert desk.only("Generate").parent_span_id == ""


@pytest.mark.parametrize(
    ("code", "number", "status"),
    [
        ("CANCELLED", 1, SpanStatus.ERROR),
        ("INVALID_ARGUMENT", 3, SpanStatus.UNSET),
        ("DEADLINE_EXCEEDED", 4, SpanStatus.ERROR),
        ("NOT_FOUND", 5, SpanStatus.UNSET),
        ("INTERNAL", 13, SpanStatus.ERROR),
        ("UNAVAILABLE", 14, SpanStatus.ERROR),
    ],
)
def test_call_when_it_ends_with_a_code_then_told_and_an_error_unless_it_is_the_clients(
    code: str, number: int, status: SpanStatus
) -> None:
    desk = SpanDesk()
    CallSpan(desk.tracer, METHOD, None).end(code, number, "why")
    span = desk.only("Generate")
    assert (span.status, span.attributes[Attr.RPC_STATUS], span.attributes[Attr.ERROR_TYPE]) == (status, number, code)
    assert span.status_message == ("why" if status is SpanStatus.ERROR else "")


def test_call_when_ended_twice_then_the_first_end_counts() -> None:
    desk = SpanDesk()
    call = CallSpan(desk.tracer, METHOD, None)
    call.end("CANCELLED", 1)
    call.end("OK", 0)
    assert desk.only("Generate").attributes[Attr.RPC_STATUS] == 1


def test_call_when_nothing_is_drawn_then_nobody_called() -> None:
    call = CallSpan(None, METHOD, CALLER)
    call.set(Attr.TURN_ID, "t")
    call.end("OK", 0)
    assert call.caller == NOBODY
