"""The probe port: `grpc.health.v1` on threads of its own, so that it answers whatever the event loop does."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from engine.runtime.vitals import Vitals, WatchdogConfig
from services.config import ConfigError, join_address
from services.health import SERVICES, read_serving

_THREADS = 4
_WATCHERS_MAX = 2
"""A Watch keeps a thread; checks need the others."""
_WATCH_S = 0.25
"""How often a Watch looks."""
_STOP_S = 0.2

_Status = health_pb2.HealthCheckResponse


class ProbeServicer(health_pb2_grpc.HealthServicer):
    """Reads what the loop last published. Holds no lock that anybody else takes."""

    def __init__(self, vitals: Vitals, config: WatchdogConfig) -> None:
        self._vitals = vitals
        self._config = config
        self._watchers = threading.Semaphore(_WATCHERS_MAX)

    def Check(  # noqa: N802 - named as in the proto
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        if request.service not in SERVICES:
            known = ", ".join(repr(name) for name in SERVICES)
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {request.service[:64]!r}; there are {known}")
        return self._answer(request.service)

    def Watch(  # noqa: N802 - named as in the proto
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> Iterator[health_pb2.HealthCheckResponse]:
        if request.service not in SERVICES:
            yield _Status(status=_Status.SERVICE_UNKNOWN)
            return
        if not self._watchers.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"at most {_WATCHERS_MAX} may watch at once; use Check")
        try:
            yield from self._watch(request.service, context)
        finally:
            self._watchers.release()

    def _watch(self, service: str, context: grpc.ServicerContext) -> Iterator[health_pb2.HealthCheckResponse]:
        told: health_pb2.HealthCheckResponse | None = None
        gone = threading.Event()
        context.add_callback(gone.set)
        while context.is_active():
            answer = self._answer(service)
            if answer != told:
                told = answer
                yield answer
            gone.wait(_WATCH_S)

    def _answer(self, service: str) -> health_pb2.HealthCheckResponse:
        is_serving = service in read_serving(self._vitals, self._config)
        return _Status(status=_Status.SERVING if is_serving else _Status.NOT_SERVING)


class ProbePort:
    """A plaintext port for probes: no credential, and nothing but health on it."""

    def __init__(self, host: str, port: int, vitals: Vitals, config: WatchdogConfig) -> None:
        """Binds the port, 0 any free one. Raises ConfigError when that can not be done."""
        self._threads = ThreadPoolExecutor(_THREADS, "tenure-probe")
        self._server = grpc.server(self._threads, options=(("grpc.so_reuseport", 0),))
        health_pb2_grpc.add_HealthServicer_to_server(ProbeServicer(vitals, config), self._server)
        address = join_address(host, port)
        try:
            bound = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise ConfigError("--health-port", f"{address} can not be bound; is it in use?") from error
        self.address = join_address(host, bound)

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        """Ends calls, and returns at once: there is nothing to wait for."""
        self._server.stop(_STOP_S)
        self._threads.shutdown(wait=False, cancel_futures=True)
