"""The window and the pages that it needs, against a look at every position."""

import pytest

from engine.core.window import first_kept_page, window_pages, window_start

WINDOWS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17)
PAGE_SIZES = (1, 3, 4, 8)


@pytest.mark.parametrize(
    ("position", "window", "start"), [(0, 4, 0), (3, 4, 0), (4, 4, 1), (9, 4, 6), (9, 1, 9), (2, 100, 0)]
)
def test_window_start_when_asked_then_the_window_has_so_many_tokens_with_its_own(
    position: int, window: int, start: int
) -> None:
    assert window_start(position, window) == start
    assert len(range(start, position + 1)) == min(window, position + 1)


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("window", WINDOWS)
def test_first_kept_page_when_a_token_comes_or_the_last_border_is_gone_back_to_then_both_find_their_window(
    window: int, page_size: int
) -> None:
    for length in range(60):
        border = max(at for at in range(0, length + 1, page_size))
        seen_from = [min(p for p in range(next_ + 1) if next_ - p < window) for next_ in (border, length)]
        assert first_kept_page(length, window, page_size) == min(seen_from) // page_size


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("window", WINDOWS)
def test_window_pages_when_a_holder_left_all_behind_then_no_length_keeps_more_and_some_do_so_many(
    window: int, page_size: int
) -> None:
    kept = [-(-length // page_size) - first_kept_page(length, window, page_size) for length in range(1, 200)]
    place_of_the_next_token = 1 if page_size == 1 else 0
    assert window_pages(window, page_size) == max(kept) + place_of_the_next_token


def test_window_pages_when_a_window_is_up_to_a_page_then_it_lies_across_two() -> None:
    assert [window_pages(window, 4) for window in (1, 2, 3, 4, 5, 6, 7, 10)] == [1, 2, 2, 2, 2, 3, 3, 4]
    assert [window_pages(window, 1) for window in (1, 2, 3)] == [1, 2, 3]
