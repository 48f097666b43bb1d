"""What the log says of spans that are lost: a line when it begins and one when it is over, however many there are."""

import logging

_log = logging.getLogger("tenure.telemetry")


class Outage:
    """Belongs to the exporter's thread. An outage goes on until a batch was taken and no other span was lost."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._begun_at: int | None = None
        """Spans that were lost before it; None: all is well."""

    def failed(self, cause: str, lost_before: int) -> None:
        """An export failed for good. `lost_before`: spans that were lost by then, without this one's."""
        if self._begun_at is None:
            self._begun_at = lost_before
            _log.error("event=span_export_failed endpoint=%s cause=%r: spans are being lost", self._endpoint, cause)

    def overflowed(self, lost_before: int) -> None:
        """Spans came faster than they were sent."""
        if self._begun_at is None:
            self._begun_at = lost_before
            _log.warning(
                "event=span_queue_full endpoint=%s: spans come faster than they are sent, and are being lost",
                self._endpoint,
            )

    def recovered(self, lost: int) -> None:
        """A batch was taken, and nothing was lost since the one before. `lost`: in all."""
        if self._begun_at is not None:
            _log.info("event=span_export_recovered endpoint=%s lost=%d", self._endpoint, lost - self._begun_at)
            self._begun_at = None

    def ended(self, lost: int) -> None:
        """Nothing is exported any more. `lost`: in all."""
        if lost:
            _log.warning(
                "event=span_export_ended endpoint=%s lost=%d: of all spans since the start", self._endpoint, lost
            )
