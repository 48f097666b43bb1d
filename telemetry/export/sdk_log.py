"""What OpenTelemetry's exporter has to say about the calls of one thread, kept from the log and heard here."""

import logging
import threading
from types import TracebackType
from typing import Self

from grpc import StatusCode

EXPORTER_LOGGER = "opentelemetry.exporter.otlp.proto.grpc.exporter"
"""Where it logs each failed try of each export, of spans and of metrics."""
_CLOSED_BY_US = "Channel closed!"
"""Says less than what the tries before it ended with."""


class ThreadLog(logging.Filter):
    """`with ThreadLog() as heard`: entries of this thread go no further until the end; the last failure is `cause`.

    The exporter answers no more than SUCCESS or FAILURE, and tells the reason to its log alone; there it is one line or
    more for each batch, as long as a collector is away. Entries of other threads pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self._thread_id = threading.get_ident()
        self._logger = logging.getLogger(EXPORTER_LOGGER)
        self.cause = ""
        self.code: StatusCode | None = None
        """Of that failure."""

    def __enter__(self) -> Self:
        # Before the exporter's own filter: that drops what is like the entry before, also when it is of another thread.
        self._logger.filters.insert(0, self)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._logger.removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self._thread_id:
            return True
        code, details = _find_cause(record)
        if code is not None and details != _CLOSED_BY_US:
            self.cause, self.code = f"{code.name}: {details}", code
        return False


def _find_cause(record: logging.LogRecord) -> tuple[StatusCode | None, object]:
    """The code and why, of a try that failed; None of other entries."""
    match record.args:
        case (StatusCode() as code, _, _, _, details):  # and will be tried again
            return code, details
        case (_, _, StatusCode() as code, details):
            return code, details
        case _:
            return None, ""
