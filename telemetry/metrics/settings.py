"""Where metrics are exported to, by the flags of the server and by OpenTelemetry's variables."""

from dataclasses import dataclass

from telemetry.export.variables import VariableError, read_flag, read_ms, read_seconds, read_text
from telemetry.settings import TelemetrySettings

INTERVAL_S = 60.0
TIMEOUT_S = 10.0
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_TIMEOUTS = ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")


@dataclass(frozen=True, slots=True)
class MetricExport:
    endpoint: str
    interval_s: float = INTERVAL_S
    timeout_s: float = TIMEOUT_S
    """What one export may take, all its tries together."""


def read_metric_export(settings: TelemetrySettings) -> MetricExport | None:
    """None when no metrics are sent to a collector. Raises VariableError.

    All else that OpenTelemetry has variables for (headers, certificates, compression) its exporter reads by itself.
    """
    environment = settings.environment
    endpoint = settings.otlp_endpoint or read_text(environment, *_ENDPOINTS)
    exporter = read_text(environment, "OTEL_METRICS_EXPORTER") or "otlp"
    if exporter not in ("otlp", "none"):
        problem = f"must be otlp or none, not {exporter!r}: for Prometheus there is --metrics-port"
        raise VariableError("OTEL_METRICS_EXPORTER", problem)
    if endpoint is None or exporter == "none" or is_disabled(settings):
        return None
    name = next((name for name in _PROTOCOLS if read_text(environment, name)), None)
    if name is not None and read_text(environment, name) != "grpc":
        raise VariableError(name, f"must be grpc, not {environment[name]!r}: nothing else is spoken here")
    return MetricExport(
        endpoint=endpoint,
        interval_s=read_ms(environment, "OTEL_METRIC_EXPORT_INTERVAL", INTERVAL_S),
        timeout_s=read_seconds(environment, *_TIMEOUTS, default_s=TIMEOUT_S),
    )


def is_disabled(settings: TelemetrySettings) -> bool:
    """Whether OpenTelemetry's SDK is switched off, and with it all metrics."""
    return read_flag(settings.environment, "OTEL_SDK_DISABLED")
