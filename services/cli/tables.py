"""Rows of cells → lines whose columns line up."""

from collections.abc import Sequence


def format_table(rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """All rows have as many cells; the first may be the heads."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
