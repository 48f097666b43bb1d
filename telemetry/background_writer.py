"""Writing to a stream that may block (a full pipe, a stopped terminal, a slow disk) without ever waiting for it."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

WAITING_MAX = 4096
"""Texts that may wait for the stream."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    text: str
    dropped: int
    """How many texts had been dropped when this one came."""


class BackgroundWriter:
    """Takes texts from any thread; a daemon thread of its own writes them. What finds no place is dropped and counted.

    Where texts were dropped the stream has `format_dropped(how many)` instead.
    """

    def __init__(
        self, stream: TextIO, format_dropped: Callable[[int], str] | None = None, waiting_max: int = WAITING_MAX
    ) -> None:
        self._stream = stream
        self._format_dropped = format_dropped or _format_dropped
        self._waiting_max = waiting_max
        # Both can be entered again by the thread that is inside: the collector may run in there, and what it
        # collects may have something to log.
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._dropped = 0
        self._is_closed = False
        self._told = 0
        self._thread = threading.Thread(target=self._write_all, name="tenure-writer", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Texts that were lost: too many waited, or the stream did not take them."""
        return self._dropped

    def isatty(self) -> bool:
        return self._stream.isatty()

    def write(self, text: str) -> None:
        """Never waits and never fails."""
        with self._lock:
            if self._is_closed or self._waiting.qsize() >= self._waiting_max:
                self._dropped += 1
            else:
                self._waiting.put(_Waiting(text, self._dropped))

    def flush(self) -> None:
        """Does nothing: each text is flushed once it is written."""

    def close(self, timeout_s: float) -> None:
        """Lets what waits be written, for so long at most; drops what comes later. Idempotent."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._waiting.put(None)
        self._thread.join(timeout_s)

    def _write_all(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            self._tell(waiting.dropped)
            if not self._write(waiting.text):
                with self._lock:
                    self._dropped += 1
            if self._waiting.empty():
                self._tell(self._dropped)
        self._tell(self._dropped)

    def _tell(self, dropped: int) -> None:
        """A stream that takes no texts does not take this one either: it is told all in one once it does."""
        if dropped > self._told and self._write(self._format_dropped(dropped - self._told)):
            self._told = dropped

    def _write(self, text: str) -> bool:
        """Whether the stream took it."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the reader is gone, or the stream is full, closed or has no such characters
            return False
        return True


def _format_dropped(dropped: int) -> str:
    return f"({dropped} lines were dropped: nobody read them in time)\n"
