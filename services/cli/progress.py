"""How far something long has come: one line that is rewritten on a terminal, a few lines elsewhere."""

from typing import TextIO

_BAR_CHARS = 30
_LINES = 4
"""Without a terminal a line is printed for every quarter."""


class ProgressPrinter:
    """Call it with the done fraction, 0 to 1, and what is being done. From one thread at a time."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._told = -1

    def __call__(self, done: float, what: str) -> None:
        if self._is_terminal:
            filled = round(done * _BAR_CHARS)
            bar = "#" * filled + "." * (_BAR_CHARS - filled)
            end = "\n" if done >= 1 else ""
            self._out.write(f"\r\x1b[Kloading [{bar}] {done:4.0%} {what}{end}")
            self._out.flush()
            return
        quarter = int(done * _LINES)
        if quarter > self._told:
            self._told = quarter
            self._out.write(f"loading {done:4.0%} {what}\n")
            self._out.flush()
