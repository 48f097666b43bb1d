"""The newest spans that have ended, of all traces, for whoever asks for one turn."""

from collections import deque

from telemetry.names import Attr, SpanName
from telemetry.spans.record import FinishedSpan, SpanContext

SPANS_MAX = 4096


class SpanRing:
    """A `SpanTarget` of bounded size, for the event loop's thread. It has spans that are not exported, too.

    Looking something up walks through it once: about a millisecond.
    """

    def __init__(self, spans_max: int = SPANS_MAX) -> None:
        self._spans: deque[FinishedSpan] = deque(maxlen=spans_max)
        self._num_taken = 0

    @property
    def dropped(self) -> int:
        """Spans that were pushed out by newer ones."""
        return self._num_taken - len(self._spans)

    def take(self, span: FinishedSpan) -> None:
        self._num_taken += 1
        self._spans.append(span)

    def find_trace(self, trace_id: str) -> tuple[FinishedSpan, ...]:
        """What is kept of that trace, by start, the oldest first; nothing when nothing is."""
        found = [span for span in self._spans if span.context.trace_id == trace_id]
        return tuple(sorted(found, key=lambda span: span.start_ns))

    def find_turn(self, turn_id: str, session_id: str | None = None) -> str | None:
        """The trace of the newest turn of that name that has ended, of that session where one is given."""
        found = self.find_turn_span(turn_id, session_id)
        return None if found is None else found.trace_id

    def find_turn_span(self, turn_id: str, session_id: str | None = None) -> SpanContext | None:
        """The same: where its span stands."""
        for span in reversed(self._spans):
            is_it = span.name == SpanName.TURN and span.attributes.get(Attr.TURN_ID) == turn_id
            if is_it and session_id in (None, span.attributes.get(Attr.SESSION_ID)):
                return span.context
        return None
