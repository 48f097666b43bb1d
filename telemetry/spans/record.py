"""A span as plain data: made on the loop, read by the ring, handed to whoever exports it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from telemetry.names import Relation

Value = str | int | float | bool | tuple[str, ...]
Attributes = Mapping[str, Value]


class SpanKind(StrEnum):
    SERVER = "server"
    INTERNAL = "internal"


class SpanStatus(StrEnum):
    UNSET = "unset"
    OK = "ok"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SpanContext:
    """Where a span stands: its trace (32 hexadecimal digits), itself (16), whether it is exported."""

    trace_id: str
    span_id: str
    is_sampled: bool = True
    tracestate: str = ""
    """As in the W3C header; handed on unread."""


@dataclass(frozen=True, slots=True)
class Link:
    context: SpanContext
    relation: Relation


@dataclass(frozen=True, slots=True)
class SpanEvent:
    name: str
    time_ns: int
    """Since 1970."""
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FinishedSpan:
    """Nothing changes it any more: any thread may read it."""

    name: str
    context: SpanContext
    start_ns: int
    """Since 1970."""
    end_ns: int
    parent_span_id: str = ""
    """Empty for a root."""
    kind: SpanKind = SpanKind.INTERNAL
    attributes: Attributes = field(default_factory=dict)
    events: tuple[SpanEvent, ...] = ()
    links: tuple[Link, ...] = ()
    status: SpanStatus = SpanStatus.UNSET
    status_message: str = ""


class SpanTarget(Protocol):
    """Takes spans as they end, on the event loop's thread. Never blocks, never raises; counts what it drops."""

    def take(self, span: FinishedSpan) -> None: ...
