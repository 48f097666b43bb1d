"""Rates and their courses: out of samples that are over, and of none that is not."""

from dataclasses import replace

import pytest

from services.cli.top_view.numbers import format_rate, format_span
from services.cli.top_view.rates import (
    Trend,
    finished_samples,
    measure_trends,
    render_rates,
    render_spark,
    sum_moves,
)
from tests.kit.readings import FULL, NOW_S, ROWS, STATES, SWA, make_course, make_history, make_sample


def trends(*steps: int) -> dict[str, Trend]:
    return {trend.label: trend for trend in measure_trends(finished_samples(make_course(*steps)), 1.0)}


def test_finished_samples_when_the_last_is_not_over_then_left_out() -> None:
    whole = [make_sample(NOW_S - 2.4), make_sample(NOW_S - 1.4), make_sample(NOW_S - 0.4)]
    assert finished_samples(make_history(*whole, make_sample(NOW_S))) == tuple(whole)
    assert finished_samples(make_history(*whole, make_sample(NOW_S + 0.6))) == tuple(whole)


def test_finished_samples_when_the_server_has_just_begun_then_none() -> None:
    begun = replace(make_history(make_sample(NOW_S)), started_s=NOW_S - 0.3)
    assert finished_samples(begun) == ()


def test_finished_samples_when_there_are_old_ones_then_the_last_minute_only() -> None:
    assert len(finished_samples(make_course(*range(90)))) in (60, 61)


def test_measure_trends_when_it_changes_then_now_is_the_mean_of_five_seconds() -> None:
    steps = trends(100, 100, 10, 20, 30, 20, 10)["steps/s"]
    assert (steps.now, steps.highest) == (18.0, 100.0)
    assert steps.values == (100, 100, 10, 20, 30, 20, 10)


def test_measure_trends_when_intervals_are_longer_then_rates_are_a_second() -> None:
    samples = [make_sample(NOW_S - 2, steps=10), make_sample(NOW_S, steps=10)]
    assert measure_trends(samples, 2.0)[0].now == 5.0


def test_measure_trends_when_no_step_ran_then_latency_is_unknown_and_not_zero() -> None:
    idle = trends(0, 0, 0)
    assert (idle["steps/s"].now, idle["step ms"].now, idle["step ms"].highest) == (0, None, None)
    assert idle["step ms"].values == (None, None, None)


def test_measure_trends_when_seconds_have_few_steps_then_they_weigh_little() -> None:
    assert trends(1, 1, 40)["step ms"].now == 110.0, "that of the second with 40 steps"


def test_measure_trends_when_steps_failed_then_told_how_many() -> None:
    samples = [replace(make_sample(NOW_S), steps_failed=3)]
    assert measure_trends(samples, 1.0)[0].aside == "3 failed"


def test_measure_trends_when_pages_are_owned_then_measured_by_the_pool_and_without_its_rows() -> None:
    pages = trends(1, 2)["pages owned"]
    assert (pages.now, pages.scale) == (FULL.uncached + FULL.session_held, FULL.total)
    assert ROWS.session_held, "they would have been counted"


def test_measure_trends_when_there_are_more_pools_then_what_is_owned_of_each() -> None:
    samples = [make_sample(NOW_S, pools=(FULL, SWA, STATES, ROWS))]
    owned = {trend.label: trend for trend in measure_trends(samples, 1.0) if trend.label.endswith("owned")}
    assert list(owned) == ["pages owned", "SWA pages owned", "states owned"]
    assert [(trend.now, trend.scale) for trend in owned.values()] == [(70, 256), (20, 90), (8, 20)]
    assert all(len(label) <= 15 for label in owned), "or the numbers beside it would not line up"


def test_sum_moves_when_some_are_frequent_then_those_first() -> None:
    samples = [replace(make_sample(NOW_S - ago_s), moves={"park": 1, "grant": 9, "evict": 0}) for ago_s in (1, 0)]
    assert sum_moves(samples, 1.0) == [("grant", 9.0), ("park", 1.0)]
    assert sum_moves((), 1.0) == []


def test_render_spark_when_values_rise_then_signs_do_and_zero_is_alone_at_the_bottom() -> None:
    assert render_spark((None, 0.0, 0.1, 50.0, 100.0), 60, 100.0) == " " * 55 + " ▁▂▅█"


def test_render_spark_when_there_is_little_room_then_a_cell_is_the_mean_of_its_seconds() -> None:
    assert render_spark((0.0, 100.0, None, 100.0), 30, 100.0) == " " * 28 + "▅█"


def test_render_spark_when_above_its_scale_then_as_high_as_can_be() -> None:
    assert render_spark((300.0,), 60, 100.0).strip() == "█"


@pytest.mark.parametrize("width", [20, 50, 80, 120, 200])
@pytest.mark.parametrize("steps", [(), (0,), (100_000,) * 60])
def test_render_rates_when_drawn_then_never_wider_than_the_line(width: int, steps: tuple[int, ...]) -> None:
    lines = render_rates(make_course(*steps), width)
    assert all(line.cell_len <= width for line in lines)
    assert [line.plain.split()[0] for line in lines[1:]] == ["steps/s", "tokens/s", "pages", "step", "first", "moves/s"]


@pytest.mark.parametrize(
    ("width", "told"), [(120, "grant 6.0   lend 2.0   park 2.0   release 1.0"), (50, "grant 6.0   lend 2.0")]
)
def test_render_rates_when_there_are_moves_then_the_most_frequent_that_fit_whole(width: int, told: str) -> None:
    moves = render_rates(make_course(*[12] * 10), width)[-1].plain
    assert moves == "moves/s            11.0  " + told


def test_render_rates_when_steps_failed_then_in_red() -> None:
    course = make_course(5)
    failed = replace(course, samples=(replace(course.samples[0], steps_failed=2),))
    line = next(line for line in render_rates(failed, 120) if "2 failed" in line.plain)
    assert any(span.style == "red" for span in line.spans)


@pytest.mark.parametrize(
    ("value", "told"), [(None, "-"), (0.0, "0.0"), (99.94, "99.9"), (100.4, "100"), (12_345.0, "12,345"), (70, "70")]
)
def test_format_rate_when_large_or_whole_then_without_a_point(value: float | None, told: str) -> None:
    assert format_rate(value) == told


@pytest.mark.parametrize(
    ("span_s", "told"),
    [(-0.1, "0 s"), (59.9, "59 s"), (60, "1 min"), (3599, "59 min"), (7500, "2 h 5 min"), (180_000, "2 d 2 h")],
)
def test_format_span_when_told_then_in_the_units_of_its_size(span_s: float, told: str) -> None:
    assert format_span(span_s) == told
