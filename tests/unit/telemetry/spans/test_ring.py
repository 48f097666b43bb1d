"""The ring of recent spans: bounded, by trace and by turn."""

from dataclasses import replace

from telemetry.names import Attr
from telemetry.spans.record import FinishedSpan, SpanEvent
from telemetry.spans.ring import FACTS_MAX, SpanRing
from tests.kit.finished_spans import START_NS, TRACE_ID, make_context, make_span, make_turn

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


def test_find_turn_when_no_name_is_given_then_the_turn_that_ended_last_of_all_or_of_the_session() -> None:
    ring = filled(make_turn(1, "t", "a"), make_turn(2, "u", "b", trace_id=OTHER_TRACE), make_span(3))
    assert ring.find_turn() == OTHER_TRACE
    assert ring.find_turn(session_id="a") == make_context(1).trace_id
    assert filled(make_span()).find_turn() is None


def test_find_trace_ids_when_some_begin_so_then_each_once() -> None:
    near = f"{TRACE_ID[:8]}{'0' * 24}"
    ring = filled(make_span(1), make_span(2, OTHER_TRACE), make_span(3), make_span(4, near))
    assert ring.find_trace_ids(TRACE_ID[:8]) == (TRACE_ID, near)
    assert ring.find_trace_ids(TRACE_ID[:9]) == (TRACE_ID,)
    assert ring.find_trace_ids("ffffffff") == ()


def test_index_when_two_traces_have_a_span_of_the_same_id_then_both_are_found_where_they_stand() -> None:
    first, second = make_span(1), make_span(1, OTHER_TRACE)
    index = filled(first, second).index()
    assert index[TRACE_ID, first.context.span_id] is first
    assert index[OTHER_TRACE, second.context.span_id] is second


def test_find_exact_turn_when_no_session_is_named_then_only_a_turn_without_one() -> None:
    ring = SpanRing()
    ring.take(make_turn(1, "x", "other"))
    assert ring.find_exact_turn("x", None) is None
    ring.take(make_turn(2, "x"))
    ring.take(make_turn(3, "x", "other"))
    assert ring.find_exact_turn("x", None) == make_turn(2, "x").context
    assert ring.find_exact_turn("x", "other") == make_turn(3, "x", "other").context


def test_take_when_spans_have_many_events_then_fewer_of_them_are_kept() -> None:
    ring = SpanRing()
    events = tuple(SpanEvent("chunk", number, {}) for number in range(100))
    for number in range(1, 400):
        ring.take(replace(make_span(number), events=events))
    assert len(ring.find_trace(TRACE_ID)) == FACTS_MAX // 100
    assert ring.dropped == 399 - FACTS_MAX // 100
