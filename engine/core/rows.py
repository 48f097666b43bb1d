"""The page tables: one row of page ids a request for each pool of pages, updated in place."""

from __future__ import annotations  # `array[int]` exists at run time only from Python 3.12

from array import array
from collections.abc import Sequence

PADDING_PAGE = 0


class PageTable:
    """`num_rows` rows of `pages_per_row` int32 page ids, and as many of SWA pages where there is such a pool.

    Row 0 is padding, as page 0 is. Who owns a row is the ledger's business; here are only its entries. Entries past a
    request's length are stale, as are SWA entries before its window.
    """

    def __init__(self, num_rows: int, pages_per_row: int, *, has_swa: bool = False) -> None:
        self.pages_per_row = pages_per_row
        self._rows = self._padding_rows(num_rows)
        self._swa_rows = self._padding_rows(num_rows) if has_swa else None

    def _padding_rows(self, num_rows: int) -> list[array[int]]:
        return [array("i", [PADDING_PAGE]) * self.pages_per_row for _ in range(num_rows)]

    def row(self, req_pool_idx: int) -> array[int]:
        """The live row, not a copy."""
        return self._rows[req_pool_idx]

    def swa_row(self, req_pool_idx: int) -> array[int] | None:
        """The live row of SWA pages, not a copy; None where there is no such pool."""
        return None if self._swa_rows is None else self._swa_rows[req_pool_idx]

    def write(self, req_pool_idx: int, start: int, pages: Sequence[int]) -> None:
        """Puts `pages` at entries [start, start + len(pages))."""
        self._write(self._rows, req_pool_idx, start, pages)

    def write_swa(self, req_pool_idx: int, start: int, pages: Sequence[int]) -> None:
        """The same in the row of SWA pages, which there is."""
        assert self._swa_rows is not None, f"row {req_pool_idx}: there is no SWA pool"
        self._write(self._swa_rows, req_pool_idx, start, pages)

    def _write(self, rows: list[array[int]], req_pool_idx: int, start: int, pages: Sequence[int]) -> None:
        stop = start + len(pages)
        assert 0 < req_pool_idx < len(rows), f"no row {req_pool_idx}"
        assert stop <= self.pages_per_row, f"row {req_pool_idx}: entry {stop} is past {self.pages_per_row}"
        rows[req_pool_idx][start:stop] = array("i", pages)

    def clear(self, req_pool_idx: int) -> None:
        """Fills a row with padding, so that a stale read is caught by the plan's own assertions. O(pages_per_row)."""
        for rows in (self._rows, self._swa_rows):
            if rows is not None:
                rows[req_pool_idx][:] = array("i", [PADDING_PAGE]) * self.pages_per_row
