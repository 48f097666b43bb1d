"""How spans are exported, by the flags of the server and by OpenTelemetry's variables."""

from collections.abc import Mapping
from dataclasses import dataclass

from telemetry.export.connection import Connection, Signal, find_endpoint, read_connection, variables_of
from telemetry.export.variables import VariableError, read_count, read_flag, read_ms, read_seconds, read_text
from telemetry.settings import TelemetrySettings

QUEUE_MAX = 8192
BATCH_MAX = 64
"""Less than the SDKs' 512: a batch is made by Python code that holds the interpreter up in slices of 5 ms, and the
event loop waits its turn. At 64 the longest wait was 7 ms instead of 17, for a sixth more CPU in the thread."""
DELAY_S = 5.0
_EXPORT_S = 30.0
_TIMEOUT_S = 10.0


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
    timeout_s: float = _TIMEOUT_S
    """What one export may take, all its tries together."""


def read_span_export(settings: TelemetrySettings) -> SpanExport | None:
    """None when no spans are exported. Raises VariableError."""
    environment = settings.environment
    has_endpoint = find_endpoint(settings, Signal.TRACES) is not None
    if not has_endpoint or read_flag(environment, "OTEL_SDK_DISABLED") or not _is_wanted(environment):
        return None
    connection = read_connection(settings, Signal.TRACES)
    queue_max = read_count(environment, "OTEL_BSP_MAX_QUEUE_SIZE", QUEUE_MAX)
    batch_max = read_count(environment, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", min(BATCH_MAX, queue_max))
    if batch_max > queue_max:
        problem = f"must be at most OTEL_BSP_MAX_QUEUE_SIZE, {queue_max}, not {batch_max}"
        raise VariableError("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", problem)
    # The variable of the exporter is in seconds, as its own package reads it, and unlike the others.
    timeout_s = read_seconds(environment, *variables_of(Signal.TRACES, "TIMEOUT"), default_s=_TIMEOUT_S)
    return SpanExport(
        connection=connection,
        queue_max=queue_max,
        batch_max=batch_max,
        delay_s=read_ms(environment, "OTEL_BSP_SCHEDULE_DELAY", DELAY_S),
        timeout_s=min(timeout_s, read_ms(environment, "OTEL_BSP_EXPORT_TIMEOUT", _EXPORT_S)),
    )


def _is_wanted(environment: Mapping[str, str]) -> bool:
    name = "OTEL_TRACES_EXPORTER"
    exporter = read_text(environment, name) or "otlp"
    if exporter not in ("otlp", "none"):
        raise VariableError(name, f"must be otlp or none, not {exporter!r}: there is no other exporter")
    return exporter == "otlp"
