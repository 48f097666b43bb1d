"""The newest spans that have ended, of all traces, for whoever asks for one turn."""

from collections import deque
from collections.abc import Mapping

from telemetry.names import Attr, SpanName
from telemetry.spans.record import FinishedSpan, SpanContext

SPANS_MAX = 4096
FACTS_MAX = 16_384
"""Events and links that the spans kept may have together, at some 700 bytes each: long prompts have many chunks."""
Place = tuple[str, str]
"""Ids of a trace and of a span in it."""


class SpanRing:
    """A `SpanTarget` of bounded size, for the event loop's thread. It has spans that are not exported, too.

    Looking something up walks through it once: about a millisecond.
    """

    def __init__(self, spans_max: int = SPANS_MAX) -> None:
        self._spans: deque[FinishedSpan] = deque()
        self._spans_max = spans_max
        self._num_facts = 0
        self._num_taken = 0

    @property
    def dropped(self) -> int:
        """Spans that were pushed out by newer ones."""
        return self._num_taken - len(self._spans)

    def take(self, span: FinishedSpan) -> None:
        self._num_taken += 1
        self._spans.append(span)
        self._num_facts += len(span.events) + len(span.links)
        while len(self._spans) > self._spans_max or self._num_facts > FACTS_MAX:
            oldest = self._spans.popleft()
            self._num_facts -= len(oldest.events) + len(oldest.links)

    def find_trace(self, trace_id: str) -> tuple[FinishedSpan, ...]:
        """What is kept of that trace, by start, the oldest first; nothing when nothing is."""
        found = [span for span in self._spans if span.context.trace_id == trace_id]
        return tuple(sorted(found, key=lambda span: span.start_ns))

    def find_trace_ids(self, prefix: str) -> tuple[str, ...]:
        """Of the traces that begin so, each once, the oldest first."""
        ids = (span.context.trace_id for span in self._spans)
        return tuple(dict.fromkeys(trace_id for trace_id in ids if trace_id.startswith(prefix)))

    def index(self) -> Mapping[Place, FinishedSpan]:
        """All that is kept, by where it stands."""
        return {(span.context.trace_id, span.context.span_id): span for span in self._spans}

    def find_turn(self, turn_id: str | None = None, session_id: str | None = None) -> str | None:
        """The trace of the newest turn that has ended: of that name, and of that session, where one is given."""
        found = self.find_turn_span(turn_id, session_id)
        return None if found is None else found.trace_id

    def find_turn_span(self, turn_id: str | None = None, session_id: str | None = None) -> SpanContext | None:
        """The same: where its span stands."""
        for span in reversed(self._spans):
            is_named = span.name == SpanName.TURN and turn_id in (None, span.attributes.get(Attr.TURN_ID))
            if is_named and session_id in (None, span.attributes.get(Attr.SESSION_ID)):
                return span.context
        return None

    def find_exact_turn(self, turn_id: str, session_id: str | None) -> SpanContext | None:
        """The same; without a session it is a turn that has none."""
        for span in reversed(self._spans):
            is_named = span.name == SpanName.TURN and span.attributes.get(Attr.TURN_ID) == turn_id
            if is_named and span.attributes.get(Attr.SESSION_ID) == session_id:
                return span.context
        return None
