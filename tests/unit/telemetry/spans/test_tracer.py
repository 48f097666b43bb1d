"""Times of spans: in order and of the right length whatever is done to the wall clock, and near it at rest."""

from telemetry.spans.call_span import CallSpan
from telemetry.spans.tracer import Timeline, Tracer
from tests.kit.span_desk import HandClock, SpanShelf

NS = 1_000_000_000


def test_timeline_when_the_wall_clock_is_set_back_then_times_go_on_until_nothing_is_drawn() -> None:
    clock, wall = HandClock(), HandClock()
    wall.now_s = 1000.0
    timeline = Timeline(clock, wall)
    assert timeline.unix_ns(5.0) == 1005 * NS
    clock.now_s, wall.now_s = 100.0, 500.0
    assert timeline.unix_ns(100.0) == 1100 * NS
    timeline.sync()
    assert timeline.unix_ns(100.0) == 500 * NS


def test_timeline_when_synced_again_soon_then_left_as_it_is() -> None:
    clock, wall = HandClock(), HandClock()
    timeline = Timeline(clock, wall)
    clock.now_s, wall.now_s = 10.0, 50.0
    timeline.sync()
    assert timeline.unix_ns(10.0) == 10 * NS


def test_call_when_times_are_synced_meanwhile_then_it_does_not_end_before_it_begins() -> None:
    clock, wall, shelf = HandClock(), HandClock(), SpanShelf()
    wall.now_s = 1000.0
    tracer = Tracer((shelf,), None, Timeline(clock, wall))
    call = CallSpan(tracer, "/tenure.v1.Session/Open", None)
    clock.now_s, wall.now_s = 60.0, 900.0
    tracer.timeline.sync()
    call.end("OK", 0)
    (span,) = shelf.spans
    assert span.end_ns == span.start_ns == 1000 * NS
