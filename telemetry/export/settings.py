"""How spans are exported, by the flags of the server and by OpenTelemetry's variables."""

from collections.abc import Mapping
from dataclasses import dataclass

from telemetry.export.variables import VariableError, read_count, read_flag, read_ms, read_seconds, read_text
from telemetry.settings import TelemetrySettings

QUEUE_MAX = 8192
BATCH_MAX = 64
"""Less than the SDKs' 512: a batch is made by Python code that holds the interpreter up in slices of 5 ms, and the
event loop waits its turn. At 64 the longest wait was 7 ms instead of 17, for a sixth more CPU in the thread."""
DELAY_S = 5.0
_EXPORT_S = 30.0
_TIMEOUT_S = 10.0
_PROTOCOL = "grpc"
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


@dataclass(frozen=True, slots=True)
class SpanExport:
    """Where spans go, and in which portions."""

    endpoint: str
    queue_max: int = QUEUE_MAX
    """Spans that may wait; more are dropped."""
    batch_max: int = BATCH_MAX
    """Spans in one export."""
    delay_s: float = DELAY_S
    """How long a span waits for others at most, when the collector keeps up."""
    timeout_s: float = _TIMEOUT_S
    """What one export may take, all its tries together."""


def read_span_export(settings: TelemetrySettings) -> SpanExport | None:
    """None when no spans are exported. Raises VariableError.

    All else that OpenTelemetry has variables for (headers, certificates, compression) its exporter reads by itself.
    """
    environment = settings.environment
    endpoint = settings.otlp_endpoint or read_text(environment, *_ENDPOINTS)
    if endpoint is None or read_flag(environment, "OTEL_SDK_DISABLED") or not _is_wanted(environment):
        return None
    _require_grpc(environment)
    queue_max = read_count(environment, "OTEL_BSP_MAX_QUEUE_SIZE", QUEUE_MAX)
    batch_max = read_count(environment, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", min(BATCH_MAX, queue_max))
    if batch_max > queue_max:
        problem = f"must be at most OTEL_BSP_MAX_QUEUE_SIZE, {queue_max}, not {batch_max}"
        raise VariableError("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", problem)
    # The variable of the exporter is in seconds, as its own package reads it, and unlike the others.
    names = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
    timeout_s = read_seconds(environment, *names, default_s=_TIMEOUT_S)
    return SpanExport(
        endpoint=endpoint,
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


def _require_grpc(environment: Mapping[str, str]) -> None:
    for name in _PROTOCOLS:
        protocol = read_text(environment, name)
        if protocol is not None:
            if protocol != _PROTOCOL:
                raise VariableError(name, f"must be {_PROTOCOL}, not {protocol!r}: nothing else is spoken here")
            return
