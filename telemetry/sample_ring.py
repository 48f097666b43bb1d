"""The newest samples as plain numbers, in memory that is there from the start: a server's first hour must not grow."""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import attrgetter

from engine.core.ownership import Move, PoolKind
from engine.core.snapshot import PoolBooks
from telemetry.history_records import Sample

_BOOKS = ("total", "available", "evictable", "protected", "session_held", "uncached", "draining", "quarantined")
"""Numbers of a pool, in the order of `PoolBooks`."""
_read_books = attrgetter(*_BOOKS)
_MOVES = tuple(move.value for move in Move)
_NUMBERS = (
    "time_s",
    "steps",
    "steps_failed",
    "tokens_computed",
    "tokens_generated",
    "turns_ended",
    "sessions_open",
    "turns_running",
    "turns_waiting",
    "num_facts",
    "step_ms_p50",
    "step_ms_max",
    "first_token_ms_p50",
    "first_token_ms_max",
)
_WHOLE = slice(1, 10)
"""Those of them that are counts."""
_read_numbers = attrgetter(*_NUMBERS)


class SampleRing:
    """At most `size` samples, each with its index, oldest first. One more takes the place of the oldest.

    A row is: index, the numbers of a sample, those of each pool, moves and moved units by kind. Counts are exact: a
    float64 holds every whole number up to 2⁵³.
    """

    def __init__(
        self, pools: Sequence[PoolKind], size: int, rows: "array[float] | None" = None, num_told: int = 0
    ) -> None:
        """`rows` and `num_told`: those of another ring."""
        self._pools = tuple(pools)
        self._size = size
        self._width = 1 + len(_NUMBERS) + len(_BOOKS) * len(self._pools) + 2 * len(_MOVES)
        self._rows = array("d", bytes(8 * self._width * size)) if rows is None else rows
        self._num_told = num_told

    def append(self, index: int, sample: Sample) -> None:
        assert [books.pool for books in sample.pools] == list(self._pools), f"pools of sample {index}"
        books = [number for each in sample.pools for number in _read_books(each)]
        moves = [counts.get(move, 0) for counts in (sample.moves, sample.moved_units) for move in _MOVES]
        start = self._num_told % self._size * self._width
        self._rows[start : start + self._width] = array("d", (index, *_read_numbers(sample), *books, *moves))
        self._num_told += 1

    def copy(self) -> "SampleRing":
        """The same samples, and nothing that is appended later. Fast: a copy of memory."""
        return SampleRing(self._pools, self._size, self._rows[:], self._num_told)

    def from_before(self, index: int) -> Iterator[tuple[int, Sample]]:
        """Those kept from `index` on, and the one before them, or else the oldest. O(those), about 0.05 ms each."""
        oldest = max(0, self._num_told - self._size)
        kept = range(oldest, self._num_told)
        first = bisect_left(kept, index, key=lambda number: int(self._rows[number % self._size * self._width]))
        for number in kept[max(0, first - 1) :]:
            yield self._read(number)

    def _read(self, number: int) -> tuple[int, Sample]:
        start = number % self._size * self._width
        index, *row = self._rows[start : start + self._width]
        numbers, rest = row[: len(_NUMBERS)], list(map(int, row[len(_NUMBERS) :]))
        numbers[_WHOLE] = map(int, numbers[_WHOLE])
        pools, moves = rest[: -2 * len(_MOVES)], rest[-2 * len(_MOVES) :]
        return int(index), Sample(
            pools=tuple(
                PoolBooks(pool, *pools[place * len(_BOOKS) : (place + 1) * len(_BOOKS)])
                for place, pool in enumerate(self._pools)
            ),
            moves=_by_name(moves[: len(_MOVES)]),
            moved_units=_by_name(moves[len(_MOVES) :]),
            **dict(zip(_NUMBERS, numbers, strict=True)),  # type: ignore[arg-type]  # counts are whole, see above
        )


def _by_name(counts: list[int]) -> dict[str, int]:
    return {name: count for name, count in zip(_MOVES, counts, strict=True) if count}
