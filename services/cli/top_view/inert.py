"""Texts of others on one line of a terminal: nothing in them acts, nothing is wider than it says."""

import unicodedata

from rich.cells import cell_len
from rich.text import Text

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_CUT = "…"
_PLAIN = str.maketrans("▁▂▃▄▅▆▇█·…", "_.:-=+*#.~")
"""What stands for our own signs on a terminal that has only ASCII: one for one, so that columns stay."""


def tame(text: str) -> str:
    """`text` with a sign in place of each character that is none to look at: controls, line ends, changes of direction.

    Marks that do not join their letter are replaced, too: terminals do not agree on how wide they are.
    """
    return "".join(map(_tame, unicodedata.normalize("NFC", text)))


def _tame(character: str) -> str:
    is_mark = unicodedata.category(character) in ("Mn", "Me")
    return _REPLACEMENT if is_mark or not character.isprintable() else character


def fit(text: str, cells: int) -> str:
    """Tamed `text` in at most `cells`. What is too long loses its middle: names often differ at their ends."""
    if cell_len(text) <= cells:
        return text
    if cells < 1:
        return ""
    tail_cells = (cells - 1) // 2
    return _cut(text, cells - 1 - tail_cells) + _CUT + _cut(text[::-1], tail_cells)[::-1]


def _cut(text: str, cells: int) -> str:
    cut = text[:cells]
    while cell_len(cut) > cells:
        cut = cut[:-1]
    return cut


def crop(line: Text, cells: int) -> Text:
    """`line` itself, or as much of it as fits, with a sign that there was more."""
    if line.cell_len <= cells:
        return line
    cropped = line.copy()
    cropped.truncate(cells, overflow="ellipsis")
    return cropped


def to_encoding(line: Text, encoding: str) -> Text:
    """`line` with signs of ASCII in place of ours when the terminal's encoding has them not."""
    try:
        "▁█·…".encode(encoding)
    except UnicodeEncodeError:
        plain = line.copy()
        plain.plain = line.plain.translate(_PLAIN)
        return plain
    return line
