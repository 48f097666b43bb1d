"""Lines from standard input, without blocking the event loop and without keeping the process alive."""

import asyncio
import os
import threading

_CHUNK_BYTES = 65536
_WAITING_MAX = 64


class LineReader:
    """Reads a file descriptor in a daemon thread: terminal, pipe and file alike.

    The descriptor is read without Python's own buffers: a thread that holds their lock when the process ends kills it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(_WAITING_MAX)
        threading.Thread(target=self._read, name="tenure-stdin", daemon=True).start()

    async def next_line(self) -> str | None:
        """The next line without its end; None when there are no more."""
        return await self._lines.get()

    def _read(self) -> None:
        rest = b""
        while chunk := os.read(self._descriptor, _CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._put(line.decode(errors="replace").rstrip("\r"))
        if rest:
            self._put(rest.decode(errors="replace"))
        self._put(None)

    def _put(self, line: str | None) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._lines.put(line), self._loop).result()
        except (RuntimeError, asyncio.CancelledError):
            return  # the loop has ended, and nobody reads any more
