"""The ring of recent spans: bounded, by trace and by turn."""

from telemetry.names import Attr
from telemetry.spans.record import FinishedSpan
from telemetry.spans.ring import SpanRing
from tests.kit.finished_spans import START_NS, make_context, make_span, make_turn

OTHER_TRACE = "0af7651916cd43dd8448eb211c80319c"


def filled(*spans: FinishedSpan, spans_max: int = 8) -> SpanRing:
    ring = SpanRing(spans_max)
    for span in spans:
        ring.take(span)
    return ring


def test_find_trace_when_spans_of_two_ended_then_only_its_own_by_their_start() -> None:
    ring = filled(make_span(3), make_span(2, OTHER_TRACE), make_span(1))
    assert [span.context.span_id for span in ring.find_trace(make_span().context.trace_id)] == [
        make_context(1).span_id,
        make_context(3).span_id,
    ]


def test_find_trace_when_it_is_unknown_then_nothing() -> None:
    assert filled(make_span()).find_trace(OTHER_TRACE) == ()


def test_take_when_the_ring_is_full_then_the_oldest_goes_and_is_counted() -> None:
    ring = filled(*(make_span(number) for number in range(1, 6)), spans_max=3)
    assert [span.start_ns - START_NS for span in ring.find_trace(make_span().context.trace_id)] == [3, 4, 5]
    assert ring.dropped == 2


def test_take_when_nothing_had_to_go_then_nothing_is_counted() -> None:
    assert filled(*(make_span(number) for number in range(1, 4)), spans_max=3).dropped == 0


def test_take_when_the_trace_is_not_exported_then_it_is_kept_all_the_same() -> None:
    span = make_span(1, is_sampled=False)
    assert filled(span).find_trace(span.context.trace_id) == (span,)


def test_find_turn_when_two_turns_had_the_name_then_the_one_that_ended_last() -> None:
    ring = filled(make_turn(1, "t"), make_turn(2, "t", trace_id=OTHER_TRACE), make_turn(3, "u"))
    assert ring.find_turn("t") == OTHER_TRACE


def test_find_turn_when_two_sessions_have_the_name_then_that_of_the_one_asked_for() -> None:
    ring = filled(make_turn(1, "t", "a"), make_turn(2, "t", "b", trace_id=OTHER_TRACE), make_turn(3, "t"))
    assert ring.find_turn("t", "b") == OTHER_TRACE
    assert ring.find_turn("t", "c") is None


def test_find_turn_when_only_another_span_has_its_id_then_none() -> None:
    park = FinishedSpan("kv.park", make_context(1), START_NS, START_NS, attributes={Attr.TURN_ID: "t"})
    assert filled(park).find_turn("t") is None
