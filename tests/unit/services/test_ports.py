"""Ports that are asked for before they are needed."""

import errno
import socket

import pytest

from services.config import ConfigError
from services.ports import not_bound, require_free


def test_port_when_somebody_listens_then_refused_by_its_flag_in_the_words_of_the_main_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            require_free("--metrics-port", "127.0.0.1", port)
    assert str(caught.value) == f"--metrics-port: 127.0.0.1:{port} can not be bound; is it in use?"


def test_port_when_it_is_free_then_still_free_behind_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    require_free("--metrics-port", "127.0.0.1", port)
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 0), ("*", 1)])
def test_port_when_any_will_do_or_the_host_is_no_name_then_nothing_is_said(host: str, port: int) -> None:
    require_free("--kv-events-port", host, port)


def test_refusal_when_the_port_is_not_in_use_then_the_systems_words_once() -> None:
    error = not_bound("--metrics-port", "127.0.0.1:80", OSError(errno.EACCES, "127.0.0.1:80: Permission denied"))
    assert str(error) == "--metrics-port: 127.0.0.1:80 can not be bound: Permission denied"
