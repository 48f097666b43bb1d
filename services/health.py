"""`grpc.health.v1` on the public port: what probes are told in each state of the engine, and in trouble."""

import asyncio

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from engine.runtime.lifecycle import EngineState, Lifecycle
from engine.runtime.vitals import Severity, Trouble, Vitals, WatchdogConfig, judge

SERVICES = ("", "startup", "liveness", "readiness")
"""`startup` is over once the engine has served; `liveness` fails once the engine is lost; "" is as `readiness`."""

SERVING_IN: dict[EngineState, tuple[str, ...]] = {
    EngineState.LOADING: ("liveness",),
    EngineState.COMPILING: ("liveness",),
    EngineState.WARMING: ("liveness",),
    EngineState.SERVING: SERVICES,
    EngineState.DRAINING: ("startup", "liveness"),
    EngineState.STOPPED: ("liveness",),
    EngineState.FAILED: (),
}
"""State → services that are SERVING in it while nothing is wrong; the others are NOT_SERVING."""

SPOILED_BY: dict[Severity, tuple[str, ...]] = {
    Severity.SOFT: ("", "readiness"),
    Severity.HARD: ("", "readiness", "liveness"),
}
"""How bad it is → services that are NOT_SERVING whatever the state."""


def find_serving(state: EngineState, trouble: Trouble | None) -> tuple[str, ...]:
    """The services that are SERVING."""
    spoiled = SPOILED_BY[trouble.severity] if trouble is not None else ()
    return tuple(service for service in SERVING_IN[state] if service not in spoiled)


def read_serving(vitals: Vitals, config: WatchdogConfig) -> tuple[str, ...]:
    """The same by what the loop last published and how long ago that was. For any thread, at any time."""
    return find_serving(vitals.state, judge(vitals, config))


class HealthBoard:
    """Publishes that through the standard health service. While the event loop is stuck nothing here answers: probes
    that have to tell such a server from a slow one ask the probe port."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._servicer = health_aio.HealthServicer()
        self._trouble: Trouble | None = None
        self._changed = asyncio.Event()
        lifecycle.add_listener(lambda _state: self._changed.set())

    def add_to(self, server: aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    def note(self, trouble: Trouble | None) -> None:
        """What is wrong from now on. On the loop's thread."""
        self._trouble = trouble
        self._changed.set()

    async def publish(self) -> None:
        """Tells how things are now."""
        serving = find_serving(self._lifecycle.state, self._trouble)
        statuses = health_pb2.HealthCheckResponse
        for service in SERVICES:
            await self._servicer.set(service, statuses.SERVING if service in serving else statuses.NOT_SERVING)

    async def follow(self) -> None:
        """Publishes every change, until it is cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self.publish()
