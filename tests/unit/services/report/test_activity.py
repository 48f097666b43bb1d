"""Strips of what the server did."""

from dataclasses import replace

from services.report.activity import build_moves, build_strips, draw_move, draw_strip
from tests.unit.services.report.histories import (
    find_all,
    history,
    idle,
    read_picture,
    sample,
    timeline_of,
    words,
    working,
)


def test_build_strips_when_nothing_happened_then_there_is_none() -> None:
    assert build_strips(timeline_of(history(idle(5)))) == ()
    assert build_moves(timeline_of(history(idle(5)))) == ()


def test_build_strips_when_all_happened_then_each_number_has_its_strip() -> None:
    strips = {strip.key: strip for strip in build_strips(timeline_of(history(working(3))))}
    assert [strip.series[0].values[0] for strip in strips.values()] == [2, 4, 1, 10, 1, 20, 40, 10, 50]
    assert strips["failed"].series[0].values == (1, 0, 1)


def test_build_strips_when_an_interval_is_not_a_second_then_rates_are_a_second() -> None:
    told = replace(history(working(3)), interval_s=0.5)
    [steps] = [strip for strip in build_strips(timeline_of(told)) if strip.key == "steps"]
    assert steps.series[0].values == (20, 20, 20)


def test_build_strips_when_no_step_ended_then_it_has_no_time_instead_of_0() -> None:
    samples = [replace(sample(1), step_ms_p50=8.0, step_ms_max=9.0), sample(2)]
    [times] = build_strips(timeline_of(history(samples)))
    assert [series.values for series in times.series] == [(9.0, None), (8.0, None)]


def test_build_moves_when_some_happened_then_those_in_their_order() -> None:
    samples = [sample(1, moves={"park": 2}), sample(2, moves={"grant": 1})]
    assert [strip.name for strip in build_moves(timeline_of(history(samples)))] == ["grant", "park"]


def test_draw_strip_when_a_line_has_a_gap_then_it_is_in_two_pieces() -> None:
    samples = [replace(sample(number), step_ms_max=9.0 if number != 2 else 0.0) for number in (1, 2, 3)]
    timeline = timeline_of(history(samples))
    [strip] = build_strips(timeline)
    [line] = find_all(read_picture(draw_strip(timeline, strip, with_times=True)), "line")
    assert line.attrib["d"].count("M") == 2


def test_draw_strip_when_an_area_is_zero_for_a_while_then_it_has_no_outline_there() -> None:
    samples = [replace(sample(number), turns_ended=number % 2) for number in (1, 2, 3)]
    timeline = timeline_of(history(samples))
    [strip] = build_strips(timeline)
    [area] = find_all(read_picture(draw_strip(timeline, strip, with_times=True)), "area")
    assert area.attrib["d"].count("z") == 2


def test_draw_strip_when_times_are_far_apart_then_the_axis_is_logarithmic_and_says_so() -> None:
    samples = [replace(sample(number), step_ms_p50=10.0, step_ms_max=12.0) for number in range(1, 9)]
    even = timeline_of(history(samples))
    uneven = timeline_of(history([*samples, replace(sample(9), step_ms_p50=10.0, step_ms_max=900.0)]))
    for timeline, name in ((even, "step time"), (uneven, "step time (log)")):
        [strip] = build_strips(timeline)
        assert name in words(read_picture(draw_strip(timeline, strip, with_times=False)))


def test_draw_move_when_drawn_then_its_direction_and_peak_are_told() -> None:
    timeline = timeline_of(history([sample(1, moves={"demote": 3})]))
    [strip] = build_moves(timeline)
    told = words(read_picture(draw_move(timeline, strip, with_times=False)))
    assert told == ["demote", "session → cache", "3/s"]
