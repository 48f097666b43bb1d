"""Pools as bars: they fill their line, and no owner of anything is lost in them."""

import itertools
from dataclasses import replace

import pytest

from services.cli.top_view.owners import OWNERS, render_bar, render_pools, share_cells
from services.client import Pool
from tests.kit.readings import FULL, ROWS

COUNTS = [
    (256, 0, 0, 0, 0, 0),
    (1, 1, 1, 1, 1, 1),
    (100_000, 1, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 100_000),
    (0, 3, 0, 2, 1, 0),
    (140, 30, 16, 40, 30, 0),
]


@pytest.mark.parametrize(("counts", "cells"), list(itertools.product(COUNTS, (6, 7, 69, 103, 189))))
def test_share_cells_when_shared_out_then_all_are_used_and_no_count_vanishes(
    counts: tuple[int, ...], cells: int
) -> None:
    shares = share_cells(counts, cells)
    assert sum(shares) == cells
    assert [share > 0 for share in shares] == [count > 0 for count in counts]


def test_share_cells_when_it_comes_out_even_then_in_proportion() -> None:
    assert share_cells((50, 25, 0, 25, 0, 0), 80) == [40, 20, 0, 20, 0, 0]


def test_share_cells_when_there_is_nothing_then_nothing_is_shared_out() -> None:
    assert share_cells((0, 0, 0), 10) == [0, 0, 0]


def test_render_bar_when_drawn_then_owners_are_in_order_and_told_apart_without_colours() -> None:
    bar = render_bar(replace(FULL, quarantined=2), 80).plain
    assert [sign for sign, _ in itertools.groupby(bar)] == [owner.sign for owner in OWNERS]
    assert len({owner.sign for owner in OWNERS}) == len({owner.colour for owner in OWNERS}) == len(OWNERS)


def test_render_bar_when_the_pool_is_empty_then_as_wide_as_ever() -> None:
    assert render_bar(Pool("full", 0, 0, 0, 0, 0, 0, 0, 0, 16), 40).plain == " " * 40


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
def test_render_pools_when_drawn_then_bars_end_at_the_edge_and_nothing_goes_beyond(width: int) -> None:
    bars_and_terms = render_pools((FULL, ROWS), width)
    assert [line.cell_len for line in bars_and_terms[::2]] == [width, width]
    assert all(line.cell_len <= width for line in bars_and_terms)


@pytest.mark.parametrize(
    ("width", "terms"),
    [
        (120, ["available 140", "evictable 30", "protected 16", "session 40", "uncached 30", "quarantined 0"]),
        (80, ["avail 140", "evict 30", "prot 16", "sess 40", "uncach 30", "quar 0"]),
    ],
)
def test_render_pools_when_there_is_room_then_every_term_is_told(width: int, terms: list[str]) -> None:
    line = render_pools((FULL,), width)[1].plain
    assert all(term in line for term in terms), line


def test_render_pools_when_pages_drain_then_told_how_many() -> None:
    assert "(4 draining)" in render_pools((replace(FULL, draining=4),), 100)[1].plain
    assert "draining" not in render_pools((FULL,), 100)[1].plain


def test_render_pools_when_there_is_none_then_no_line() -> None:
    assert render_pools((), 80) == []
