"""Flags and OTEL_ variables → where spans go: flags first, and nothing that can not be."""

from collections.abc import Mapping

import pytest
from grpc import Compression

from telemetry.export.connection import Connection
from telemetry.export.settings import SpanExport, read_span_export
from telemetry.export.variables import VariableError
from telemetry.settings import TelemetrySettings

HERE = "http://127.0.0.1:4317"


def read(environment: Mapping[str, str], endpoint: str | None = HERE) -> SpanExport | None:
    return read_span_export(TelemetrySettings(otlp_endpoint=endpoint, environment=environment))


def test_read_when_only_an_endpoint_is_given_then_the_defaults() -> None:
    assert read({}) == SpanExport(
        Connection(HERE, "127.0.0.1:4317"), queue_max=8192, batch_max=64, delay_s=5.0, timeout_s=10.0
    )


def test_read_when_several_endpoints_then_the_flag_the_one_for_traces_and_the_one_for_all() -> None:
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://all:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces:1"}
    found = [read(variables), read(variables, None), read({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://all:1"}, None)]
    assert [each and each.connection.endpoint for each in found] == [HERE, "http://traces:1", "http://all:1"]


@pytest.mark.parametrize("variables", [{"OTEL_SDK_DISABLED": "True"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_read_when_switched_off_then_nothing_is_exported(variables: Mapping[str, str]) -> None:
    assert read(variables) is None


def test_read_when_no_endpoint_then_nothing_is_exported() -> None:
    assert read({}, None) is None
    assert read({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, None) is None


def test_read_when_the_sdk_is_not_disabled_in_so_many_words_then_exported() -> None:
    assert read({"OTEL_SDK_DISABLED": "1"}) is not None


def test_read_when_the_batch_processors_variables_are_set_then_they_hold() -> None:
    variables = {
        "OTEL_BSP_SCHEDULE_DELAY": "250",
        "OTEL_BSP_MAX_QUEUE_SIZE": "100",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "20",
        "OTEL_BSP_EXPORT_TIMEOUT": "1500",
    }
    assert read(variables) == SpanExport(
        Connection(HERE, "127.0.0.1:4317"), queue_max=100, batch_max=20, delay_s=0.25, timeout_s=1.5
    )


def test_read_when_the_queue_is_smaller_than_a_batch_usually_is_then_the_batch_is_as_large() -> None:
    found = read({"OTEL_BSP_MAX_QUEUE_SIZE": "10"})
    assert found is not None
    assert found.batch_max == 10


def test_read_when_the_exporter_has_a_timeout_then_the_least_of_both() -> None:
    found = read({"OTEL_EXPORTER_OTLP_TIMEOUT": "99", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "2.5"})
    assert found is not None
    assert found.timeout_s == 2.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_BSP_SCHEDULE_DELAY", "soon"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "-1"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8193"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "1.5"),
        ("OTEL_BSP_SCHEDULE_DELAY", "9223372036854775807"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "1" * 5000),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "inf"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "br"),
        ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "deflate"),
    ],
)
def test_read_when_a_value_can_not_be_then_refused_by_the_name_of_its_variable(name: str, value: str) -> None:
    with pytest.raises(VariableError, match=f"^{name} must be ") as caught:
        read({name: value})
    assert caught.value.name == name


def test_read_when_the_protocol_for_traces_is_grpc_then_that_of_all_else_does_not_matter() -> None:
    variables = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    assert read(variables) is not None


def test_read_when_nothing_is_exported_then_its_other_variables_do_not_matter() -> None:
    assert read({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, None) is None


def test_read_when_compression_is_given_then_the_one_for_traces_holds() -> None:
    found = read({"OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "GZIP", "OTEL_EXPORTER_OTLP_COMPRESSION": "nonsense"})
    assert found is not None
    assert found.connection.compression is Compression.Gzip
