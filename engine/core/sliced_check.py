"""The full check a slice at a time, so that it holds the loop for a few milliseconds only."""

from collections.abc import Iterator

from engine.core.findings import CheckLevel, Report, Tally, Work
from engine.core.invariants import Books, full_check

SLICE_UNITS = 4096
"""Work of one slice, in units of about one page's, and one piece more at most: a millisecond or two."""


class SlicedCheck:
    """The same checks as the whole one, and so the same findings: it says nothing before it has seen everything.

    What it saw counts only while nothing changes. Else it begins again.
    """

    def __init__(self, books: Books) -> None:
        self._books = books
        self._work: Iterator[Work] | None = None
        self._change = (0, 0)
        self._tally = Tally()

    def run_slice(self, num_changes: int, units: int) -> Report | None:
        """Goes on for `units` of work; the report at the end, None before. The next call then begins anew.

        Nothing has changed since the last call if `num_changes` and the ledger's count of moves are what they were.
        """
        change = (num_changes, self._books.pools.ledger.num_moves)
        if self._work is None or change != self._change:
            self._work, self._change, self._tally = full_check(self._books), change, Tally()
        if not self._tally.run(self._work, units):
            return None
        self._work = None
        return self._tally.report(CheckLevel.FULL, self._books.pools.ledger.num_moves)
