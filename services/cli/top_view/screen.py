"""A terminal that is taken for a while, with its keys, and left as it was found."""

import asyncio
import os
import re
import sys
import termios
from collections.abc import Callable, Sequence
from contextlib import suppress

from rich.console import Console
from rich.text import Text

from services.cli.top_view.inert import to_encoding

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
"""A screen of its own, no cursor, and no line that goes on below: a name may be wider than it seems."""
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[2K", "\x1b[J"
_SEQUENCE = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|O.|.)?", re.DOTALL)
"""Arrows, function keys and the like."""
_READ_BYTES = 1024


class TerminalScreen:
    """Standard output, and the keys of standard input when that is a terminal, too. `leave` may be called twice."""

    def __init__(self) -> None:
        self._out = sys.stdout
        self._console = Console(file=self._out, highlight=False, markup=False, emoji=False)
        self._input = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._attributes = termios.tcgetattr(self._input) if self._input is not None else None
        self._is_entered = False

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, at this moment."""
        size = self._console.size
        return size.width, size.height

    @property
    def has_keys(self) -> bool:
        return self._input is not None

    def enter(self) -> None:
        self._is_entered = True
        if self._input is not None:
            attributes = termios.tcgetattr(self._input)
            attributes[3] &= ~(termios.ICANON | termios.ECHO)
            termios.tcsetattr(self._input, termios.TCSADRAIN, attributes)
        self._write(_ENTER)

    def leave(self) -> None:
        if not self._is_entered:
            return
        self._is_entered = False
        with suppress(OSError):  # a terminal that is gone
            self._write(_LEAVE)
        if self._input is not None and self._attributes is not None:
            with suppress(termios.error, OSError):
                termios.tcsetattr(self._input, termios.TCSADRAIN, self._attributes)

    def show(self, lines: Sequence[Text]) -> None:
        """In place of what was shown before. Lines that are too many or too wide are cut."""
        height = self.size[1]
        with self._console.capture() as capture:
            for line in lines[:height]:
                self._console.print(to_encoding(line, self._console.encoding), no_wrap=True, crop=True)
        # What is left of the last picture goes first: erasing behind a full line would take its last character.
        drawn = _CLEAR_LINE + capture.get().removesuffix("\n").replace("\n", f"\n{_CLEAR_LINE}")
        self._write(_HOME + drawn + (f"\n{_CLEAR_BELOW}" if len(lines) < height else ""))

    def listen(self, on_key: Callable[[str], None]) -> None:
        """Calls `on_key` with each letter that is pressed, in small."""
        if self._input is None:
            return
        loop, descriptor = asyncio.get_running_loop(), self._input

        def read() -> None:
            try:
                pressed = os.read(descriptor, _READ_BYTES)
            except OSError:
                pressed = b""
            if not pressed:  # a terminal that is gone has no more keys
                loop.remove_reader(descriptor)
            for key in read_keys(pressed):
                on_key(key)

        loop.add_reader(descriptor, read)

    def ignore(self) -> None:
        """Hears no more keys."""
        if self._input is not None:
            asyncio.get_running_loop().remove_reader(self._input)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def read_keys(pressed: bytes) -> str:
    """The letters among what was pressed, in small. The `A` of an arrow is none."""
    return _SEQUENCE.sub("", pressed.decode(errors="replace")).lower()


def is_screen() -> bool:
    """Whether standard output can show a picture that changes."""
    return sys.stdout.isatty() and not Console(file=sys.stdout).is_dumb_terminal
