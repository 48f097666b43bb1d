"""Lines from standard input, without blocking the event loop and without keeping the process alive."""

import asyncio
import os
import sys
import termios
import threading
from contextlib import suppress
from typing import Protocol

from services.cli.arguments import BadInputError

_CHUNK_BYTES = 65536
_WAITING_MAX = 64


class Lines(Protocol):
    """Where a conversation comes from."""

    async def next_line(self) -> str | None:
        """The next line without its end; None when there are no more. Raises BadInputError for one that is no text."""

    def close(self) -> None:
        """Leaves the terminal as it was found."""


def open_lines(prompt: str) -> Lines:
    """A terminal is asked with `prompt`, and its lines can be edited; everything else is read as it is.

    Raises BadInputError when there is nothing to read from.
    """
    if sys.stdin is None:
        raise BadInputError("there is no standard input")
    if sys.stdin.isatty() and sys.stdout.isatty():
        return TerminalLines(prompt)
    return PipeLines(sys.stdin.fileno())


def decode_text(data: bytes, what: str) -> str:
    """Raises BadInputError when it is no UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadInputError(f"{what} is not UTF-8 text: byte 0x{data[error.start]:02x} at {error.start}") from None


class TerminalLines:
    """Lines from a keyboard, edited with readline where Python has it: of any length, with a history.

    A daemon thread waits for each of them. When it is left waiting, the terminal is given back here.
    """

    def __init__(self, prompt: str) -> None:
        self._prompt = prompt
        self._attributes = termios.tcgetattr(sys.stdin.fileno())
        with suppress(ImportError):
            import readline  # noqa: F401 - `input` uses it once it is loaded

    async def next_line(self) -> str | None:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str | BadInputError | None] = loop.create_future()

        def settle(line: str | BadInputError | None) -> None:
            if not answer.done():
                answer.set_result(line)

        def ask() -> None:
            line: str | BadInputError | None
            try:
                line = input(self._prompt)
            except (EOFError, OSError):
                line = None
            except UnicodeDecodeError as error:
                line = BadInputError(f"the line is not UTF-8 text: {error.reason}")
            with suppress(RuntimeError):  # the loop has ended, and nobody waits any more
                loop.call_soon_threadsafe(settle, line)

        threading.Thread(target=ask, name="tenure-keyboard", daemon=True).start()
        try:
            line = await answer
        except asyncio.CancelledError:
            with suppress(OSError):
                print(flush=True)  # the line that was asked for stays as it is
            raise
        if isinstance(line, BadInputError):
            raise line
        if line is None:
            print()
        return line

    def close(self) -> None:
        with suppress(termios.error, OSError):  # a terminal that is gone
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._attributes)


class PipeLines:
    """Reads a file descriptor in a daemon thread: pipe and file alike.

    The descriptor is read without Python's own buffers: a thread that holds their lock when the process ends kills it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue(_WAITING_MAX)
        self._num_read = 0
        threading.Thread(target=self._read, name="tenure-stdin", daemon=True).start()

    async def next_line(self) -> str | None:
        line = await self._lines.get()
        if line is None:
            return None
        self._num_read += 1
        return decode_text(line, f"line {self._num_read}").rstrip("\r")

    def close(self) -> None:
        return

    def _read(self) -> None:
        rest = b""
        while chunk := self._read_chunk():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._put(line)
        if rest:
            self._put(rest)
        self._put(None)

    def _read_chunk(self) -> bytes:
        try:
            return os.read(self._descriptor, _CHUNK_BYTES)
        except OSError:
            return b""  # a terminal that is gone has no more lines

    def _put(self, line: bytes | None) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._lines.put(line), self._loop).result()
        except (RuntimeError, asyncio.CancelledError):
            return  # the loop has ended, and nobody reads any more
