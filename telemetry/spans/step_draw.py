"""Draws one of so many steps: its batch, what it cost, what moved for it, and the turns that were in it."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.core.events import KvMoved, StepAnswered, StepPlanned
from engine.core.ids import Rid, StepNo
from engine.core.ownership import Move, PoolKind
from engine.runtime.step_times import StepTimes
from telemetry.names import Attr, Relation, SpanName
from telemetry.spans.open_span import OpenSpan
from telemetry.spans.record import SpanStatus
from telemetry.spans.tracer import Tracer
from telemetry.spans.turn_draw import TurnDraw

LINKED_TURNS_MAX = 64
_COUNTED = {Move.GRANT: Attr.GRANTED, Move.DONATE: Attr.DONATED, Move.EVICT: Attr.EVICTED}


@dataclass(slots=True)
class _Drawn:
    span: OpenSpan
    answered_ns: int = 0
    failure: str | None = None


class StepDraws:
    """Steps whose number divides by `every` are drawn, each as a trace of its own; 0 draws none."""

    def __init__(self, tracer: Tracer, every: int) -> None:
        self._tracer = tracer
        self._every = every
        self._drawn: dict[StepNo, _Drawn] = {}
        self._pages = dict.fromkeys(_COUNTED, 0)

    @property
    def num_open(self) -> int:
        return len(self._drawn)

    def count(self, event: KvMoved) -> None:
        """Pages of the full pool that move while a step is planned are the step's."""
        if event.pool is PoolKind.FULL and event.move in self._pages:
            self._pages[event.move] += len(event.pages)

    def plan(self, event: StepPlanned, turns: Mapping[Rid, TurnDraw], now_ns: int) -> None:
        pages, self._pages = self._pages, dict.fromkeys(_COUNTED, 0)
        if not self._every or event.step % self._every:
            return
        span = OpenSpan.child(self._tracer, SpanName.STEP, None, now_ns)
        span.attributes |= {Attr.STEP: event.step, Attr.STEP_ROWS: event.num_rows, Attr.STEP_TOKENS: event.num_tokens}
        span.attributes |= {_COUNTED[move]: num_pages for move, num_pages in pages.items()}
        for rid, _, _ in event.shares[:LINKED_TURNS_MAX]:
            turn = turns.get(rid)
            if turn is not None:
                span.link(turn.span.context, Relation.TURN)
        self._drawn[event.step] = _Drawn(span)

    def answer(self, event: StepAnswered, now_ns: int) -> None:
        drawn = self._drawn.get(event.step)
        if drawn is not None:
            drawn.answered_ns, drawn.failure = now_ns, event.failure

    def time(self, times: StepTimes) -> None:
        drawn = self._drawn.pop(times.step, None)
        if drawn is None:
            return
        drawn.span.attributes[Attr.STEP_HOST_S] = times.host_s
        if times.device_s is not None:
            drawn.span.attributes[Attr.STEP_DEVICE_S] = times.device_s
        self._end(drawn, drawn.answered_ns, drawn.failure)

    def lose(self, reason: str, now_ns: int) -> None:
        """The engine has gone without answering them."""
        for drawn in self._drawn.values():
            self._end(drawn, now_ns, reason)
        self._drawn.clear()

    def _end(self, drawn: _Drawn, end_ns: int, failure: str | None) -> None:
        if failure is None:
            self._tracer.end(drawn.span.end(end_ns))
        else:
            drawn.span.attributes[Attr.ERROR_TYPE] = "forward_failed"
            self._tracer.end(drawn.span.end(end_ns, SpanStatus.ERROR, failure))
