"""Metrics on their way to a collector that is well, silent, failing, or not there: over real gRPC, on loopback."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping

import grpc
import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric

from telemetry.metrics.catalogue import METRICS, find_metric
from telemetry.names import MetricName
from tests.kit.metering import POOL_PAGES, make_sink, metering, mixed_run, url_of
from tests.kit.otlp_receiver import OtlpReceiver, receiving, receiving_nothing
from tests.kit.runtime_rig import running
from tests.kit.scraping import scrape

WAIT_S = 20.0
SLACK_S = 0.6
"""What this machine may be late by."""
QUICK = {"OTEL_METRIC_EXPORT_INTERVAL": "50"}


def wait_for(holds: Callable[[], bool], receiver: OtlpReceiver) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline_s, f"it does not come to hold; {receiver.num_calls} calls"
        time.sleep(0.01)


def newest(receiver: OtlpReceiver) -> Mapping[str, Metric]:
    last = receiver.resource_metrics[-1]
    return {metric.name: metric for scope in last.scope_metrics for metric in scope.metrics}


async def test_export_when_a_collector_is_there_then_it_gets_what_a_scrape_says() -> None:
    sink = make_sink()
    with receiving() as receiver, metering(sink, receiver.endpoint, 0, QUICK) as metrics:
        async with running(sinks=(sink,), pool_pages=POOL_PAGES) as rig:
            await mixed_run(rig)
            page = await scrape(url_of(metrics))
        await asyncio.to_thread(metrics.close, WAIT_S)
        told = newest(receiver)
        assert set(told) == {metric.name for metric in METRICS}
        ended = {
            point.attributes[0].value.string_value: point.as_int
            for point in told[MetricName.TURNS_ENDED].sum.data_points
            if point.as_int
        }
        assert ended == page.by("tenure_turns_ended_total", "tenure_turn_outcome") == {"length": 18, "client": 1}
        assert told[MetricName.TURNS_ENDED].sum.is_monotonic
        assert told[MetricName.POOL_SIZE].WhichOneof("data") == "gauge"
        first_token = told[MetricName.TIME_TO_FIRST_TOKEN]
        histogram, metric = first_token.histogram, find_metric(MetricName.TIME_TO_FIRST_TOKEN)
        (point,) = histogram.data_points
        assert histogram.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
        assert tuple(point.explicit_bounds) == metric.buckets
        assert point.count == sum(point.bucket_counts) == page.value("gen_ai_server_time_to_first_token_seconds_count")
        assert point.sum == pytest.approx(page.value("gen_ai_server_time_to_first_token_seconds_sum"))
        assert 0 < point.start_time_unix_nano <= point.time_unix_nano
        assert (first_token.unit, first_token.description) == (metric.unit, metric.description)
        attributes = {each.key: each.value.string_value for each in receiver.resource_metrics[-1].resource.attributes}
        assert attributes["service.name"] == "tenure"
        assert {"service.version", "service.instance.id"} <= set(attributes)


def test_close_when_the_collector_is_well_then_the_last_values_are_sent() -> None:
    sink = make_sink()
    with receiving() as receiver, metering(sink, receiver.endpoint) as metrics:
        metrics.close(WAIT_S)
        assert receiver.num_calls == 1, "the interval is a minute: this is the one at the end"
        assert (metrics.num_sent, metrics.num_lost) == (1, 0)


@pytest.mark.parametrize("limit_s", [0.0, 0.5])
def test_close_when_the_collector_answers_nothing_then_within_its_time_and_counted(limit_s: float) -> None:
    sink = make_sink()
    with receiving() as receiver, metering(sink, receiver.endpoint, 0, QUICK) as metrics:
        receiver.behaviour.is_blocked = True
        assert receiver.called.wait(WAIT_S)
        began_s = time.monotonic()
        metrics.close(limit_s)
        assert time.monotonic() - began_s < limit_s + SLACK_S
        assert metrics.num_lost > 0
        metrics.close(limit_s)


def test_close_when_nobody_listens_then_within_its_time_and_counted() -> None:
    with socket.socket() as taken:  # bound, so that nobody else takes it, and not listening
        taken.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with metering(make_sink(), endpoint, variables=QUICK) as metrics:
            began_s = time.monotonic()
            metrics.close(0.5)
            assert time.monotonic() - began_s < 0.5 + SLACK_S
            deadline_s = time.monotonic() + WAIT_S
            while not metrics.num_lost:
                assert time.monotonic() < deadline_s
                time.sleep(0.01)


def test_outage_when_many_exports_fail_then_one_line_at_its_begin_and_one_at_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    sink = make_sink()
    with receiving() as receiver:
        receiver.behaviour.refuse_next = 5
        receiver.behaviour.refusal = grpc.StatusCode.INVALID_ARGUMENT
        with metering(sink, receiver.endpoint, variables=QUICK) as metrics:
            wait_for(lambda: metrics.num_lost == 5 and metrics.num_sent >= 2, receiver)
            told = [record for record in caplog.records if record.name != "asyncio"]
            assert [record.name for record in told] == ["tenure.telemetry"] * 2
            assert [record.levelname for record in told] == ["ERROR", "INFO"]
            assert "INVALID_ARGUMENT" in told[0].message
            assert told[1].message.endswith("lost=5")


def test_scrape_when_the_collector_answers_nothing_then_answered_at_once_and_the_failures_are_in_it() -> None:
    sink = make_sink()
    with receiving() as receiver:
        receiver.behaviour.refuse_next = 1000
        receiver.behaviour.refusal = grpc.StatusCode.INVALID_ARGUMENT
        with metering(sink, receiver.endpoint, 0, QUICK) as metrics:
            wait_for(lambda: metrics.num_lost > 0, receiver)
            receiver.behaviour.is_blocked = True
            receiver.called.clear()
            assert receiver.called.wait(WAIT_S)
            began_s = time.monotonic()
            page = asyncio.run(scrape(url_of(metrics)))
            assert time.monotonic() - began_s < 2.0
            assert page.value("tenure_telemetry_dropped_total", tenure_signal="metrics") > 0


def test_collector_when_it_takes_no_metrics_then_said_once_not_asked_again_and_nothing_counts_as_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As Jaeger does. The alert of docs/observability for dropped telemetry looks at the count."""
    caplog.set_level(logging.INFO)
    with receiving() as receiver:
        receiver.behaviour.refuse_next, receiver.behaviour.refusal = 1000, grpc.StatusCode.UNIMPLEMENTED
        with metering(make_sink(), receiver.endpoint, 0, QUICK) as metrics:
            wait_for(lambda: bool(lines(caplog)), receiver)
            page = asyncio.run(scrape(url_of(metrics)))
            metrics.close(WAIT_S)
            assert (receiver.num_calls, metrics.num_sent, metrics.num_lost) == (1, 0, 0)
        assert page.value("tenure_telemetry_dropped_total", tenure_signal="metrics") == 0
    (told,) = lines(caplog)
    assert "the collector takes no metrics: set OTEL_METRICS_EXPORTER=none" in told


def test_collector_when_it_took_metrics_before_and_refuses_them_then_that_is_an_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with receiving() as receiver, metering(make_sink(), receiver.endpoint, variables=QUICK) as metrics:
        wait_for(lambda: metrics.num_sent > 0, receiver)
        receiver.behaviour.refusal = grpc.StatusCode.UNIMPLEMENTED
        receiver.behaviour.refuse_next = 1
        wait_for(lambda: metrics.num_lost == 1 and len(lines(caplog)) == 2, receiver)
        metrics.close(WAIT_S)
    assert [line.split()[0] for line in lines(caplog)] == [
        "event=metric_export_failed",
        "event=metric_export_recovered",
        "event=metric_export_ended",
    ]
    assert lines(caplog)[2].endswith("lost=1: 1 export of metrics was lost since the start")


def test_outage_when_its_cause_changes_then_one_more_line(caplog: pytest.LogCaptureFixture) -> None:
    with receiving() as receiver:
        receiver.behaviour.refuse_next, receiver.behaviour.refusal = 1000, grpc.StatusCode.INVALID_ARGUMENT
        with metering(make_sink(), receiver.endpoint, variables=QUICK) as metrics:
            wait_for(lambda: metrics.num_lost >= 2, receiver)
            receiver.behaviour.refusal = grpc.StatusCode.PERMISSION_DENIED
            lost = metrics.num_lost
            wait_for(lambda: metrics.num_lost >= lost + 3, receiver)
            told = lines(caplog)
    assert len(told) == 2
    assert ["INVALID_ARGUMENT" in told[0], "PERMISSION_DENIED" in told[1]] == [True, True]


def test_endpoint_when_it_speaks_http_1_then_the_usual_port_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with receiving_nothing() as endpoint, metering(make_sink(), endpoint, variables=QUICK) as metrics:
        deadline_s = time.monotonic() + WAIT_S
        while not metrics.num_lost:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        assert "is this an OTLP/HTTP port? gRPC is 4317 by default" in lines(caplog)[0]


def test_export_when_compressed_and_with_headers_then_it_arrives_and_the_log_tells_no_header(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    variables = QUICK | {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip", "OTEL_EXPORTER_OTLP_HEADERS": "authorization=s3cret"}
    with receiving() as receiver, metering(make_sink(), receiver.endpoint, variables=variables) as metrics:
        receiver.behaviour.refuse_next, receiver.behaviour.refusal = 1, grpc.StatusCode.INVALID_ARGUMENT
        wait_for(lambda: metrics.num_sent > 0, receiver)
        assert receiver.resource_metrics
    assert "s3cret" not in caplog.text


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tenure.telemetry"]
