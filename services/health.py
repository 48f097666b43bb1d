"""`grpc.health.v1`: what probes are told in each state of the engine."""

import asyncio

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from engine.runtime.lifecycle import EngineState, Lifecycle

SERVICES = ("", "startup", "liveness", "readiness")
"""`startup` is over once the engine has served; `liveness` fails once the engine has; "" is as `readiness`.

They follow the engine's state, and nothing else: `liveness` says that the process answers and that the engine has not
failed. A forward that never ends is no failure yet: all of them stay SERVING while it hangs.
"""

SERVING_IN: dict[EngineState, tuple[str, ...]] = {
    EngineState.LOADING: ("liveness",),
    EngineState.WARMING: ("liveness",),
    EngineState.SERVING: SERVICES,
    EngineState.DRAINING: ("startup", "liveness"),
    EngineState.STOPPED: ("startup", "liveness"),
    EngineState.FAILED: (),
}
"""State → services that are SERVING in it; the others are NOT_SERVING."""


class HealthBoard:
    """Publishes the engine's state through the standard health service."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._servicer = health_aio.HealthServicer()
        self._changed = asyncio.Event()
        lifecycle.add_listener(lambda _state: self._changed.set())

    def add_to(self, server: aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def publish(self) -> None:
        """Tells the present state."""
        serving = SERVING_IN[self._lifecycle.state]
        statuses = health_pb2.HealthCheckResponse
        for service in SERVICES:
            await self._servicer.set(service, statuses.SERVING if service in serving else statuses.NOT_SERVING)

    async def follow(self) -> None:
        """Publishes every change, until it is cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self.publish()
