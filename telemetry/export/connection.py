"""How a collector is reached, by OpenTelemetry's variables: what its exporters can not use is refused by name."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import entry_points
from pathlib import Path

from grpc import Compression, StatusCode
from opentelemetry.util.re import parse_env_headers

from telemetry.export.address import Address, read_address
from telemetry.export.variables import VariableError, read_flag, read_ms, read_name, read_seconds, read_text
from telemetry.settings import TelemetrySettings

TIMEOUT_S = 10.0
_EXPORT_S = 30.0
_PROTOCOL = "grpc"
_COMPRESSIONS = {"none": Compression.NoCompression, "gzip": Compression.Gzip}
"""Those of OpenTelemetry. Most collectors can not read gRPC's `deflate`."""
_RETRYABLE = "OTEL_PYTHON_EXPORTER_OTLP_GRPC_RETRYABLE_ERROR_CODES"
_PROVIDERS = "opentelemetry_otlp_credential_provider"
_HEADER = re.compile(r"[0-9A-Za-z_.-]+[ \t]*=[\x20\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*")
"""What OpenTelemetry's reader takes, less the names that gRPC does not: that one ends the process."""


class Signal(StrEnum):
    """In the names of variables."""

    TRACES = "TRACES"
    METRICS = "METRICS"


@dataclass(frozen=True, slots=True)
class Connection:
    endpoint: str
    """As it was given."""
    host_and_port: str
    is_insecure: bool = True
    """In plain text."""
    compression: Compression = Compression.NoCompression
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Often credentials: never logged."""

    @property
    def url(self) -> str:
        return f"{'http' if self.is_insecure else 'https'}://{self.host_and_port}"


def variables_of(signal: Signal, what: str) -> tuple[str, str]:
    """The variable for one signal, which goes first, and the one for all."""
    return f"OTEL_EXPORTER_OTLP_{signal}_{what}", f"OTEL_EXPORTER_OTLP_{what}"


def find_endpoint(settings: TelemetrySettings, signal: Signal) -> str | None:
    return settings.otlp_endpoint or read_text(settings.environment, *variables_of(signal, "ENDPOINT"))


def read_connection(settings: TelemetrySettings, signal: Signal) -> Connection:
    """With `find_endpoint`, of settings that have one. Raises VariableError."""
    endpoint, environment = find_endpoint(settings, signal), settings.environment
    assert endpoint is not None, "there is no endpoint"
    named = read_name(environment, *variables_of(signal, "ENDPOINT"))
    name = "--otlp-endpoint" if settings.otlp_endpoint or named is None else named
    try:
        address = read_address(endpoint)
    except ValueError as error:
        raise VariableError(name, str(error)) from None
    _require_grpc(environment, signal)
    _require_timeout(environment, signal)
    _require_retryable(environment)
    is_insecure = _is_insecure(environment, signal, address)
    if not is_insecure:
        _require_credentials(environment, signal)
    return Connection(
        endpoint=endpoint,
        host_and_port=address.host_and_port,
        is_insecure=is_insecure,
        compression=_read_compression(environment, signal),
        headers=_read_headers(environment, signal),
    )


def is_disabled(settings: TelemetrySettings) -> bool:
    """Whether OpenTelemetry's SDK is switched off, and with it all that it sends."""
    return read_flag(settings.environment, "OTEL_SDK_DISABLED")


def is_exported(environment: Mapping[str, str], signal: Signal, otherwise: str) -> bool:
    """Whether `OTEL_*_EXPORTER` wants it sent. `otherwise`: what people who name another exporter should know.

    Raises VariableError.
    """
    name = f"OTEL_{signal}_EXPORTER"
    exporter = read_text(environment, name) or "otlp"
    if exporter not in ("otlp", "none"):
        raise VariableError(name, f"must be otlp or none, not {exporter!r}: {otherwise}")
    return exporter == "otlp"


def read_timeout_s(environment: Mapping[str, str], signal: Signal, export_variable: str) -> float:
    """What one export may take, all its tries together: the exporter's own limit, or the one of `export_variable` in ms
    when that is less. Raises VariableError.
    """
    # The variable of the exporter is in seconds, as its own package reads it, and unlike the others.
    timeout_s = read_seconds(environment, *variables_of(signal, "TIMEOUT"), default_s=TIMEOUT_S)
    return min(timeout_s, read_ms(environment, export_variable, _EXPORT_S))


@contextmanager
def exporter_errors(signal: Signal) -> Iterator[None]:
    """Around the making of OpenTelemetry's exporter: what it raises becomes a VariableError."""
    try:
        yield
    except Exception as error:  # allowed (ADR 5): a provider of credentials is code of others
        problem = f"OpenTelemetry's exporter can not be made: {type(error).__name__}: {error}"
        raise VariableError(f"OTEL_EXPORTER_OTLP_* for {signal.lower()}", problem) from error


def _is_insecure(environment: Mapping[str, str], signal: Signal, address: Address) -> bool:
    """Only of a bare `host:port` the variable has a say."""
    if address.scheme:
        return address.scheme == "http"
    name = read_name(environment, *variables_of(signal, "INSECURE"))
    if name is None:
        return False
    text = environment[name].strip().lower()
    if text not in ("true", "false"):
        raise VariableError(name, f"must be true or false, not {text!r}")
    return text == "true"


def _require_grpc(environment: Mapping[str, str], signal: Signal) -> None:
    name = read_name(environment, *variables_of(signal, "PROTOCOL"))
    if name is not None and environment[name].strip() != _PROTOCOL:
        raise VariableError(name, f"must be {_PROTOCOL}, not {environment[name]!r}: nothing else is spoken here")


def _require_timeout(environment: Mapping[str, str], signal: Signal) -> None:
    name, _ = variables_of(signal, "TIMEOUT")
    if name in environment and not environment[name].strip():
        raise VariableError(name, "must be a number of seconds above 0, or not be set at all: it is empty")


def _require_retryable(environment: Mapping[str, str]) -> None:
    for code in (read_text(environment, _RETRYABLE) or "").split(","):
        if code.strip() and code.strip().upper() not in StatusCode.__members__:
            raise VariableError(_RETRYABLE, f"must be names of gRPC's codes, as in UNAVAILABLE, and {code!r} is none")


def _read_compression(environment: Mapping[str, str], signal: Signal) -> Compression:
    name = read_name(environment, *variables_of(signal, "COMPRESSION"))
    if name is None:
        return Compression.NoCompression
    text = environment[name].strip().lower()
    if text not in _COMPRESSIONS:
        raise VariableError(name, f"must be one of {', '.join(_COMPRESSIONS)}, not {text!r}")
    return _COMPRESSIONS[text]


def _read_headers(environment: Mapping[str, str], signal: Signal) -> tuple[tuple[str, str], ...]:
    """Of `name=value,name=value`. What is wrong is told by its place: the values are secrets."""
    name = read_name(environment, *variables_of(signal, "HEADERS"))
    if name is None:
        return ()
    headers: dict[str, str] = {}
    for place, pair in enumerate(environment[name].split(","), 1):
        if not pair.strip():
            continue
        if _HEADER.fullmatch(pair.strip()) is None:
            raise VariableError(name, f"must be name=value,name=value, percent-encoded, and pair {place} is no such")
        headers |= parse_env_headers(pair, liberal=True)
        if not all(value.isascii() and value.isprintable() for value in headers.values()):
            raise VariableError(name, f"must hold printable ASCII, and the value of pair {place} does not")
    return tuple(headers.items())


def _require_credentials(environment: Mapping[str, str], signal: Signal) -> None:
    """Of what the exporter will load: all for this signal if it has a certificate, and else what is for all."""
    at = 0 if read_text(environment, variables_of(signal, "CERTIFICATE")[0]) else 1
    for provider in (f"OTEL_PYTHON_EXPORTER_OTLP_GRPC_{each}CREDENTIAL_PROVIDER" for each in (f"{signal}_", "")):
        wanted = read_text(environment, provider)
        if wanted is not None and not entry_points(group=_PROVIDERS, name=wanted):
            raise VariableError(provider, f"must be an entry point of {_PROVIDERS}, and {wanted!r} is not installed")
    root, key, chain = (variables_of(signal, what)[at] for what in ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE"))
    for name in (root, key, chain):
        _require_pem(environment, name)
    if (read_text(environment, key) is None) != (read_text(environment, chain) is None):
        missing, other = (key, chain) if read_text(environment, key) is None else (chain, key)
        raise VariableError(missing, f"must be given with {other}: a key needs its certificate")


def _require_pem(environment: Mapping[str, str], name: str) -> None:
    path = read_text(environment, name)
    if path is None:
        return
    try:
        has_pem = b"-----BEGIN " in Path(path).read_bytes()
    except OSError as error:
        raise VariableError(name, f"must be a file that can be read, and {path} is not: {error.strerror}") from None
    if not has_pem:
        raise VariableError(name, f"must be a file in PEM format, and {path} is not")
