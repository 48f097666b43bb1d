"""All that watches one server: the sinks of the engine's events, and what carries their news away."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from engine.core.events import EventSink
from engine.core.ids import SessionId, TurnId
from engine.executor.protocol import Capabilities
from engine.runtime.step_times import StepListener
from services.backend import model_name_of
from services.config import ConfigError
from services.ports import not_bound, require_free
from telemetry.export.connection import is_disabled
from telemetry.export.resource import build_resource
from telemetry.export.sampling import EnvironmentSampler
from telemetry.export.settings import read_span_export
from telemetry.export.span_exporter import SpanExporter
from telemetry.export.variables import VariableError
from telemetry.history import HistorySink
from telemetry.kv.event_log import KvEventLog
from telemetry.kv.feed import KvFeed
from telemetry.kv.publisher import CannotListen
from telemetry.log_sink import LogSink
from telemetry.metrics.endpoint import MetricsPortTaken
from telemetry.metrics.loop_lag import measure_lag
from telemetry.metrics.otlp import make_exporter
from telemetry.metrics.provider import Metrics
from telemetry.metrics.sink import MetricsSink
from telemetry.settings import KvFeedSettings, TelemetrySettings
from telemetry.spans.record import SpanContext, SpanTarget
from telemetry.spans.ring import SpanRing
from telemetry.spans.sink import SpanSink
from telemetry.spans.tracer import Tracer

_log = logging.getLogger("tenure.telemetry")
_GRACE_S = 0.5
"""How much longer than its deadline a carrier may take before it is left to itself."""


class Carrier(Protocol):
    """Carries news away, in threads of its own."""

    def close(self, timeout_s: float) -> None:
        """Sends what waits, for so long at most, and counts what it could not. Blocks; idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class EngineSinks:
    """Those that know the engine's sizes: made once the model is loaded."""

    history: HistorySink
    kv_log: KvEventLog
    metrics_sink: MetricsSink
    metrics: Metrics
    kv_feed: KvFeed | None


class Watching:
    """Made before the engine, which tells its `sinks`; stopped behind it.

    None of it makes anybody wait. What can not be carried away in time is counted, and told as a metric.
    """

    def __init__(self, settings: TelemetrySettings) -> None:
        """Raises ConfigError for a variable of the environment that can not be."""
        self._settings = settings
        self.ring = SpanRing()
        self._exporter: SpanExporter | None = None
        try:
            sampler = EnvironmentSampler(settings.environment)
            self._resource = build_resource(settings.environment)
            self._metric_exporter = make_exporter(settings)
            if read_span_export(settings) is not None:
                self._exporter = SpanExporter(settings, self._resource)
        except VariableError as error:
            raise ConfigError(error.name, error.problem) from error
        targets: tuple[SpanTarget, ...] = (self.ring,) if self._exporter is None else (self.ring, self._exporter)
        self.tracer = Tracer(targets, sampler)
        self.spans = SpanSink(self.tracer, settings.trace_steps)
        self._log_sink = LogSink(logging.getLogger("tenure.events"))
        self._engine: EngineSinks | None = None
        self._lag: asyncio.Task[None] | None = None

    def attach(self, capabilities: Capabilities) -> EngineSinks:
        """Makes the sinks of an engine of this size."""
        sizes, settings = capabilities.pool_sizes, self._settings
        kv_log = KvEventLog(sizes, secrets.token_hex(8))
        feed = None
        if settings.kv_feed is not None:
            feed = KvFeed(settings.kv_feed, capabilities.page_size, sizes, capabilities.window)
        lost, sent = self._losses(kv_log, feed), self._carried(kv_log, feed)
        metrics_sink = MetricsSink(sizes, model_name_of(capabilities), lost, sent)
        metrics = Metrics(settings, metrics_sink, self._resource, exporter=self._metric_exporter)
        self._engine = EngineSinks(HistorySink(sizes), kv_log, metrics_sink, metrics, feed)
        return self._engine

    def _losses(self, kv_log: KvEventLog, feed: KvFeed | None) -> Mapping[str, Callable[[], int]]:
        """By signal: how much was lost so far."""
        losses: dict[str, Callable[[], int]] = {"kv_events": lambda: kv_log.num_lapped}
        exporter = self._exporter
        if exporter is not None:
            losses["spans"] = lambda: exporter.dropped
        if feed is not None:
            losses["kv_feed"] = lambda: feed.dropped
        return losses

    def _carried(self, kv_log: KvEventLog, feed: KvFeed | None) -> Mapping[str, Callable[[], int]]:
        """By signal: how much was told so far."""
        carried: dict[str, Callable[[], int]] = {"kv_events": lambda: kv_log.last_sequence}
        exporter = self._exporter
        if exporter is not None:
            carried["spans"] = lambda: exporter.exported
        if feed is not None:
            carried["kv_feed"] = lambda: feed.events_sent
        return carried

    @property
    def sinks(self) -> tuple[EventSink, ...]:
        """Of the attached engine."""
        engine = self._attached
        feed = () if engine.kv_feed is None else (engine.kv_feed,)
        return (self._log_sink, engine.history, engine.kv_log, self.spans, engine.metrics_sink, *feed)

    @property
    def step_listeners(self) -> tuple[StepListener, ...]:
        return (self.spans, self._attached.metrics_sink)

    @property
    def _attached(self) -> EngineSinks:
        assert self._engine is not None, "nothing is attached yet"
        return self._engine

    def require_ports(self) -> None:
        """Before a model is loaded for nothing. Raises ConfigError for a port that can not be bound."""
        settings, feed = self._settings, self._settings.kv_feed
        if settings.metrics_port is not None and not is_disabled(settings):
            require_free("--metrics-port", settings.metrics_host, settings.metrics_port)
        if feed is not None:
            require_free("--kv-events-port", feed.host, feed.port)
            require_free("--kv-events-replay-port", feed.host, feed.replay_port)

    def start(self) -> list[str]:
        """Binds its ports. Returns what people should be told. Raises ConfigError when a port is taken."""
        engine, lines = self._attached, self._destinations()
        if engine.kv_feed is not None:
            try:
                engine.kv_feed.start()
            except CannotListen as error:
                raise _not_listening(self._settings.kv_feed, error) from error
            source = engine.kv_feed.source()
            assert source is not None, "it has just begun to listen"
            lines.append(f"KV events on {source.endpoint}, replayed on {source.replay_endpoint}")
        try:
            engine.metrics.start()
        except MetricsPortTaken as error:
            raise not_bound("--metrics-port", error.address, error) from error
        if engine.metrics.endpoint_address is not None:
            lines.append(f"metrics on http://{engine.metrics.endpoint_address}/metrics")
        self._lag = asyncio.create_task(measure_lag(engine.metrics_sink.lag_measured), name="loop-lag")
        return lines

    def _destinations(self) -> list[str]:
        """What is sent, and where to."""
        exporters = {"spans": self._exporter, "metrics": self._metric_exporter}
        signals: dict[str, list[str]] = {}
        for signal, exporter in exporters.items():
            if exporter is not None:
                signals.setdefault(exporter.endpoint, []).append(signal)
        return [f"{' and '.join(names)} to {endpoint}" for endpoint, names in signals.items()]

    def begin(self) -> None:
        """The server serves from now on: the turn that warmed it up is in nothing."""
        engine = self._attached
        engine.history.begin()
        engine.metrics_sink.begin()
        self.spans.begin()

    def find_turn(self, session_id: SessionId | None, turn_id: TurnId) -> SpanContext | None:
        """The span of a turn that is alive, or ended lately."""
        return self.spans.find_turn(session_id, turn_id) or self.ring.find_exact_turn(turn_id, session_id)

    def end_of_engine(self) -> None:
        """The engine tells nothing more: whoever follows it learns of it."""
        self.spans.close()
        if self._engine is not None:
            self._engine.kv_log.close()

    async def stop(self) -> None:
        """Has everything sent that waits, all at once, under one deadline. What is left then is lost, and counted."""
        if self._lag is not None:
            self._lag.cancel()
            await asyncio.gather(self._lag, return_exceptions=True)
        carriers: dict[str, Carrier] = {}
        if self._exporter is not None:
            carriers["spans"] = self._exporter
        if self._engine is None:
            if self._metric_exporter is not None:
                self._metric_exporter.shutdown()
        else:
            carriers["metrics"] = self._engine.metrics
            if self._engine.kv_feed is not None:
                carriers["kv_feed"] = self._engine.kv_feed
        flush_s = self._settings.flush_s
        closing = [asyncio.to_thread(carrier.close, flush_s) for carrier in carriers.values()]
        try:
            async with asyncio.timeout(flush_s + _GRACE_S):
                ends = await asyncio.gather(*closing, return_exceptions=True)
        except TimeoutError:
            _log.error("event=telemetry_stuck flush_s=%s signals=%s", flush_s, ",".join(carriers))
            return
        for signal, error in zip(carriers, ends, strict=True):
            if error is not None:  # none of them keeps the others, nor the server, from its end
                _log.error("event=telemetry_not_closed signal=%s: %s", signal, error, exc_info=error)


def _not_listening(feed: KvFeedSettings | None, error: CannotListen) -> ConfigError:
    """By the flag of the one of both ports that it was."""
    assert feed is not None, "only a feed listens"
    is_replay = error.endpoint.endswith(f":{feed.replay_port}") and feed.replay_port != feed.port
    flag = "--kv-events-replay-port" if is_replay else "--kv-events-port"
    return not_bound(flag, error.endpoint.removeprefix("tcp://"), error)
