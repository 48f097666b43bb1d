"""The page that Prometheus scrapes: HTTP on threads of its own, few and each with its time, whatever clients do."""

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import NamedTuple

from engine.runtime.clock import Clock, MonotonicClock

CONNECTIONS_MAX = 8
"""Clients at once. Who comes then is told to come later."""
CLIENT_S = 5.0
"""What a client may take in all: to ask, and to take its answer."""
_HEAD_MAX = 16 * 1024
_PATH = "/metrics"
_BACKLOG = 32
_RETRY_S = 0.1
_PLAIN = "text/plain; charset=utf-8"


class MetricsPortTaken(OSError):
    """The port can not be bound."""

    def __init__(self, address: str, cause: OSError) -> None:
        super().__init__(cause.errno, f"{address}: {cause.strerror or cause}")
        self.address = address


class Page(NamedTuple):
    content_type: str
    body: bytes


Render = Callable[[str], Page]
"""From the Accept header (empty: none) to the page. Called by one thread at a time."""


class _Answer(NamedTuple):
    status: HTTPStatus
    page: Page


class Endpoint:
    """`GET /metrics`. Threads: one that accepts, and one for each client while it is served."""

    def __init__(
        self,
        host: str,
        port: int,
        render: Render,
        *,
        connections_max: int = CONNECTIONS_MAX,
        client_s: float = CLIENT_S,
        clock: Clock | None = None,
    ) -> None:
        """Binds `port`, 0 any free one: who connects waits until `start`. Raises MetricsPortTaken."""
        self._render = render
        self._client_s = client_s
        self._clock = clock or MonotonicClock()
        self._rendering = threading.Lock()
        self._free = threading.Semaphore(connections_max)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._listener = _listen(host, port)
        self._listener.setblocking(False)
        self.address = _join(*self._listener.getsockname()[:2])
        """`host:port`."""
        self._wake, self._woken = socket.socketpair()
        self._is_closed = False
        self._acceptor = threading.Thread(target=self._accept_all, name="tenure-metrics", daemon=True)

    def start(self) -> None:
        self._acceptor.start()

    def close(self, timeout_s: float) -> None:
        """Answers nobody any more, and hangs up on who is still being answered. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(OSError):  # whoever accepts has ended by itself
            self._wake.send(b"x")
        deadline_s = self._clock.now() + timeout_s
        if self._acceptor.ident is not None:
            self._acceptor.join(timeout_s)
        else:  # it was never started, and whoever accepts would have closed these
            self._listener.close()
            self._woken.close()
        with self._lock:
            still_open = dict(self._open)
        for client, thread in still_open.items():
            _hang_up(client)
            thread.join(max(0.0, deadline_s - self._clock.now()))
        self._wake.close()

    def _accept_all(self) -> None:
        with self._listener, self._woken:
            while True:
                ready, _, _ = select.select((self._listener, self._woken), (), ())
                if self._woken in ready:
                    return
                try:
                    client, _ = self._listener.accept()
                except OSError:  # it has gone again, or this process has too many files open: others may come
                    select.select((self._woken,), (), (), _RETRY_S)
                    continue
                client.setblocking(True)
                self._take(client)

    def _take(self, client: socket.socket) -> None:
        if not self._free.acquire(blocking=False):
            with client:
                _send(client, _refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many clients at once"), timeout_s=0.0)
            return
        thread = threading.Thread(target=self._serve, args=(client,), name="tenure-scrape", daemon=True)
        with self._lock:
            self._open[client] = thread
        try:
            thread.start()
        except RuntimeError:  # as many threads as there may be
            with self._lock:
                del self._open[client]
            self._free.release()
            with client:
                _send(client, _refusal(HTTPStatus.SERVICE_UNAVAILABLE, "no thread is left to answer"), timeout_s=0.0)

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                deadline_s = self._clock.now() + self._client_s
                head = self._read_head(client, deadline_s)
                if head is not None:
                    _send(client, self._answer(head), max(0.001, deadline_s - self._clock.now()))
        finally:
            with self._lock:
                del self._open[client]
            self._free.release()

    def _read_head(self, client: socket.socket, deadline_s: float) -> str | None:
        """Request line and headers; None when they did not come in time, or at all."""
        head = b""
        while b"\r\n\r\n" not in head:
            left_s = deadline_s - self._clock.now()
            if left_s <= 0 or len(head) > _HEAD_MAX:
                return None
            client.settimeout(left_s)
            try:
                part = client.recv(4096)
            except OSError:  # a timeout too
                return None
            if not part:
                return None
            head += part
        return head.partition(b"\r\n\r\n")[0].decode("latin-1")

    def _answer(self, head: str) -> _Answer:
        request, *headers = head.split("\r\n")
        method, _, rest = request.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if path != _PATH:
            return _refusal(HTTPStatus.NOT_FOUND, f"metrics are at {_PATH}")
        if method != "GET":
            return _refusal(HTTPStatus.METHOD_NOT_ALLOWED, "only GET is answered")
        with self._rendering:
            return _Answer(HTTPStatus.OK, self._render(_find_header(headers, "accept")))


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise MetricsPortTaken(_join(host, port), error) from error


def _join(host: str | int, port: str | int) -> str:
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def _find_header(headers: list[str], name: str) -> str:
    for line in headers:
        key, _, value = line.partition(":")
        if key.strip().lower() == name:
            return value.strip()
    return ""


def _refusal(status: HTTPStatus, text: str) -> _Answer:
    return _Answer(status, Page(_PLAIN, f"{text}\n".encode()))


def _send(client: socket.socket, answer: _Answer, timeout_s: float) -> None:
    """All of it within that time, or as much as went."""
    status, page = answer
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\nConnection: close\r\n\r\n"
    )
    client.settimeout(timeout_s)
    try:
        client.sendall(head.encode("latin-1") + page.body)
    except OSError:  # it has hung up, or does not read: its loss
        return


def _hang_up(client: socket.socket) -> None:
    try:
        client.shutdown(socket.SHUT_RDWR)
    except OSError:  # it was faster
        return
