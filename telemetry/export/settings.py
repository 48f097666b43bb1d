"""How spans are exported, by the flags of the server and by OpenTelemetry's variables."""

from dataclasses import dataclass

from telemetry.export.connection import (
    TIMEOUT_S,
    Connection,
    Signal,
    find_endpoint,
    is_disabled,
    is_exported,
    read_connection,
    read_timeout_s,
)
from telemetry.export.variables import VariableError, read_count, read_ms
from telemetry.settings import TelemetrySettings

QUEUE_MAX = 8192
BATCH_MAX = 64
"""Less than the SDKs' 512: a batch is made by Python code that holds the interpreter up in slices of 5 ms, and the
event loop waits its turn. At 64 the longest wait was 7 ms instead of 17, for a sixth more CPU in the thread."""
DELAY_S = 5.0


@dataclass(frozen=True, slots=True)
class SpanExport:
    """Where spans go, and in which portions."""

    connection: Connection
    queue_max: int = QUEUE_MAX
    """Spans that may wait; more are dropped."""
    batch_max: int = BATCH_MAX
    """Spans in one export."""
    delay_s: float = DELAY_S
    """How long a span waits for others at most, when the collector keeps up."""
    timeout_s: float = TIMEOUT_S
    """What one export may take, all its tries together."""


def read_span_export(settings: TelemetrySettings) -> SpanExport | None:
    """None when no spans are exported. Raises VariableError."""
    environment = settings.environment
    if find_endpoint(settings, Signal.TRACES) is None or is_disabled(settings):
        return None
    if not is_exported(environment, Signal.TRACES, otherwise="there is no other exporter"):
        return None
    connection = read_connection(settings, Signal.TRACES)
    queue_max = read_count(environment, "OTEL_BSP_MAX_QUEUE_SIZE", QUEUE_MAX)
    batch_max = read_count(environment, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", min(BATCH_MAX, queue_max))
    if batch_max > queue_max:
        problem = f"must be at most OTEL_BSP_MAX_QUEUE_SIZE, {queue_max}, not {batch_max}"
        raise VariableError("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", problem)
    return SpanExport(
        connection=connection,
        queue_max=queue_max,
        batch_max=batch_max,
        delay_s=read_ms(environment, "OTEL_BSP_SCHEDULE_DELAY", DELAY_S),
        timeout_s=read_timeout_s(environment, Signal.TRACES, "OTEL_BSP_EXPORT_TIMEOUT"),
    )
