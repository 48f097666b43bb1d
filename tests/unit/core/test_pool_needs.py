"""What one turn may need of each pool, in exact small numbers."""

from dataclasses import replace

import pytest

from engine.core.pool_needs import TurnNeeds

PLAIN = TurnNeeds(
    page_size=4, context_len=101, chunk_tokens=16, in_flight_max=1, draft_tokens_max=6, window=None, has_states=False
)
WINDOWS = replace(PLAIN, window=10)


def test_needs_when_there_are_neither_windows_nor_states_then_pages_alone() -> None:
    assert (PLAIN.full_pages, PLAIN.swa_pages, PLAIN.states) == (26, 0, 0)
    assert (PLAIN.drafts_max, PLAIN.cut_back_max) == (6, 8)


def test_needs_when_there_are_states_then_five_and_no_drafts() -> None:
    needs = replace(PLAIN, has_states=True)
    assert (needs.full_pages, needs.swa_pages, needs.states) == (26, 0, 5)
    assert (needs.drafts_max, needs.cut_back_max) == (0, 2)


@pytest.mark.parametrize(
    ("needs", "span", "pin"),
    [
        (WINDOWS, 13, 4),  # 10 + 8 + 16 + 6 tokens are 10 pages, and 3; 12 tokens over page borders
        (replace(WINDOWS, in_flight_max=2), 19, 4),  # a chunk and drafts more: 62 tokens are 16 pages
        (replace(WINDOWS, has_states=True), 10, 4),  # no drafts: 10 + 2 + 16 tokens are 7 pages
        (replace(WINDOWS, window=1), 11, 1),  # 31 tokens are 8 pages
        (replace(WINDOWS, page_size=1), 43, 11),  # and one of the two pages that are given up at once
    ],
)
def test_needs_when_there_are_windows_then_two_of_them_and_what_is_computed(
    needs: TurnNeeds, span: int, pin: int
) -> None:
    num_pins = 2 if needs.has_states else 1
    assert (needs.swa_span_pages, needs.swa_pin_pages, needs.swa_pages) == (span, pin, span + num_pins * pin)


def test_needs_when_the_context_is_shorter_than_that_then_a_page_more_than_it_has() -> None:
    assert replace(WINDOWS, context_len=60).swa_pages == 16
    assert replace(WINDOWS, context_len=64).swa_pages == 17
    assert replace(WINDOWS, context_len=1000).swa_pages == 17
