"""Draws one of so many steps, and all that fail: batch, cost, what moved for it, and the turns that were in it."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.core.events import KvMoved, StepAnswered, StepPlanned
from engine.core.ids import Rid, StepNo
from engine.core.ownership import Move, PoolKind
from engine.runtime.step_times import StepTimes
from telemetry.names import Attr, Relation, SpanName
from telemetry.spans.open_span import OpenSpan
from telemetry.spans.record import SpanContext, SpanStatus
from telemetry.spans.tracer import Tracer
from telemetry.spans.turn_draw import TurnDraw

LINKED_TURNS_MAX = 64
_FORWARD_FAILED = "forward_failed"
_COUNTED = {Move.GRANT: Attr.GRANTED, Move.DONATE: Attr.DONATED, Move.EVICT: Attr.EVICTED}


@dataclass(slots=True)
class _Planned:
    """A step that is out: a few references, whether it will be drawn or not."""

    event: StepPlanned
    begun_ns: int
    pages: dict[Move, int]
    links: tuple[SpanContext, ...] = ()
    answered_ns: int = 0
    failure: str | None = None


class StepDraws:
    """Each step is a trace of its own. Drawn are those whose number divides by `every` (0: none), and all that fail."""

    def __init__(self, tracer: Tracer, every: int) -> None:
        self._tracer = tracer
        self._every = every
        self._planned: dict[StepNo, _Planned] = {}
        self._pages = dict.fromkeys(_COUNTED, 0)

    @property
    def num_open(self) -> int:
        """Those that are out and will be drawn."""
        return sum(self._is_asked_for(step) for step in self._planned)

    def _is_asked_for(self, step: StepNo) -> bool:
        return self._every > 0 and step % self._every == 0

    def count(self, event: KvMoved) -> None:
        """Pages of the full pool that move while a step is planned are the step's."""
        if event.pool is PoolKind.FULL and event.move in self._pages:
            self._pages[event.move] += len(event.pages)

    def plan(self, event: StepPlanned, turns: Mapping[Rid, TurnDraw], now_ns: int) -> None:
        pages, self._pages = self._pages, dict.fromkeys(_COUNTED, 0)
        planned = self._planned[event.step] = _Planned(event, now_ns, pages)
        if self._is_asked_for(event.step):
            planned.links = _contexts(event, turns)

    def answer(self, event: StepAnswered, turns: Mapping[Rid, TurnDraw], now_ns: int) -> None:
        planned = self._planned.get(event.step)
        if planned is None:
            return
        planned.answered_ns, planned.failure = now_ns, event.failure
        if event.failure is not None and not planned.links:
            planned.links = _contexts(planned.event, turns)  # it is told before its turns end

    def time(self, times: StepTimes) -> None:
        planned = self._planned.pop(times.step, None)
        if planned is None or (planned.failure is None and not self._is_asked_for(times.step)):
            return
        span = self._draw(planned)
        span.attributes[Attr.STEP_HOST_S] = times.host_s
        if times.device_s is not None:
            span.attributes[Attr.STEP_DEVICE_S] = times.device_s
        self._end(span, planned.answered_ns, planned.failure, _FORWARD_FAILED)

    def lose(self, reason: str, now_ns: int) -> None:
        """The engine has gone without answering them."""
        for planned in self._planned.values():
            self._end(self._draw(planned), now_ns, reason, reason)
        self._planned.clear()

    def _draw(self, planned: _Planned) -> OpenSpan:
        event = planned.event
        span = OpenSpan.child(self._tracer, SpanName.STEP, None, planned.begun_ns)
        span.attributes |= {Attr.STEP: event.step, Attr.STEP_ROWS: event.num_rows, Attr.STEP_TOKENS: event.num_tokens}
        span.attributes |= {_COUNTED[move]: num_pages for move, num_pages in planned.pages.items()}
        for turn in planned.links:
            span.link(turn, Relation.TURN)
        return span

    def _end(self, span: OpenSpan, end_ns: int, failure: str | None, kind: str) -> None:
        if failure is None:
            self._tracer.end(span.end(end_ns))
        else:
            span.attributes[Attr.ERROR_TYPE] = kind
            self._tracer.end(span.end(end_ns, SpanStatus.ERROR, failure))


def _contexts(event: StepPlanned, turns: Mapping[Rid, TurnDraw]) -> tuple[SpanContext, ...]:
    """Of the turns in a step, the first ones."""
    found = (turns.get(rid) for rid, _, _ in event.shares[:LINKED_TURNS_MAX])
    return tuple(turn.span.context for turn in found if turn is not None)
