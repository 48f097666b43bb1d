"""Sends metrics to a collector, counts the exports that failed, and says once when that begins and when it is over."""

import logging
import threading

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData

from telemetry.export.sdk_log import ThreadLog
from telemetry.metrics.settings import MetricExport

_log = logging.getLogger("tenure.telemetry")


class CountingExporter(OTLPMetricExporter):
    """Called by one thread at a time. What fails is not sent again: the next export has the newer values."""

    def __init__(self, export: MetricExport) -> None:
        super().__init__(endpoint=export.endpoint, timeout=export.timeout_s)
        self._address = export.endpoint
        self._failed_in_a_row = 0
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
        self._idle.clear()
        with ThreadLog() as heard:
            heard.cause = "the collector did not take it"
            try:
                result = super().export(metrics_data, timeout_millis)
            except ValueError as error:  # the channel was closed meanwhile: this is the end
                heard.cause = str(error)
                result = MetricExportResult.FAILURE
        if result is MetricExportResult.SUCCESS:
            self._took()
        else:
            self._failed(heard.cause)
        self._idle.set()
        return result

    def _took(self) -> None:
        self.num_sent += 1
        if self._failed_in_a_row:
            _log.info("event=metric_export_recovered endpoint=%s failed=%d", self._address, self._failed_in_a_row)
            self._failed_in_a_row = 0

    def _failed(self, cause: str) -> None:
        self.num_failed += 1
        self._failed_in_a_row += 1
        if self._failed_in_a_row == 1:
            _log.error("event=metric_export_failed endpoint=%s cause=%r: metrics are not sent", self._address, cause)
