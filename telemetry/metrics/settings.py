"""Where metrics are exported to, by the flags of the server and by OpenTelemetry's variables."""

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
from telemetry.export.variables import VariableError, read_ms, read_text
from telemetry.settings import TelemetrySettings

INTERVAL_S = 60.0
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
    is_wanted = is_exported(environment, Signal.METRICS, otherwise="for Prometheus there is --metrics-port")
    if not is_wanted or find_endpoint(settings, Signal.METRICS) is None or is_disabled(settings):
        return None
    temporality = read_text(environment, _TEMPORALITY) or "cumulative"
    if temporality.lower() != "cumulative":
        raise VariableError(_TEMPORALITY, f"must be cumulative, not {temporality!r}: counts here are since the start")
    return MetricExport(
        connection=read_connection(settings, Signal.METRICS),
        interval_s=read_ms(environment, "OTEL_METRIC_EXPORT_INTERVAL", INTERVAL_S),
        timeout_s=read_timeout_s(environment, Signal.METRICS, "OTEL_METRIC_EXPORT_TIMEOUT"),
    )
