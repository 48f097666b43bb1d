"""Spans that have ended, for tests of what becomes of them."""

from telemetry.names import Attr, EventName, Relation, SpanName
from telemetry.spans.record import FinishedSpan, Link, SpanContext, SpanEvent, SpanKind, SpanStatus, Value

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
START_NS = 1_790_000_000_000_000_001


def make_context(number: int, trace_id: str = TRACE_ID, *, is_sampled: bool = True) -> SpanContext:
    return SpanContext(trace_id, f"{number:016x}", is_sampled)


def make_span(
    number: int = 1, trace_id: str = TRACE_ID, *, is_sampled: bool = True, name: str = "step"
) -> FinishedSpan:
    """A root that began so many nanoseconds after the others."""
    start_ns = START_NS + number
    return FinishedSpan(name, make_context(number, trace_id, is_sampled=is_sampled), start_ns, start_ns + 1_000_000)


def make_turn(number: int, turn_id: str, session_id: str | None = None, trace_id: str = TRACE_ID) -> FinishedSpan:
    attributes: dict[str, Value] = {Attr.TURN_ID: turn_id}
    if session_id is not None:
        attributes[Attr.SESSION_ID] = session_id
    start_ns = START_NS + number
    return FinishedSpan(SpanName.TURN, make_context(number, trace_id), start_ns, start_ns + 10, attributes=attributes)


def make_full_span() -> FinishedSpan:
    """With something in every field, of every kind of value."""
    return FinishedSpan(
        name="Generate tiny",
        context=SpanContext(TRACE_ID, "00f067aa0ba902b7", True, "vendor=opaque,other=1"),
        start_ns=START_NS,
        end_ns=START_NS + 12_345_678,
        parent_span_id="b7ad6b7169203331",
        kind=SpanKind.SERVER,
        attributes={
            Attr.SESSION_ID: "Zoë's",
            Attr.INPUT_TOKENS: 812,
            Attr.QUEUE_S: 0.25,
            Attr.COMMITTED: True,
            Attr.FINISH_REASONS: ("length", "stop"),
        },
        events=(
            SpanEvent(EventName.FIRST_TOKEN, START_NS + 5),
            SpanEvent(EventName.CHUNK, START_NS + 7, {Attr.TOKENS: 8}),
        ),
        links=(
            Link(SpanContext("0af7651916cd43dd8448eb211c80319c", "00f067aa0ba902b8"), Relation.PREVIOUS_TURN),
            Link(make_context(9), Relation.PREVIOUS_HOLDER),
        ),
        status=SpanStatus.ERROR,
        status_message="disconnect",
    )
