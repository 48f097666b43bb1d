"""How a collector is reached: each variable that its exporter can not use is refused by name, and no secret is told."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from telemetry.export.connection import Connection, Signal, exporter_errors, read_connection
from telemetry.export.variables import VariableError
from telemetry.settings import TelemetrySettings

PLAIN, SECURE = "http://127.0.0.1:4317", "https://127.0.0.1:4317"


def read(endpoint: str, environment: Mapping[str, str], signal: Signal = Signal.TRACES) -> Connection:
    return read_connection(
        TelemetrySettings(environment={"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, **environment}), signal
    )


def refusal(endpoint: str, environment: Mapping[str, str], signal: Signal = Signal.TRACES) -> VariableError:
    with pytest.raises(VariableError) as caught:
        read(endpoint, environment, signal)
    return caught.value


@pytest.mark.parametrize(
    ("endpoint", "insecure", "expected"),
    [
        (PLAIN, None, True),
        (PLAIN, "nonsense", True),
        (PLAIN, "false", True),
        (SECURE, None, False),
        (SECURE, "true", False),
        ("127.0.0.1:4317", None, False),
        ("127.0.0.1:4317", "false", False),
        ("127.0.0.1:4317", "True", True),
    ],
)
def test_security_when_the_endpoint_has_a_scheme_then_it_decides_and_else_the_variable(
    endpoint: str, insecure: str | None, expected: bool
) -> None:
    environment = {} if insecure is None else {"OTEL_EXPORTER_OTLP_INSECURE": insecure}
    connection = read(endpoint, environment)
    assert connection.is_insecure == expected
    assert connection.url == (PLAIN if expected else SECURE), "a scheme that OpenTelemetry's exporter takes as we do"


def test_insecure_when_it_decides_and_is_neither_true_nor_false_then_refused_by_name() -> None:
    assert refusal("127.0.0.1:4317", {"OTEL_EXPORTER_OTLP_INSECURE": "1"}).name == "OTEL_EXPORTER_OTLP_INSECURE"


@pytest.mark.parametrize("signal", list(Signal))
def test_endpoint_when_it_can_not_be_then_the_variable_it_is_from_is_named(signal: Signal) -> None:
    assert refusal("http://127.0.0.1", {}, signal).name == "OTEL_EXPORTER_OTLP_ENDPOINT"
    own = f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"
    error = refusal(PLAIN, {own: "http://me:secret@127.0.0.1:1"}, signal)
    assert error.name == own
    assert "secret" not in str(error)


@pytest.mark.parametrize("prefix", ["", "METRICS_"])
@pytest.mark.parametrize("value", ["zip", "deflate", "gzip,none"])
def test_compression_when_unknown_then_refused_by_name(prefix: str, value: str) -> None:
    name = f"OTEL_EXPORTER_OTLP_{prefix}COMPRESSION"
    assert str(refusal(PLAIN, {name: value}, Signal.METRICS)) == f"{name} must be one of none, gzip, not {value!r}"


def test_headers_when_given_then_read_and_not_in_the_text_of_the_connection() -> None:
    connection = read(PLAIN, {"OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer s3cret, x-tenant=a%20b,"})
    assert connection.headers == (("authorization", "Bearer s3cret"), ("x-tenant", "a b"))
    assert "s3cret" not in repr(connection)


@pytest.mark.parametrize(
    "value", ["s3cret", "a=b,s3cret", "bad key=s3cret", "k(=s3cret", "k=s3cret%0Ab", "k=s3cret%C3%A4"]
)
def test_headers_when_grpc_can_not_send_them_then_refused_by_name_and_not_repeated(value: str) -> None:
    error = refusal(PLAIN, {"OTEL_EXPORTER_OTLP_TRACES_HEADERS": value})
    assert error.name == "OTEL_EXPORTER_OTLP_TRACES_HEADERS"
    assert "s3cret" not in str(error)


def test_retryable_codes_when_one_is_unknown_then_refused_by_name() -> None:
    name = "OTEL_PYTHON_EXPORTER_OTLP_GRPC_RETRYABLE_ERROR_CODES"
    assert refusal(PLAIN, {name: "UNAVAILABLE, LATE"}).name == name
    assert read(PLAIN, {name: "unavailable, ABORTED,"}).is_insecure


def test_timeout_when_set_to_nothing_then_refused_because_the_exporter_stumbles_over_it() -> None:
    name = "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"
    assert refusal(PLAIN, {name: ""}).name == name


@pytest.mark.parametrize("prefix", ["", "TRACES_"])
def test_certificates_when_they_can_not_be_read_then_refused_by_name(prefix: str, tmp_path: Path) -> None:
    good, no_pem = tmp_path / "good.pem", tmp_path / "no.pem"
    good.write_text("-----BEGIN CERTIFICATE-----\n")
    no_pem.write_text("nothing")
    root, key, chain = (
        f"OTEL_EXPORTER_OTLP_{prefix}{what}" for what in ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")
    )
    given = {root: str(good), key: str(good), chain: str(good)}
    assert not read(SECURE, given).is_insecure
    for name in given:
        for path in (tmp_path / "missing.pem", tmp_path, no_pem):
            assert refusal(SECURE, {**given, name: str(path)}).name == name
    assert refusal(SECURE, {root: str(good), key: str(good)}).name == chain, "gRPC would end the process"
    assert refusal(SECURE, {root: str(good), chain: str(good)}).name == key
    assert read(PLAIN, {root: str(no_pem)}).is_insecure, "in plain text nothing reads them"


@pytest.mark.parametrize("prefix", ["", "METRICS_"])
def test_credential_provider_when_not_installed_then_refused_by_name(prefix: str) -> None:
    name = f"OTEL_PYTHON_EXPORTER_OTLP_GRPC_{prefix}CREDENTIAL_PROVIDER"
    assert refusal(SECURE, {name: "nobodys"}, Signal.METRICS).name == name


def test_exporter_when_its_making_raises_whatever_then_a_variable_error_says_what() -> None:
    words = "for traces OpenTelemetry's exporter can not be made: KeyError: 'x'"
    with pytest.raises(VariableError, match=words), exporter_errors(Signal.TRACES):
        raise KeyError("x")
