"""The page table: one row of page ids a request, updated in place."""

from __future__ import annotations  # `array[int]` exists at run time only from Python 3.12

from array import array
from collections.abc import Sequence

PADDING_PAGE = 0


class PageTable:
    """`num_rows` rows of `pages_per_row` int32 page ids. Row 0 is padding, as page 0 is.

    Who owns a row is the ledger's business; here are only its entries. Entries past a request's length are stale.
    """

    def __init__(self, num_rows: int, pages_per_row: int) -> None:
        self.pages_per_row = pages_per_row
        self._rows = [array("i", [PADDING_PAGE]) * pages_per_row for _ in range(num_rows)]

    def row(self, req_pool_idx: int) -> array[int]:
        """The live row, not a copy."""
        return self._rows[req_pool_idx]

    def write(self, req_pool_idx: int, start: int, pages: Sequence[int]) -> None:
        """Puts `pages` at entries [start, start + len(pages))."""
        stop = start + len(pages)
        assert 0 < req_pool_idx < len(self._rows), f"no row {req_pool_idx}"
        assert stop <= self.pages_per_row, f"row {req_pool_idx}: entry {stop} is past {self.pages_per_row}"
        self._rows[req_pool_idx][start:stop] = array("i", pages)

    def clear(self, req_pool_idx: int) -> None:
        """Fills a row with padding, so that a stale read is caught by the plan's own assertions. O(pages_per_row)."""
        self._rows[req_pool_idx][:] = array("i", [PADDING_PAGE]) * self.pages_per_row
