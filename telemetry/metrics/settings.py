"""Where metrics are exported to, by the flags of the server and by OpenTelemetry's variables."""

from dataclasses import dataclass

from telemetry.export.connection import Connection, Signal, find_endpoint, read_connection, variables_of
from telemetry.export.variables import VariableError, read_flag, read_ms, read_seconds, read_text
from telemetry.settings import TelemetrySettings

INTERVAL_S = 60.0
TIMEOUT_S = 10.0
_EXPORT_S = 30.0
_TEMPORALITY = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"


@dataclass(frozen=True, slots=True)
class MetricExport:
    connection: Connection
    interval_s: float = INTERVAL_S
    timeout_s: float = TIMEOUT_S
    """What one export may take, all its tries together."""


def read_metric_export(settings: TelemetrySettings) -> MetricExport | None:
    """None when no metrics are sent to a collector. Raises VariableError."""
    environment = settings.environment
    exporter = read_text(environment, "OTEL_METRICS_EXPORTER") or "otlp"
    if exporter not in ("otlp", "none"):
        problem = f"must be otlp or none, not {exporter!r}: for Prometheus there is --metrics-port"
        raise VariableError("OTEL_METRICS_EXPORTER", problem)
    if find_endpoint(settings, Signal.METRICS) is None or exporter == "none" or is_disabled(settings):
        return None
    temporality = read_text(environment, _TEMPORALITY) or "cumulative"
    if temporality.lower() != "cumulative":
        raise VariableError(_TEMPORALITY, f"must be cumulative, not {temporality!r}: counts here are since the start")
    timeout_s = read_seconds(environment, *variables_of(Signal.METRICS, "TIMEOUT"), default_s=TIMEOUT_S)
    return MetricExport(
        connection=read_connection(settings, Signal.METRICS),
        interval_s=read_ms(environment, "OTEL_METRIC_EXPORT_INTERVAL", INTERVAL_S),
        timeout_s=min(timeout_s, read_ms(environment, "OTEL_METRIC_EXPORT_TIMEOUT", _EXPORT_S)),
    )


def is_disabled(settings: TelemetrySettings) -> bool:
    """Whether OpenTelemetry's SDK is switched off, and with it all metrics."""
    return read_flag(settings.environment, "OTEL_SDK_DISABLED")
