"""The process's log: one line an entry, handed to a thread, so that whoever logs never waits for the stream."""

import logging
from typing import TextIO

from telemetry.background_writer import WAITING_MAX, BackgroundWriter

_FORMAT = "%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"


class BackgroundHandler(logging.StreamHandler[BackgroundWriter]):
    """A handler that never blocks, not even behind another thread that logs: its lock is held for formatting only.

    Entries are `time level logger message`. When some were dropped, `event=log_lines_dropped lines=...` stands there.
    """

    def __init__(self, stream: TextIO, waiting_max: int = WAITING_MAX) -> None:
        self._own_format = logging.Formatter(_FORMAT)
        self._writer = BackgroundWriter(stream, self._format_dropped, waiting_max)
        super().__init__(self._writer)
        self.setFormatter(self._own_format)

    @property
    def dropped(self) -> int:
        """Entries that were lost."""
        return self._writer.dropped

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name in `logging`
        """An entry that can not be formatted is named instead; the inherited method would write to the stream here."""
        self._writer.write(self._line(logging.ERROR, f"event=log_entry_broken logger={record.name} at={record.lineno}"))

    def finish(self, timeout_s: float) -> None:
        """Lets what waits be written, for so long at most. Later entries are dropped."""
        self._writer.close(timeout_s)

    def _format_dropped(self, dropped: int) -> str:
        return self._line(logging.WARNING, f"event=log_lines_dropped lines={dropped}")

    def _line(self, level: int, message: str) -> str:
        facts = {"name": __name__, "levelno": level, "levelname": logging.getLevelName(level), "msg": message}
        return self._own_format.format(logging.makeLogRecord(facts)) + self.terminator
