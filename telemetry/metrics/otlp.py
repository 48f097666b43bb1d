"""Sends metrics to a collector, counts the exports that failed, and says once when that begins and when it is over."""

import logging
import threading

from grpc import StatusCode
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData

from telemetry.export.connection import Signal, exporter_errors
from telemetry.export.outage import Causes, explain
from telemetry.export.sdk_log import ThreadLog
from telemetry.metrics.settings import MetricExport, read_metric_export
from telemetry.settings import TelemetrySettings

_log = logging.getLogger("tenure.telemetry")


class CountingExporter(OTLPMetricExporter):
    """Called by one thread at a time. What fails is not sent again: the next export has the newer values.

    A collector that says at once that it takes no metrics gets none any more, and nothing of that counts as lost.
    """

    def __init__(self, export: MetricExport) -> None:
        """Raises VariableError."""
        connection = export.connection
        with exporter_errors(Signal.METRICS):
            super().__init__(
                endpoint=connection.url,
                insecure=connection.is_insecure,
                headers=connection.headers,
                timeout=export.timeout_s,
                compression=connection.compression,
            )
        self.endpoint = connection.endpoint
        self.interval_s = export.interval_s
        self._failed_in_a_row = 0
        self._causes = Causes()
        self._is_unwanted = False
        self._idle = threading.Event()
        self._idle.set()
        self.num_sent = 0
        self.num_failed = 0

    def wait_idle(self, timeout_s: float) -> None:
        """Returns once no export is on its way, or the time is up."""
        self._idle.wait(timeout_s)

    def export(
        self,
        metrics_data: MetricsData,
        timeout_millis: float = 10_000,
        **kwargs: object,  # part of the interface; the SDK passes none
    ) -> MetricExportResult:
        if self._is_unwanted:
            return MetricExportResult.SUCCESS
        self._idle.clear()
        with ThreadLog() as heard:
            try:
                result = super().export(metrics_data, timeout_millis)
            except ValueError:  # the channel was closed meanwhile: this is the end
                result = MetricExportResult.FAILURE
        if result is MetricExportResult.SUCCESS:
            self._took()
        elif heard.code is StatusCode.UNIMPLEMENTED and not self.num_sent:  # else it takes them, and is unwell
            self._refused(heard.cause)
        else:
            self._failed(heard.cause)
        self._idle.set()
        return result

    def _took(self) -> None:
        self.num_sent += 1
        if self._failed_in_a_row:
            _log.info("event=metric_export_recovered endpoint=%s lost=%d", self.endpoint, self._failed_in_a_row)
            self._failed_in_a_row = 0
            self._causes.forget()

    def _refused(self, cause: str) -> None:
        self._is_unwanted = True
        _log.warning(
            "event=metrics_not_taken endpoint=%s cause=%r: the collector takes no metrics: set "
            "OTEL_METRICS_EXPORTER=none; none are sent any more",
            self.endpoint,
            cause,
        )

    def _failed(self, cause: str) -> None:
        self.num_failed += 1
        self._failed_in_a_row += 1
        if self._causes.is_new(cause) or self._failed_in_a_row == 1:
            told = explain(cause) or "it gave no answer until the end"
            _log.error("event=metric_export_failed endpoint=%s cause=%r: metrics are not sent", self.endpoint, told)


def make_exporter(settings: TelemetrySettings) -> CountingExporter | None:
    """None when no metrics are sent. Raises VariableError."""
    export = read_metric_export(settings)
    return None if export is None else CountingExporter(export)
