"""Where a collector is: what can be one, and what is refused without being repeated."""

import pytest

from telemetry.export.address import Address, read_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://127.0.0.1:4317", Address("http", "127.0.0.1:4317")),
        ("https://collector.example:443/", Address("https", "collector.example:443")),
        ("HTTP://[::1]:65535", Address("http", "[::1]:65535")),
        ("localhost:4317", Address("", "localhost:4317")),
        ("127.0.0.1:1", Address("", "127.0.0.1:1")),
    ],
)
def test_address_when_it_can_be_then_read(text: str, expected: Address) -> None:
    assert read_address(text) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must have a host"),
        ("http://", "must have a host"),
        ("http://:4317", "must have a host"),
        ("http://[zz]:4317", "must have a host"),
        ("http://[::1:4317", "must have a host"),
        ("http://localhost", "must have a port"),
        ("localhost", "must have a port"),
        ("http://localhost:", "must have a port"),
        ("http://localhost:0", "must have a port"),
        ("http://localhost:65536", "must have a port"),
        ("http://localhost:-1", "must have a port"),
        ("http://localhost:otlp", "must have a port"),
        ("http://localhost:4317/v1/traces", "must end with its port"),
        ("http://localhost:4317?a=b", "must end with its port"),
        ("http://localhost:4317/#a", "must end with its port"),
        ("grpc://localhost:4317", "must begin with http:// or https://"),
        ("http://http://localhost:4317", "must begin with http:// or https://"),
        ("http://local host:4317", "has characters"),
        ("http://localhost\n:4317", "has characters"),
        ("http://me:secret@localhost:4317", "must have no user and no password"),
        ("me:secret@localhost:4317", "must have no user and no password"),
        ("http://me:secret@localhost:0/path", "must have no user and no password"),
    ],
)
def test_address_when_it_can_not_be_then_told_why_and_not_repeated(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        read_address(text)
    assert "secret" not in str(caught.value)


def test_address_when_a_scheme_is_needed_then_refused_without() -> None:
    with pytest.raises(ValueError, match="must begin with http:// or https://"):
        read_address("127.0.0.1:4317", needs_scheme=True)
