"""What the log says of spans that are lost: when it begins, when its cause is another one, and when it is over."""

import logging
import re

_log = logging.getLogger("tenure.telemetry")
_CAUSES_MAX = 16
_NUMBERS = re.compile(r"\d+")


class Causes:
    """Which causes of one outage were told: each once, however often they come by turns."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def is_new(self, cause: str) -> bool:
        """Whether it is to be told. Numbers make no difference: ports, times and tries are in them."""
        kind = _NUMBERS.sub("", cause)
        if not kind or kind in self._told or len(self._told) >= _CAUSES_MAX:
            return False
        self._told.add(kind)
        return True

    def forget(self) -> None:
        """It is over."""
        self._told.clear()


def explain(cause: str) -> str:
    """With what it mostly is, where gRPC's words do not tell."""
    if "parsing HTTP/2" in cause:
        return f"{cause}; is this an OTLP/HTTP port? gRPC is 4317 by default"
    return cause


class Outage:
    """Belongs to the exporter's thread. An outage goes on until a batch was taken and no other span was lost."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._causes = Causes()
        self._begun_at: int | None = None
        """Spans that were lost before it; None: all is well."""

    def failed(self, cause: str, lost_before: int) -> None:
        """An export failed for good. `cause`: empty when nobody said it. `lost_before`: spans that were lost by then,
        without this one's.
        """
        is_first = self._begun_at is None
        if self._begun_at is None:
            self._begun_at = lost_before
        if self._causes.is_new(cause) or is_first:
            told = explain(cause) or "it gave no answer until the end"
            _log.error("event=span_export_failed endpoint=%s cause=%r: spans are being lost", self._endpoint, told)

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
            self._causes.forget()

    def ended(self, lost: int) -> None:
        """Nothing is exported any more. `lost`: in all."""
        if lost:
            _log.warning(
                "event=span_export_ended endpoint=%s lost=%d: %s lost since the start",
                self._endpoint,
                lost,
                "1 span was" if lost == 1 else f"{lost} spans were",
            )
