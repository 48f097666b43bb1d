"""Where a collector is: what `--otlp-endpoint` and OpenTelemetry's variables for endpoints may say."""

from dataclasses import dataclass
from urllib.parse import urlsplit

_SCHEMES = ("http", "https")
_EXAMPLE = "as in http://127.0.0.1:4317"


@dataclass(frozen=True, slots=True)
class Address:
    scheme: str
    """`http`, `https`, or empty: another variable says whether it is encrypted."""
    host_and_port: str


def read_address(text: str, *, needs_scheme: bool = False) -> Address:
    """Raises ValueError, with what the value must be. That never repeats the value: it may hold a password."""
    scheme, separator, rest = text.rpartition("://")
    if scheme.lower() not in _SCHEMES and (separator or needs_scheme):
        raise ValueError(f"must begin with http:// or https://, {_EXAMPLE}")
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("has characters that no address has")
    try:
        parts = urlsplit(f"//{rest}")
    except ValueError:  # brackets without an IPv6 address in them
        raise ValueError(f"must have a host, {_EXAMPLE}") from None
    if "@" in parts.netloc:
        raise ValueError("must have no user and no password: what shall be sent with it is OTEL_EXPORTER_OTLP_HEADERS")
    if not parts.hostname:
        raise ValueError(f"must have a host, {_EXAMPLE}")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if not port:
        raise ValueError(f"must have a port from 1 to 65535, {_EXAMPLE}")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"must end with its port, {_EXAMPLE}: OTLP over gRPC has no paths")
    return Address(scheme.lower(), parts.netloc)
