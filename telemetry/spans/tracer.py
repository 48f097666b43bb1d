"""Begins spans: their ids, their times, whether their trace is exported; and hands them out once they end."""

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from engine.runtime.clock import Clock, MonotonicClock, WallClock
from telemetry.spans.record import FinishedSpan, SpanContext, SpanTarget

_NS = 1_000_000_000
_SYNC_S = 30.0
"""How often monotonic time may be laid against the wall clock again."""


class Sampler(Protocol):
    """Whether a trace is exported."""

    def is_sampled(self, trace_id: str, parent: SpanContext | None, name: str) -> bool:
        """`parent`: of the span of that name; None for the root of a trace."""
        ...


class AllSampled:
    """Exports what is not asked to be left out."""

    def is_sampled(self, trace_id: str, parent: SpanContext | None, name: str) -> bool:
        return parent is None or parent.is_sampled


class Timeline:
    """Monotonic seconds → nanoseconds since 1970. In order between two calls of `sync`, whatever is done to the wall
    clock: a turn that runs while it is set keeps its order and its length."""

    def __init__(self, clock: Clock | None = None, wall: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._wall = wall or WallClock()
        self._synced_s = self._clock.now()
        self._offset_s = self._wall.now() - self._synced_s

    def now_ns(self) -> int:
        return self.unix_ns(self._clock.now())

    def unix_ns(self, now_s: float) -> int:
        """`now_s`: as the sinks are told."""
        return int((now_s + self._offset_s) * _NS)

    def sync(self) -> None:
        """Nothing is being drawn: from now on times are the wall clock's, if it went its own way."""
        now_s = self._clock.now()
        if now_s - self._synced_s >= _SYNC_S:
            self._synced_s = now_s
            self._offset_s = self._wall.now() - now_s


class Tracer:
    """What all that draw spans share. Belongs to the event loop's thread."""

    def __init__(
        self,
        targets: Sequence[SpanTarget],
        sampler: Sampler | None = None,
        timeline: Timeline | None = None,
        random_bits: Callable[[int], int] | None = None,
    ) -> None:
        """`random_bits(n)`: n random bits."""
        self._targets = tuple(targets)
        self._sampler = sampler or AllSampled()
        self.timeline = timeline or Timeline()
        self._random_bits = random_bits or random.SystemRandom().getrandbits

    def begin(self, parent: SpanContext | None, name: str) -> SpanContext:
        """A context for a span below `parent`, or for the root of a new trace."""
        if parent is not None:
            return SpanContext(parent.trace_id, self._new_id(64), parent.is_sampled, parent.tracestate)
        trace_id = self._new_id(128)
        return SpanContext(trace_id, self._new_id(64), self._sampler.is_sampled(trace_id, None, name))

    def begin_remote(self, parent: SpanContext, name: str) -> SpanContext:
        """The same below a span of another process, which may want its trace not to be exported."""
        is_sampled = self._sampler.is_sampled(parent.trace_id, parent, name)
        return SpanContext(parent.trace_id, self._new_id(64), is_sampled, parent.tracestate)

    def end(self, span: FinishedSpan) -> None:
        for target in self._targets:
            target.take(span)

    def _new_id(self, num_bits: int) -> str:
        number = self._random_bits(num_bits) or 1  # all zeros is no id
        return f"{number:0{num_bits // 4}x}"
