"""The scraped port: what it answers, and that no client holds up another, or stays for ever."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from telemetry.metrics.endpoint import Endpoint, MetricsPortTaken, Page, Render
from tests.kit.scraping import fetch

WAIT_S = 10.0
SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


def page(accept: str) -> Page:
    return Page("text/plain", f"all is well; accept={accept}\n".encode())


@contextmanager
def answering(
    render: Render = page, *, connections_max: int = 8, client_s: float = 5.0, host: str = "127.0.0.1"
) -> Iterator[Endpoint]:
    endpoint = Endpoint(host, 0, render, connections_max=connections_max, client_s=client_s)
    endpoint.start()
    try:
        yield endpoint
    finally:
        endpoint.close(WAIT_S)


def connect(endpoint: Endpoint) -> socket.socket:
    host, _, port = endpoint.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


def ask(endpoint: Endpoint, request: bytes) -> str:
    with connect(endpoint) as client:
        client.sendall(request)
        return read_all(client)


def read_all(client: socket.socket) -> str:
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts).decode()


def scrape_threads() -> int:
    return sum(thread.name == "tenure-scrape" for thread in threading.enumerate())


def wait_until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline_s, "it does not come to hold"
        time.sleep(0.005)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_get_when_asked_for_metrics_then_the_page_and_its_type(host: str) -> None:
    with answering(host=host) as endpoint:
        assert fetch(f"http://{endpoint.address}/metrics", accept="text/plain") == "all is well; accept=text/plain\n"
        assert "200 OK\r\nContent-Type: text/plain" in ask(endpoint, SCRAPE)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET / HTTP/1.1", "404 Not Found"),
        (b"GET /metricsx HTTP/1.1", "404 Not Found"),
        (b"POST /metrics HTTP/1.1", "405 Method Not Allowed"),
        (b"GET /metrics?x=1 HTTP/1.1", "200 OK"),
        (b"\xff\xfe\x00", "404 Not Found"),
        (b"", "404 Not Found"),
    ],
)
def test_request_when_it_is_another_one_then_answered_as_http_has_it(request_line: bytes, status: str) -> None:
    with answering() as endpoint:
        assert ask(endpoint, request_line + b"\r\n\r\n").startswith(f"HTTP/1.1 {status}\r\n")


def test_request_when_its_head_has_no_end_then_hung_up_on() -> None:
    with answering() as endpoint, connect(endpoint) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n" + b"x" * 20_000)
        with suppress(ConnectionResetError):  # there was more of it on its way
            assert read_all(client) == ""
        wait_until(lambda: scrape_threads() == 0)


def test_clients_when_some_ask_nothing_and_one_reads_nothing_then_another_is_answered_at_once() -> None:
    large = Page("text/plain", b"x" * 64 * 1024 * 1024)
    with answering(lambda accept: large if accept == "large" else page(accept)) as endpoint, ExitStack() as clients:
        for _ in range(3):
            clients.enter_context(connect(endpoint))
        deaf = clients.enter_context(connect(endpoint))
        deaf.sendall(SCRAPE.replace(b"\r\n\r\n", b"\r\nAccept: large\r\n\r\n"))
        wait_until(lambda: scrape_threads() == 4)
        began_s = time.monotonic()
        assert fetch(f"http://{endpoint.address}/metrics").startswith("all is well")
        assert time.monotonic() - began_s < 2.0


def test_clients_when_they_ask_by_drops_or_read_nothing_then_each_is_gone_after_its_time() -> None:
    large = Page("text/plain", b"x" * 64 * 1024 * 1024)
    with (
        answering(lambda _accept: large, client_s=0.3) as endpoint,
        connect(endpoint) as slow,
        connect(endpoint) as deaf,
    ):
        deaf.sendall(SCRAPE)
        wait_until(lambda: scrape_threads() == 2)

        def are_gone_though_one_goes_on() -> bool:
            with suppress(OSError):  # it was hung up on
                slow.sendall(b"x")
            return scrape_threads() == 0

        wait_until(are_gone_though_one_goes_on)


def test_clients_when_there_are_too_many_then_the_next_is_told_so_and_later_ones_are_served() -> None:
    with answering(connections_max=2) as endpoint:
        with connect(endpoint), connect(endpoint):
            wait_until(lambda: scrape_threads() == 2)
            with connect(endpoint) as third:
                assert read_all(third).startswith("HTTP/1.1 503 Service Unavailable\r\n")
        wait_until(lambda: scrape_threads() == 0)
        assert fetch(f"http://{endpoint.address}/metrics").startswith("all is well")


def test_scrapes_when_many_come_at_once_then_rendered_one_at_a_time() -> None:
    inside, most = 0, 0

    def render(_accept: str) -> Page:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.002)
        inside -= 1
        return page("")

    with answering(render) as endpoint:
        threads = [threading.Thread(target=fetch, args=(f"http://{endpoint.address}/metrics",)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == 1


def test_close_when_a_client_is_connected_then_it_is_hung_up_on_at_once_and_the_port_is_free() -> None:
    with answering() as endpoint, connect(endpoint) as client:
        wait_until(lambda: scrape_threads() == 1)
        began_s = time.monotonic()
        endpoint.close(5.0)
        endpoint.close(5.0)
        assert time.monotonic() - began_s < 2.0
        assert client.recv(1) == b""
        assert scrape_threads() == 0
        host, _, port = endpoint.address.rpartition(":")
        again = Endpoint(host, int(port), page)
        again.start()
        assert "200 OK" in ask(again, SCRAPE)
        again.close(WAIT_S)


def test_port_when_it_is_taken_then_refused_with_its_address() -> None:
    with answering() as endpoint:
        host, _, port = endpoint.address.rpartition(":")
        with pytest.raises(MetricsPortTaken, match=f"127.0.0.1:{port}") as caught:
            Endpoint(host, int(port), page)
        assert caught.value.address == endpoint.address


def test_clients_when_no_thread_can_be_started_then_told_so_and_later_ones_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with answering() as endpoint:
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if thread.name == "tenure-scrape":
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)
        for _ in range(20):
            with suppress(OSError):
                assert ask(endpoint, SCRAPE).startswith("HTTP/1.1 503")
        monkeypatch.undo()
        assert "all is well" in ask(endpoint, SCRAPE)


def test_close_when_it_was_never_started_then_quiet() -> None:
    Endpoint("127.0.0.1", 0, page).close(WAIT_S)
