"""A pool's picture tells the books as they are: what is drawn is read back."""

import random
from bisect import bisect_right
from collections.abc import Sequence
from xml.etree import ElementTree as ET

import pytest

from services.client.history import Sample
from services.client.pools import Pool
from services.report.areas import draw_pool
from tests.unit.services.report.histories import (
    find_all,
    full,
    history,
    read_levels,
    read_picture,
    sample,
    timeline_of,
    titles,
    words,
)

UP = ("uncached", "session", "protected", "evictable", "available", "quarantined")


def draw(samples: Sequence[Sample], kind: str = "full", page_size: int = 16) -> ET.Element:
    return read_picture(draw_pool(timeline_of(history(samples)), kind, page_size))


def some_pool(rng: random.Random) -> Pool:
    lost = rng.choice([0, 0, 2])
    total = 100 - lost
    cuts = sorted(rng.randrange(total + 1) for _ in range(4))
    uncached, session, protected, evictable = cuts[0], cuts[1] - cuts[0], cuts[2] - cuts[1], cuts[3] - cuts[2]
    return full(uncached, session, protected, evictable, total=total, quarantined=lost, draining=cuts[0] // 2)


def level_at(corners: Sequence[tuple[int, int]], x: int) -> int:
    return corners[bisect_right([start for start, _ in corners], x) - 1][1]


@pytest.mark.parametrize("num_samples", [1, 2, 50, 3000])
def test_draw_pool_when_read_back_then_the_terms_stack_to_the_total_at_each_drawn_point(num_samples: int) -> None:
    rng = random.Random(num_samples)
    samples = [sample(number, some_pool(rng)) for number in range(1, num_samples + 1)]
    tree = draw(samples)
    bands = {node.attrib["data-term"]: read_levels(node.attrib["d"]) for node in find_all(tree, "band")}
    [total_line] = find_all(tree, "total-line")
    totals = read_levels(total_line.attrib["d"].replace(" ", " 0V", 1))
    units_per_s = 1000 if num_samples <= 120 else 10
    starts = sorted({x for corners in bands.values() for x, _ in corners[:-1]})
    assert starts[-1] == (num_samples - 1) * units_per_s
    for x in starts:
        books = samples[x // units_per_s].find("full")
        levels = [level_at(bands[name], x) for name in UP if name in bands]
        terms = (books.uncached, books.session_held, books.protected, books.evictable, books.available)
        stack = [sum(terms[: number + 1]) for number in range(5)] + [books.total + books.quarantined]
        assert levels == stack[: len(levels)]
        assert stack[4] == books.total == level_at(totals, x)


def test_draw_pool_when_drawn_then_lower_terms_are_painted_over_higher_ones() -> None:
    tree = draw([sample(1, full(10, 20, 5, 15, total=98, quarantined=2))])
    assert [node.attrib["data-term"] for node in find_all(tree, "band")] == list(reversed(UP))


def test_draw_pool_when_a_term_is_always_zero_then_it_is_not_drawn_but_named() -> None:
    tree = draw([sample(1, full(10))])
    assert [node.attrib["data-term"] for node in find_all(tree, "band")] == ["available", "uncached"]
    assert {"evictable", "protected", "session"} < set(words(tree))
    assert "quarantined" not in words(tree)


def test_draw_pool_when_something_drains_then_it_is_hatched_from_the_bottom() -> None:
    tree = draw([sample(1, full(10, draining=4)), sample(2, full(10))])
    [hatch] = find_all(tree, "drain")
    assert read_levels(hatch.attrib["d"]) == [(0, 4), (1000, 0), (2000, 0)]
    assert "of which draining" in words(tree)
    assert find_all(draw([sample(1, full(10))]), "drain") == []


def test_draw_pool_when_it_is_full_pages_then_a_second_axis_tells_tokens() -> None:
    assert "1,600 tok" in words(draw([sample(1)]))


def test_draw_pool_when_it_is_rows_then_without_tokens_and_without_a_cache() -> None:
    told = words(draw([sample(1, full(3, kind="rows"))], "rows", 0))
    assert not any("tok" in name for name in told)
    assert "evictable" not in told


def test_draw_pool_when_a_sample_lacks_the_pool_then_it_is_drawn_as_nothing() -> None:
    tree = draw([sample(1, full(kind="rows")), sample(2, full(10))])
    [band] = [node for node in find_all(tree, "band") if node.attrib["data-term"] == "uncached"]
    assert read_levels(band.attrib["d"]) == [(0, 0), (1000, 10), (2000, 10)]


def test_draw_pool_when_no_script_runs_then_titles_tell_the_books_at_their_second() -> None:
    tree = draw([sample(1, full(10, 20, 5, 15, draining=2)), sample(2, full(11, 20, 5, 15))])
    [slices] = find_all(tree, "slices")
    told = titles(slices)
    assert told[0].endswith("uncached 10 + session 20 + protected 5 + evictable 15 + available 50 = 100; "
                            "draining 2; quarantined 0")  # fmt: skip
    assert "uncached 11 " in told[1]
    assert len(titles(find_all(draw([sample(n + 1) for n in range(900)]), "slices")[0])) == 240
