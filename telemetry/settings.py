"""What telemetry is told to do: one frozen set of values for the whole room."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Encoding(StrEnum):
    """How KV events are written for other programs: maps with their names, or arrays in the agreed order of fields."""

    MAP = "map"
    ARRAY = "array"


@dataclass(frozen=True, slots=True)
class KvFeedSettings:
    """The publisher of what the prefix cache holds."""

    host: str
    port: int
    """0 takes any free one, as for `replay_port`."""
    replay_port: int
    topic: str = ""
    encoding: Encoding = Encoding.MAP
    publishes_salted: bool = True
    """Whether pages of a namespace of their own (tenant, adapter, salt) are published; their hashes begin with it."""


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """`environment`: the process's `OTEL_*` variables. A flag that is given goes before its variable."""

    otlp_endpoint: str | None = None
    trace_steps: int = 64
    """Every so many steps one is drawn as a span; 0 is none."""
    flush_s: float = 5.0
    """What all that is still to be sent may take together when the server stops."""
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    kv_feed: KvFeedSettings | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
