"""Counting by size: where a value on the edge goes, and what nothing and one value read as."""

import pytest

from telemetry.metrics.buckets import BucketCounts

BOUNDS = (0.1, 1.0, 10.0)


@pytest.mark.parametrize(
    ("value", "counts"),
    [
        (0.0, (1, 0, 0, 0)),
        (0.1, (1, 0, 0, 0)),
        (0.100001, (0, 1, 0, 0)),
        (1.0, (0, 1, 0, 0)),
        (10.0, (0, 0, 1, 0)),
        (10.5, (0, 0, 0, 1)),
    ],
)
def test_add_when_a_value_is_at_an_edge_then_the_bound_belongs_to_its_bucket(
    value: float, counts: tuple[int, ...]
) -> None:
    buckets = BucketCounts(BOUNDS)
    buckets.add(value)
    assert buckets.read().counts == counts


def test_read_when_values_were_added_then_their_number_sum_and_ends() -> None:
    buckets = BucketCounts(BOUNDS)
    for value in (0.5, 20.0, 0.05):
        buckets.add(value)
    read = buckets.read()
    assert (read.num_values, read.total, read.least, read.most) == (3, 20.55, 0.05, 20.0)
    assert read.bounds == BOUNDS


def test_read_when_nothing_was_added_then_all_is_0() -> None:
    read = BucketCounts(BOUNDS).read()
    assert (read.num_values, read.total, read.least, read.most) == (0, 0.0, 0.0, 0.0)


def test_read_when_more_is_added_later_then_it_stays_as_it_was() -> None:
    buckets = BucketCounts(BOUNDS)
    buckets.add(0.5)
    read = buckets.read()
    buckets.add(0.5)
    assert read.num_values == 1
