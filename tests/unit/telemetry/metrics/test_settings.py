"""Where metrics go: flags before variables, and what can not be is refused by its name."""

import pytest

from telemetry.export.connection import TIMEOUT_S, Connection, is_disabled
from telemetry.export.variables import VariableError
from telemetry.metrics.settings import INTERVAL_S, MetricExport, read_metric_export
from telemetry.settings import TelemetrySettings

A, B = "http://127.0.0.1:1", "http://127.0.0.1:2"


def at(url: str) -> Connection:
    return Connection(url, url.removeprefix("http://"))


def read(flag: str | None = None, **environment: str) -> MetricExport | None:
    return read_metric_export(TelemetrySettings(otlp_endpoint=flag, environment=environment))


def test_export_when_nothing_is_said_then_none() -> None:
    assert read() is None


def test_export_when_flag_and_variables_are_given_then_the_flag_then_the_one_for_metrics() -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": A, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": B}
    assert read(**environment) == MetricExport(at(B), INTERVAL_S, TIMEOUT_S)
    assert read("http://127.0.0.1:3", **environment) == MetricExport(at("http://127.0.0.1:3"))
    assert read(OTEL_EXPORTER_OTLP_ENDPOINT=A) == MetricExport(at(A))


@pytest.mark.parametrize(("name", "value"), [("OTEL_METRICS_EXPORTER", "none"), ("OTEL_SDK_DISABLED", "True")])
def test_export_when_switched_off_then_none_though_there_is_an_endpoint(name: str, value: str) -> None:
    assert read(A, **{name: value}) is None


def test_disabled_when_the_sdk_is_then_it_says_so() -> None:
    assert is_disabled(TelemetrySettings(environment={"OTEL_SDK_DISABLED": "true"}))
    assert not is_disabled(TelemetrySettings(environment={"OTEL_METRICS_EXPORTER": "none"}))


def test_export_when_times_are_set_then_read_in_their_units() -> None:
    export = read(A, OTEL_METRIC_EXPORT_INTERVAL="250", OTEL_EXPORTER_OTLP_TIMEOUT="3")
    assert export == MetricExport(at(A), interval_s=0.25, timeout_s=3.0)
    export = read(A, OTEL_EXPORTER_OTLP_METRICS_TIMEOUT="2", OTEL_EXPORTER_OTLP_TIMEOUT="3")
    assert export == MetricExport(at(A), timeout_s=2.0)
    export = read(A, OTEL_EXPORTER_OTLP_METRICS_TIMEOUT="2", OTEL_METRIC_EXPORT_TIMEOUT="500")
    assert export == MetricExport(at(A), timeout_s=0.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_METRICS_EXPORTER", "prometheus"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "soon"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "9223372036854775807"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "-1"),
        ("OTEL_METRIC_EXPORT_TIMEOUT", "-1"),
        ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "br"),
    ],
)
def test_export_when_a_variable_can_not_be_then_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(VariableError, match=name):
        read(A, **{name: value})
