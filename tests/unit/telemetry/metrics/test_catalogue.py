"""The catalogue of metrics holds what it promises: names with one unit each, pairs with one set of labels."""

import re

import pytest

from engine.core.ownership import PoolKind
from telemetry.metrics.catalogue import METRICS, PAIRS, Pair, find_metric, prometheus_name
from telemetry.metrics.series import SERIES, histogram_rows
from telemetry.metrics.sink import MetricsSink
from telemetry.names import Kind, Metric, MetricName

SHARES = {"rate", "ratio", "share", "percent", "perc", "usage", "util", "utilization"}
TALLIED = {MetricName.TELEMETRY_SENT, MetricName.TELEMETRY_DROPPED}


def make_sink() -> MetricsSink:
    return MetricsSink({PoolKind.FULL: 11, PoolKind.ROWS: 4}, "m", {})


def test_metrics_when_listed_then_each_name_once() -> None:
    assert sorted(metric.name for metric in METRICS) == sorted(MetricName)


def test_metrics_when_listed_then_each_has_its_numbers() -> None:
    histograms = {name for name, _ in histogram_rows(make_sink())}
    assert histograms == {metric.name for metric in METRICS if metric.kind is Kind.HISTOGRAM}
    others = {metric.name for metric in METRICS if metric.kind is not Kind.HISTOGRAM}
    assert set(SERIES) | TALLIED == others


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_metric_when_looked_at_then_described_counted_in_one_unit_and_no_share(metric: Metric) -> None:
    """MET-05 (llm-d/llm-d-autoscaling#1351): no share, whose range a version could change: whoever reads divides."""
    assert metric.description.endswith(".")
    assert not SHARES & set(re.split(r"[._]", metric.name))
    assert metric.unit == "s" or re.fullmatch(r"\{\w+\}", metric.unit), metric.unit
    assert (metric.unit == "s") == bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert all(type(bound) is float for bound in metric.buckets), "an int is another label than a float"


@pytest.mark.parametrize("metric", [metric for metric in METRICS if metric.name in SERIES], ids=lambda each: each.name)
def test_metric_when_read_then_its_series_have_the_labels_of_the_catalogue(metric: Metric) -> None:
    rows = SERIES[MetricName(metric.name)](make_sink().reading)
    assert rows
    assert {tuple(labels) for labels, _ in rows} == {metric.labels}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.part)
def test_pair_when_looked_at_then_same_labels_and_same_series(pair: Pair) -> None:
    """MET-05 (llm-d/llm-d-autoscaling#1351): a ratio of two metrics with other labels is empty."""
    part, whole = find_metric(pair.part), find_metric(pair.whole)
    assert part.labels == whole.labels
    assert part.kind is whole.kind
    reading = make_sink().reading
    part_rows, whole_rows = SERIES[pair.part](reading), SERIES[pair.whole](reading)
    assert [labels for labels, _ in part_rows] == [labels for labels, _ in whole_rows]


@pytest.mark.parametrize(
    ("name", "scraped"),
    [
        (MetricName.TIME_TO_FIRST_TOKEN, "gen_ai_server_time_to_first_token_seconds"),
        (MetricName.KV_MOVES, "tenure_kv_moves_total"),
        (MetricName.POOL_UNITS, "tenure_pool_units"),
    ],
)
def test_prometheus_name_when_asked_then_with_unit_and_suffix(name: MetricName, scraped: str) -> None:
    assert prometheus_name(find_metric(name)) == scraped
