"""Wakes a thread that waits on sockets, from another one that must not wait."""

import os
from contextlib import suppress


class Bell:
    """A pipe: who waits watches `fileno` for reading."""

    def __init__(self) -> None:
        self._heard, self._rung = os.pipe()
        for end in (self._heard, self._rung):
            os.set_blocking(end, False)
        self._is_closed = False

    def fileno(self) -> int:
        return self._heard

    def ring(self) -> None:
        """Never waits: a full pipe wakes as well. Does nothing once it is closed."""
        if not self._is_closed:
            with suppress(BlockingIOError):
                os.write(self._rung, b"!")

    def silence(self) -> None:
        """For who waits: what was rung until now was heard."""
        with suppress(BlockingIOError):
            os.read(self._heard, 4096)

    def close(self) -> None:
        """By the side that rings, when nobody waits any more. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self._heard)
            os.close(self._rung)
