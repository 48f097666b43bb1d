"""Metrics over a running engine, with the ports and threads that they have in a server."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from engine.core.ids import TurnId
from telemetry.export.resource import build_resource
from telemetry.history import HistorySink
from telemetry.metrics.provider import Metrics
from telemetry.metrics.sink import MetricsSink
from telemetry.settings import TelemetrySettings
from tests.kit.runtime_rig import RuntimeRig, read_all, running
from tests.kit.scraping import Scrape, scrape
from tests.kit.shadow_executor import shadow_capabilities

POOL_PAGES = 24
SIZES = shadow_capabilities(pool_pages=POOL_PAGES).pool_sizes


def make_sink(losses: int = 0) -> MetricsSink:
    sink = MetricsSink(SIZES, "tiny", {"spans": lambda: losses}, {"spans": lambda: 3})
    sink.begin()
    return sink


@contextmanager
def metering(
    sink: MetricsSink, endpoint: str | None = None, port: int | None = None, variables: Mapping[str, str] | None = None
) -> Iterator[Metrics]:
    settings = TelemetrySettings(otlp_endpoint=endpoint, metrics_port=port, environment=variables or {})
    metrics = Metrics(settings, sink, build_resource(variables or {}))
    metrics.start()
    try:
        yield metrics
    finally:
        metrics.close(0.0)


def url_of(metrics: Metrics) -> str:
    assert metrics.endpoint_address is not None
    return f"http://{metrics.endpoint_address}/metrics"


@dataclass(frozen=True, slots=True)
class Measured:
    rig: RuntimeRig
    sink: MetricsSink
    history: HistorySink
    metrics: Metrics

    async def scrape(self) -> Scrape:
        return await scrape(url_of(self.metrics))


@asynccontextmanager
async def measured_engine() -> AsyncIterator[Measured]:
    sink, history = make_sink(), HistorySink(SIZES)
    with metering(sink, port=0) as metrics:
        async with running(sinks=(sink, history), pool_pages=POOL_PAGES, in_flight_max=2) as rig:
            yield Measured(rig, sink, history, metrics)


async def mixed_run(rig: RuntimeRig) -> None:
    """More sessions than the pool has room for, and a turn that is broken off."""
    for number in range(6):
        await rig.open(f"s{number}")
    for turn in range(3):
        for number in range(6):
            await rig.run(f"t{number}-{turn}", [number + 1] * 9, f"s{number}")
    left = await rig.submit("left", [1, 2, 3], max_tokens=64)
    await rig.engine.abort(None, TurnId("left"))
    await read_all(left)
    await rig.full_pool()
