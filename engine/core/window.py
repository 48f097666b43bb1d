"""The one definition of a sliding window: what masks, releases and matches by it asks here.

positions:   .. | p - W + 1 ................ p | ..
                attended to by the token at p   W positions, its own included
"""


def first_kept_page(length: int, window: int, page_size: int) -> int:
    """The first page that a holder of `length` tokens keeps in a pool of windows.

    The page that the next token's window begins in, or the one before it: cut back to the last page border, what is
    held still has its whole window there.
    """
    border = length // page_size * page_size
    return window_start(border, window) // page_size


def window_pages(window: int, page_size: int) -> int:
    """Pages of a holder from `first_kept_page` to its last token: never more than these."""
    return (window + page_size - 2) // page_size + 1


def leave_pages(window: int, page_size: int) -> int:
    """How many pages of a window that is locked in the cache are given up at once: one by one they would cut the
    cache's nodes into pages."""
    return max(1, (window + page_size - 1) // page_size // 4)


def window_start(position: int, window: int) -> int:
    """The first position that the token at `position` attends to in a layer whose window is `window` tokens."""
    return max(0, position - window + 1)
