"""Fewer points, and no spike lost."""

import random

import pytest

from services.report.sampling import pick_extremes


def test_pick_extremes_when_there_is_a_column_for_each_then_all_that_differ_stay() -> None:
    assert pick_extremes([[1, 1, 2, 2, 1], [0, 0, 0, 5, 5]], num_columns=5) == [0, 2, 3, 4]


@pytest.mark.parametrize("seed", range(5))
def test_pick_extremes_when_there_are_too_many_then_each_column_keeps_its_highest_and_lowest(seed: int) -> None:
    rng = random.Random(seed)
    series = [[rng.randrange(1000) for _ in range(1000)] for _ in range(3)]
    kept = pick_extremes(series, num_columns=10)
    assert kept == sorted(kept)
    assert (kept[0], kept[-1]) == (0, 999)
    assert len(kept) <= 10 * 3 * 2 + 2
    for values in series:
        for column in range(10):
            part = range(column * 100, column * 100 + 100)
            drawn = [values[index] for index in kept if index in part]
            assert (min(drawn), max(drawn)) == (
                min(values[part.start : part.stop]),
                max(values[part.start : part.stop]),
            )


def test_pick_extremes_when_one_sample_of_many_is_a_spike_then_it_is_drawn() -> None:
    values = [5] * 10_000
    values[7_531] = 90
    assert pick_extremes([values], num_columns=100)[:2] == [0, 7_531]


def test_pick_extremes_when_something_is_absent_then_the_gap_is_drawn() -> None:
    values: list[float | None] = [1.0] * 1000
    values[500] = None
    assert pick_extremes([values], num_columns=10) == [0, 500, 501]


def test_pick_extremes_when_there_is_nothing_then_nothing() -> None:
    assert pick_extremes([]) == []
    assert pick_extremes([[]]) == []
