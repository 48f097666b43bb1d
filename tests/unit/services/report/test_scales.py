"""Axes, and numbers and times as people read them."""

import itertools
from datetime import UTC, timedelta, timezone

import pytest

from services.report.scales import LEFT, RIGHT, Span, ValueScale, format_length, format_ms, format_number, round_ticks

NOON_S = 1_799_971_200.0 + 12 * 3600


@pytest.mark.parametrize("length_s", [1, 7, 30, 119, 600, 3600, 40_000])
def test_ticks_when_the_span_is_of_any_length_then_they_are_few_round_and_inside(length_s: float) -> None:
    span = Span(NOON_S + 0.4, NOON_S + 0.4 + length_s, UTC)
    times = [time_s for time_s, _ in span.ticks()]
    assert 1 <= len(times) <= 11
    assert all(span.contains(time_s) for time_s in times)
    assert len({b - a for a, b in itertools.pairwise(times)}) <= 1


def test_ticks_when_the_zone_is_off_by_half_an_hour_then_they_are_round_there() -> None:
    span = Span(NOON_S, NOON_S + 4 * 3600, timezone(timedelta(hours=5, minutes=30)))
    assert [name for _, name in span.ticks()][:2] == ["17:30", "18:00"]
    assert span.offset() == "UTC+05:30"


def test_offset_when_west_of_utc_then_negative() -> None:
    assert Span(NOON_S, NOON_S + 1, timezone(-timedelta(hours=3, minutes=30))).offset() == "UTC-03:30"


def test_x_when_outside_the_span_then_at_its_edge() -> None:
    span = Span(NOON_S, NOON_S + 10, UTC)
    assert [span.x(NOON_S + at) for at in (-5, 0, 5, 10, 20)] == [LEFT, LEFT, (LEFT + RIGHT) / 2, RIGHT, RIGHT]


def test_value_scale_when_logarithmic_then_each_power_of_ten_is_as_high() -> None:
    scale = ValueScale(top=1000.0, base_y=90.0, height=90.0, low=1.0)
    assert [round(scale.y(value)) for value in (0.5, 1, 10, 100, 1000)] == [90, 90, 60, 30, 0]
    assert scale.ticks() == [1, 10, 100, 1000]


@pytest.mark.parametrize(("top", "ticks"), [(0, [0]), (1, [0, 0.5, 1]), (512, [0, 500]), (64, [0, 50]), (7, [0, 5])])
def test_round_ticks_when_asked_for_two_then_round_ones_up_to_the_top(top: float, ticks: list[float]) -> None:
    assert round_ticks(top, 2) == ticks


@pytest.mark.parametrize(
    ("value", "told"),
    [(0, "0"), (0.254, "0.254"), (3.0, "3"), (17.25, "17.2"), (1234, "1,234"), (65536, "65.5k"),
     (999_900, "1M"), (4_500_000, "4.5M"), (float("nan"), "?"), (float("inf"), "?")],
)  # fmt: skip
def test_format_number_when_of_any_size_then_short(value: float, told: str) -> None:
    assert format_number(value) == told


@pytest.mark.parametrize(
    ("seconds", "told"), [(0, "0 s"), (0.44, "0.4 s"), (9.99, "10 s"), (200, "3 min 20 s"), (3600, "1 h")]
)
def test_format_length_when_of_any_size_then_in_words(seconds: float, told: str) -> None:
    assert format_length(seconds) == told


@pytest.mark.parametrize(
    ("milliseconds", "told"), [(0.42, "0.42 ms"), (22, "22 ms"), (999, "999 ms"), (4741, "4.74 s"), (12_240, "12.2 s")]
)
def test_format_ms_when_of_any_size_then_in_the_unit_that_fits(milliseconds: float, told: str) -> None:
    assert format_ms(milliseconds) == told
