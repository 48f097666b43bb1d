"""Metrics as a whole: one provider over the sink's numbers, what scrapes it, what sends it, and the end of both."""

import logging
import threading
from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from engine.runtime.clock import Clock, MonotonicClock, WallClock
from telemetry.export.connection import is_disabled
from telemetry.metrics.catalogue import METRICS
from telemetry.metrics.endpoint import Endpoint, Page
from telemetry.metrics.otlp import CountingExporter, make_exporter
from telemetry.metrics.readers import Histograms, ScrapedReader, SendingReader
from telemetry.metrics.reading import Reading
from telemetry.metrics.series import SERIES, Row, tally_rows
from telemetry.metrics.sink import MetricsSink
from telemetry.names import SCOPE, Kind, Metric, MetricName
from telemetry.settings import TelemetrySettings

_log = logging.getLogger("tenure.telemetry")

OWN_SIGNAL = "metrics"
"""Under which exports of metrics are counted as sent, or dropped."""
_LEAST_S = 0.01
_CUT_S = 0.1
"""How long an export may take to end once it was cut off."""


class Metrics:
    """Reads the sink on threads of its own. The event loop takes no part in it."""

    def __init__(
        self,
        settings: TelemetrySettings,
        sink: MetricsSink,
        resource: Resource,
        clock: Clock | None = None,
        exporter: CountingExporter | None = None,
    ) -> None:
        """`exporter`: of these settings, if one was made of them before. Raises VariableError for a variable of
        `settings.environment` that can not be.
        """
        self._settings = settings
        self._sink = sink
        self._resource = resource
        self._clock = clock or MonotonicClock()
        self._exporter = exporter or make_exporter(settings)
        self._sending: SendingReader | None = None
        self._scraped: ScrapedReader | None = None
        self._endpoint: Endpoint | None = None
        # Each collection runs in one thread, beginning with the first instrument, and is of one reading.
        self._collected = threading.local()

    @property
    def endpoint_address(self) -> str | None:
        """`host:port`; None when there is no endpoint."""
        return None if self._endpoint is None else self._endpoint.address

    @property
    def num_sent(self) -> int:
        """Exports that the collector took."""
        return 0 if self._exporter is None else self._exporter.num_sent

    @property
    def num_lost(self) -> int:
        """Exports that it did not take, though it takes metrics."""
        return 0 if self._exporter is None else self._exporter.num_failed

    def start(self) -> None:
        """Once. Raises MetricsPortTaken."""
        port = self._settings.metrics_port
        if is_disabled(self._settings):
            if port is not None:
                _log.warning("event=metrics_off: OTEL_SDK_DISABLED is true, so nothing answers on port %d", port)
            return
        registry = CollectorRegistry()
        histograms = Histograms(self._sink, WallClock())
        if port is not None:
            self._endpoint = Endpoint(self._settings.metrics_host, port, _renderer(registry))
            self._scraped = ScrapedReader(registry, histograms)
        if self._exporter is not None:
            self._sending = SendingReader(self._exporter, self._exporter.interval_s, histograms)
        readers = [reader for reader in (self._scraped, self._sending) if reader is not None]
        if readers:
            provider = MeterProvider(
                readers, self._resource, shutdown_on_exit=False, exemplar_filter=AlwaysOffExemplarFilter()
            )
            self._observe_all(provider.get_meter(SCOPE))
        if self._endpoint is not None:
            self._endpoint.start()

    def close(self, timeout_s: float) -> None:
        """Hangs up on who scrapes, and sends the last values, or gives them up when the time is over; not 0.2 s later,
        whatever the collector does. Idempotent.
        """
        deadline_s = self._clock.now() + timeout_s
        if self._endpoint is not None:
            self._endpoint.close(timeout_s)
        scraped, self._scraped = self._scraped, None
        if scraped is not None:
            scraped.shutdown()
        sending, self._sending = self._sending, None
        if sending is not None and self._exporter is not None:
            left_s = max(_LEAST_S, deadline_s - self._clock.now())
            sending.shutdown(timeout_millis=left_s * 1000)  # at the end cuts what is still on its way
            self._exporter.wait_idle(_CUT_S)
            if self.num_lost:
                _log.warning(
                    "event=metric_export_ended endpoint=%s lost=%d: %s lost since the start",
                    self._exporter.endpoint,
                    self.num_lost,
                    "1 export of metrics was" if self.num_lost == 1 else f"{self.num_lost} exports of metrics were",
                )

    def _observe_all(self, meter: Meter) -> None:
        metrics = [metric for metric in METRICS if metric.kind is not Kind.HISTOGRAM]
        for at, metric in enumerate(metrics):
            _register(meter, metric, self._make_callback(MetricName(metric.name), is_first=at == 0))

    def _make_callback(self, name: MetricName, *, is_first: bool) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            if is_first:
                self._collected.reading = self._sink.reading
            return [Observation(value, labels) for labels, value in self._rows(name, self._collected.reading)]

        return observe

    def _rows(self, name: MetricName, reading: Reading) -> list[Row]:
        match name:
            case MetricName.TELEMETRY_SENT:
                return tally_rows({**self._sink.sent, OWN_SIGNAL: lambda: self.num_sent})
            case MetricName.TELEMETRY_DROPPED:
                return tally_rows({**self._sink.losses, OWN_SIGNAL: lambda: self.num_lost})
            case _:
                return SERIES[name](reading)


def _register(meter: Meter, metric: Metric, callback: Callable[[CallbackOptions], Iterable[Observation]]) -> None:
    create = meter.create_observable_counter if metric.kind is Kind.COUNTER else meter.create_observable_gauge
    create(metric.name, [callback], unit=metric.unit, description=metric.description)


def _renderer(registry: CollectorRegistry) -> Callable[[str], Page]:
    def render(accept: str) -> Page:
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # what it was asked for can not be read
            encode, content_type = choose_encoder("")
        return Page(content_type, encode(registry))

    return render
