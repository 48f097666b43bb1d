"""The cells of the matrix, and which of them a cover runs."""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from itertools import product

from tests.kit.exactness.cover import Row, pairwise_cover


class Kind(StrEnum):
    """How a conversation is held."""

    STATELESS = "stateless"
    ORDINARY = "ordinary"
    STREAMING = "streaming"
    FORKED = "forked"
    TRUNCATED = "truncated"


KINDS = tuple(Kind)
PAGE_SIZES = (1, 16, 64)
CHUNKS = (1, 7, 64, None)
"""`chunk_tokens`; None for prompts in one piece."""
OFF_ON = (False, True)

Place = Fraction | None
"""Where in its life each turn is retracted: 0 after its first step, 1 after the last one that allows it; None never."""


def places(count: int) -> tuple[Place, ...]:
    """Never, and `count` places from the first step of a turn to its last."""
    return (None, *(Fraction(index, count - 1) for index in range(count)))


@dataclass(frozen=True, slots=True)
class Cell:
    kind: Kind
    page_size: int
    chunk_tokens: int | None
    overlap: bool
    speculation: bool

    def __str__(self) -> str:
        chunk = "none" if self.chunk_tokens is None else self.chunk_tokens
        modes = f"{'overlap' if self.overlap else 'serial'}-{'drafts' if self.speculation else 'plain'}"
        return f"{self.kind}-page{self.page_size}-chunk{chunk}-{modes}"


@dataclass(frozen=True, slots=True)
class PlacedCell:
    """A cell with its retractions."""

    cell: Cell
    place: Place

    def __str__(self) -> str:
        return f"{self.cell}-{'unretracted' if self.place is None else f'at{float(self.place):.2f}'}"


def all_cells(speculation: tuple[bool, ...] = OFF_ON) -> list[Cell]:
    """5 kinds x 3 page sizes x 4 chunks x 2 x the levels of `speculation`."""
    return [Cell(*levels) for levels in product(KINDS, PAGE_SIZES, CHUNKS, OFF_ON, speculation)]


def cover_sizes(num_places: int, speculation: tuple[bool, ...] = OFF_ON) -> tuple[int, ...]:
    """How many levels each factor of `cover` has."""
    return (len(KINDS), len(PAGE_SIZES), len(CHUNKS), len(OFF_ON), len(speculation), num_places + 1)


def cover_rows(num_places: int, speculation: tuple[bool, ...] = OFF_ON) -> list[Row]:
    """The rows of `cover`."""
    return pairwise_cover(cover_sizes(num_places, speculation))


def cover(num_places: int, speculation: tuple[bool, ...] = OFF_ON) -> list[PlacedCell]:
    """Cells of which every two levels of two factors meet, retraction at one of `num_places` places being a factor."""
    levels = places(num_places)
    return [_placed(row, levels) for row in cover_rows(num_places, speculation)]


def _placed(row: Row, levels: tuple[Place, ...]) -> PlacedCell:
    kind, page, chunk, overlap, speculation, place = row
    cell = Cell(KINDS[kind], PAGE_SIZES[page], CHUNKS[chunk], OFF_ON[overlap], OFF_ON[speculation])
    return PlacedCell(cell, levels[place])
