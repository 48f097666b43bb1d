"""Pairwise covers: few combinations of which every two levels of two factors meet at least once. Pure."""

from collections.abc import Iterable, Sequence
from itertools import combinations, product

Row = tuple[int, ...]
"""One level of each factor, by index."""
Pair = tuple[tuple[int, int], tuple[int, int]]
"""Two (factor, level)."""


def pairs_of(row: Row) -> set[Pair]:
    """The pairs that meet in one row."""
    first, *_ = pairs = list(combinations(enumerate(row), 2))
    assert first, "a pair needs two factors"
    return set(pairs)


def all_pairs(sizes: Sequence[int]) -> set[Pair]:
    """Every pair of levels of two different factors, `sizes` being how many levels each factor has."""
    return {
        ((a, level_a), (b, level_b))
        for a, b in combinations(range(len(sizes)), 2)
        for level_a, level_b in product(range(sizes[a]), range(sizes[b]))
    }


def uncovered_pairs(rows: Iterable[Row], sizes: Sequence[int]) -> set[Pair]:
    """Pairs that meet in none of the rows: empty for a cover."""
    return all_pairs(sizes).difference(*(pairs_of(row) for row in rows))


def pairwise_cover(sizes: Sequence[int]) -> list[Row]:
    """A small cover, the same at every call: each row is the first of those that add the most pairs not met so far.

    O(rows x combinations): for factors of a few levels.
    """
    candidates = {row: pairs_of(row) for row in product(*(range(size) for size in sizes))}
    missing = all_pairs(sizes)
    rows: list[Row] = []
    while missing:
        best = max(candidates, key=lambda row: len(candidates[row] & missing))
        missing -= candidates[best]
        rows.append(best)
    return rows
