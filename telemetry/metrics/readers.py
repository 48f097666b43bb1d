"""The two readers of metrics, one that is scraped and one that sends: OpenTelemetry's own, given our histograms too."""

from collections.abc import Callable
from dataclasses import replace

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricsData,
    PeriodicExportingMetricReader,
)
from prometheus_client import CollectorRegistry

from engine.runtime.clock import Clock
from telemetry.metrics.buckets import Buckets
from telemetry.metrics.catalogue import find_metric
from telemetry.metrics.series import Labels, histogram_rows
from telemetry.metrics.sink import MetricsSink

_NS = 1_000_000_000
AddTo = Callable[[MetricsData], MetricsData]


class Histograms:
    """The sink's bucket counts as OpenTelemetry's data. Its instrument for them would lock and cost the event loop."""

    def __init__(self, sink: MetricsSink, wall: Clock) -> None:
        """`wall` tells seconds since 1970."""
        self._sink = sink
        self._wall = wall
        self._began_ns = int(wall.now() * _NS)

    def add_to(self, data: MetricsData) -> MetricsData:
        """On any thread. The same data, the one scope of which has our histograms as well."""
        now_ns = int(self._wall.now() * _NS)
        metrics = [self._to_metric(name, rows, now_ns) for name, rows in histogram_rows(self._sink)]
        resources = [
            replace(
                resource,
                scope_metrics=[replace(scope, metrics=[*scope.metrics, *metrics]) for scope in resource.scope_metrics],
            )
            for resource in data.resource_metrics
        ]
        return MetricsData(resources)

    def _to_metric(self, name: str, rows: list[tuple[Labels, Buckets]], now_ns: int) -> Metric:
        metric = find_metric(name)
        points = [self._to_point(labels, buckets, now_ns) for labels, buckets in rows]
        data = Histogram(points, AggregationTemporality.CUMULATIVE)
        return Metric(metric.name, metric.description, metric.unit, data)

    def _to_point(self, labels: Labels, buckets: Buckets, now_ns: int) -> HistogramDataPoint:
        return HistogramDataPoint(
            attributes=labels,
            start_time_unix_nano=self._began_ns,
            time_unix_nano=now_ns,
            count=buckets.num_values,
            sum=buckets.total,
            bucket_counts=buckets.counts,
            explicit_bounds=buckets.bounds,
            min=buckets.least,
            max=buckets.most,
        )


class ScrapedReader(PrometheusMetricReader):
    """Read through its registry. One scrape at a time: two at once would get each other's series."""

    def __init__(self, registry: CollectorRegistry, histograms: Histograms) -> None:
        super().__init__(registry=registry, scope_info_enabled=False)
        self._histograms = histograms

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> None:
        super()._receive_metrics(self._histograms.add_to(metrics_data), timeout_millis, **kwargs)


class SendingReader(PeriodicExportingMetricReader):
    """Collects and exports on a thread of its own, which begins at once."""

    def __init__(self, exporter: MetricExporter, interval_s: float, histograms: Histograms) -> None:
        self._histograms = histograms
        super().__init__(exporter, export_interval_millis=interval_s * 1000)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> None:
        super()._receive_metrics(self._histograms.add_to(metrics_data), timeout_millis, **kwargs)
