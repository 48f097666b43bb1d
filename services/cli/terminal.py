"""What is shown to people: the answer on standard output, everything about it where it does not get in the way."""

import io
import os
import sys
from dataclasses import dataclass
from typing import TextIO


@dataclass(slots=True)
class Terminal:
    """Text goes to `text`, notes about it to `notes` (None: nowhere), complaints to `complaints`.

    What is not text has lines of its own, also where all three are one.
    """

    text: TextIO
    notes: TextIO | None
    complaints: TextIO
    is_mid_line: bool = False
    """Whether the text's last line has not ended yet."""

    def say(self, text: str) -> None:
        """Some more text, as it is."""
        if text:
            _write(self.text, text)
            self.is_mid_line = not text.endswith("\n")

    def end_line(self) -> None:
        if self.is_mid_line:
            self.say("\n")

    def note(self, line: str) -> None:
        if self.notes is not None:
            self._show_aside(self.notes, line)

    def complain(self, line: str) -> None:
        self._show_aside(self.complaints, line)

    def _show_aside(self, stream: TextIO, line: str) -> None:
        if stream is self.text:
            self.end_line()
        _write(stream, f"{line}\n")


def open_terminal(*, is_quiet: bool = False) -> Terminal:
    """On a terminal all is shown in one place; otherwise standard output is the text alone."""
    aside = sys.stdout if sys.stdout.isatty() else sys.stderr
    return Terminal(sys.stdout, None if is_quiet else aside, aside)


def show_any_text() -> None:
    """Characters that the terminal has no place for are shown as question marks, and end nothing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def flush_output() -> None:
    """Raises OSError when what was printed can not be written."""
    sys.stdout.flush()


def abandon_output() -> None:
    """Lets go of an output that can not be written: otherwise the interpreter tries, and complains, once more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()
