"""How far something long has come: one line that is rewritten on a terminal, a few lines elsewhere."""

from typing import Protocol

_BAR_CHARS = 30
_LINES = 4
"""Without a terminal a line is printed for every quarter."""


class Out(Protocol):
    """Where progress is shown: a text stream, or what writes to one."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...

    def isatty(self) -> bool: ...


class ProgressPrinter:
    """Call it with the done fraction, 0 to 1, and what is being done. From one thread at a time."""

    def __init__(self, out: Out) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._told = -1
        self._is_open = False
        self._is_closed = False

    def __call__(self, done: float, what: str) -> None:
        if self._is_closed:
            return
        if self._is_terminal:
            filled = round(done * _BAR_CHARS)
            bar = "#" * filled + "." * (_BAR_CHARS - filled)
            self._is_open = done < 1
            end = "" if self._is_open else "\n"
            self._out.write(f"\r\x1b[Kloading [{bar}] {done:4.0%} {what}{end}")
            self._out.flush()
            return
        quarter = int(done * _LINES)
        if quarter > self._told:
            self._told = quarter
            self._out.write(f"loading {done:4.0%} {what}\n")
            self._out.flush()

    def say(self, line: str) -> None:
        """Prints a line of its own, below a bar that is not full."""
        self.end_bar()
        self._out.write(f"{line}\n")
        self._out.flush()

    def end_bar(self) -> None:
        """Leaves a bar that is not full as it is, for something else to be shown below it."""
        if self._is_open:
            self._is_open = False
            self._out.write("\n")
            self._out.flush()

    def close(self) -> None:
        """Shows no more progress: what is still being done is not waited for."""
        self._is_closed = True
