"""Puts the server together: port first, then model, then engine; and takes it apart again."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from grpc import aio
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from engine.core.core import Core
from engine.core.errors import Refusal
from engine.executor.pool_size import PoolSettingError
from engine.runtime.clock import WallClock
from engine.runtime.dumps import Dumps
from engine.runtime.engine import LocalEngine
from engine.runtime.handle import EngineFailed
from engine.runtime.incidents import Incidents
from engine.runtime.lifecycle import EngineState, Lifecycle
from engine.runtime.vitals import Trip, Trouble, Vitals
from engine.runtime.watchdog import Watchdog, WatchdogHooks
from protos.v1 import admin_pb2_grpc, faults_pb2_grpc, generate_pb2_grpc, session_pb2_grpc
from services.admin import AdminServicer
from services.backend import Backend, BackendCell
from services.config import ConfigError, ServeConfig, join_address
from services.faults import FaultsServicer
from services.generate import GenerateServicer
from services.health import HealthBoard
from services.interceptors import ErrorInterceptor
from services.limits import server_options
from services.loading import LOAD_ERRORS, LoadedModel, Loader, LoadingCrashed, Progress, load_in_thread
from services.probe import ProbePort
from services.prompt_threads import PromptThreads
from services.session import SessionServicer
from services.watching import Watching

_log = logging.getLogger(__name__)

SERVICES = ("tenure.v1.Session", "tenure.v1.Generate", "tenure.v1.Admin", health.SERVICE_NAME)
"""What reflection tells of, beside itself."""
FAULTS_SERVICE = "tenure.v1.Faults"
"""With --fault-injection only."""

_STREAM_GRACE_S = 0.5
"""How long calls may take to send their last message, once all turns have ended."""

_LATE_CALLS_S = 0.2
"""For how long calls that come too late are still answered, SERVER_STOPPING."""

_START_ERRORS = (*LOAD_ERRORS, LoadingCrashed, ConfigError, ValueError, EngineFailed, Refusal)
"""Why a server can not start, each with a message that says it all."""


@dataclass(frozen=True, slots=True)
class Announcer:
    """Where the server tells people how it is getting on."""

    line: Callable[[str], None]
    progress: Progress


@dataclass(frozen=True, slots=True)
class ProcessHooks:
    """What only the owner of the process can do. Called by the watchdog's thread."""

    leave: Callable[[str], None] = lambda _why: None
    """Ends the process at once, with an error: the engine is lost."""
    on_tick: Callable[[], None] = lambda: None


class Server:
    """One process: the public services and, once the model is loaded, the engine behind them."""

    def __init__(
        self,
        config: ServeConfig,
        announcer: Announcer,
        load: Loader = load_in_thread,
        process: ProcessHooks | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`environment`: the process's, of which OpenTelemetry's variables count. Raises ConfigError."""
        self._config = config
        self._watching = Watching(config.telemetry(environment or {}))
        self._process = process or ProcessHooks()
        self._load = load
        self._announcer = announcer
        self._lifecycle = Lifecycle()
        self._cell = BackendCell()
        self._threads = PromptThreads()
        self._health = HealthBoard(self._lifecycle)
        self._vitals = Vitals()
        self._incidents = Incidents(WallClock())
        self._probe: ProbePort | None = None
        self._api = aio.server(interceptors=(ErrorInterceptor(self._watching.tracer),), options=server_options())
        self._engine: LocalEngine | None = None
        self.start_failure: str | None = None
        self.is_setting_wrong = False
        """Whether it could not start because of a flag's value."""
        """Why the engine did not start, when it was not told to stop meanwhile."""

    async def run(self, stop: asyncio.Event) -> int:
        """Serves until `stop` is set. Returns the exit code: 0 when it ended as asked, 1 when it had to.

        Raises ConfigError when a port can not be bound.
        """
        try:
            port = self._bind()
        except ConfigError:
            await self._watching.stop()
            raise
        await self._health.publish()
        await self._api.start()
        watchdog = self._watch(asyncio.get_running_loop())
        following = asyncio.create_task(self._health.follow(), name="health")
        try:
            return await self._serve(join_address(self._config.host, port), stop)
        finally:
            watchdog.stop()
            if self._probe is not None:
                self._probe.stop()
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
            await self._watching.stop()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> Watchdog:
        """Starts what looks after the engine from outside: the watchdog and, when asked for, the probe port."""

        def tell(trouble: Trouble | None) -> None:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(self._health.note, trouble)

        hooks = WatchdogHooks(
            dump=self._dump_stuck,
            on_change=tell,
            on_lost=lambda trip: self._give_up(loop, trip),
            leave=lambda trouble: self._process.leave(trouble.message),
            on_tick=self._process.on_tick,
        )
        watchdog = Watchdog(self._vitals, self._incidents, self._config.watchdog(), hooks)
        watchdog.start()
        if self._probe is not None:
            self._probe.start()
            self._announcer.line(f"health on {self._probe.address}")
        return watchdog

    def _give_up(self, loop: asyncio.AbstractEventLoop, trip: Trip) -> None:
        """In the watchdog's thread: all streams should hear of it, as long as the loop can still tell them."""
        if self._engine is not None:
            loop.call_soon_threadsafe(self._engine.give_up, trip)

    def _dump_stuck(self, trip: Trip) -> str:
        """In the watchdog's thread. Before there is an engine, there are stacks only."""
        if self._engine is not None:
            return self._engine.dump_stuck(trip)
        return Dumps(None, self._vitals).of_trip(trip)

    async def _serve(self, address: str, stop: asyncio.Event) -> int:
        self._announcer.line(f"listening on {address}; it answers once the model is loaded")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        starting = asyncio.create_task(self._start_engine(), name="start-engine")
        await asyncio.wait((stopping, starting), return_when=asyncio.FIRST_COMPLETED)
        engine = await self._take_started(starting)
        if engine is not None:
            self._announcer.line(f"ready on {address}")
            ended = asyncio.create_task(engine.wait_ended(), name="engine-end")
            await asyncio.wait((stopping, ended), return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            # Its exception, if any, is the engine's, which `_stop` meets again and reports.
            await asyncio.gather(ended, return_exceptions=True)
        was_asked = stopping.done()
        stopping.cancel()
        has_stopped_well = await self._stop()
        return 0 if was_asked and has_stopped_well else 1

    async def _take_started(self, starting: asyncio.Task[LocalEngine]) -> LocalEngine | None:
        """The running engine; None when it did not start, or was not given the time to."""
        if not starting.done():
            starting.cancel()
            await asyncio.wait((starting,))
        if starting.cancelled():
            return None
        error = starting.exception()
        if error is None:
            return starting.result()
        # Whatever it was, the server has to be taken apart in order. What is not the model's or the flags' fault shows
        # where it came from.
        trace = None if isinstance(error, _START_ERRORS) else error
        _log.critical("event=start_failed reason=%s: %s", type(error).__name__, error, exc_info=trace)
        self.start_failure = str(error) or type(error).__name__
        self.is_setting_wrong = isinstance(error, PoolSettingError | ConfigError)
        return None

    async def _start_engine(self) -> LocalEngine:
        loaded = await self._load(self._config, self._report_progress)
        for note in loaded.notes:
            self._announcer.line(note)
        watching = self._watching
        sinks = watching.attach(loaded.executor.capabilities)
        for line in watching.start():
            self._announcer.line(line)
        engine = self._build_engine(loaded)
        self._engine = engine
        self._announcer.line(f"warming up {loaded.executor.capabilities.name}")
        await engine.start()
        has_states = loaded.executor.capabilities.state_slots > 0
        features = self._config.features(has_chat=loaded.template is not None, has_states=has_states)
        watching.begin()
        backend = Backend(
            engine,
            loaded.tokenizer,
            loaded.template,
            features,
            self._threads,
            history=sinks.history,
            kv_log=sinks.kv_log,
            kv_feed=sinks.kv_feed,
            spans=watching.ring,
            find_turn=watching.find_turn,
            device_faults=loaded.device_faults,
        )
        self._cell.fill(backend)
        return engine

    def _report_progress(self, done: float, what: str) -> None:
        """From the loading thread."""
        self._vitals.touch()
        self._announcer.progress(done, what)

    def _build_engine(self, loaded: LoadedModel) -> LocalEngine:
        core = Core(self._config.core(loaded.executor.capabilities, loaded.eos_ids))
        return LocalEngine(
            core,
            loaded.executor,
            loaded.tokenizer.vocabulary,
            sinks=self._watching.sinks,
            step_listeners=self._watching.step_listeners,
            config=self._config.runtime(),
            lifecycle=self._lifecycle,
            vitals=self._vitals,
            incidents=self._incidents,
        )

    async def _stop(self) -> bool:
        """Ends turns, then calls, then the port. False when the engine did not end in good order."""
        has_stopped_well = True
        try:
            if self._engine is not None:
                await self._engine.stop(self._config.drain_s)
            else:
                self._lifecycle.move(EngineState.STOPPED)
        except EngineFailed as failure:
            _log.critical("event=engine_failed reason=%s", failure)
            has_stopped_well = False
        self._watching.end_of_engine()
        await self._health.publish()
        # Calls that are on their way now still hear why, and not just that they are cancelled.
        await asyncio.sleep(_LATE_CALLS_S)
        await self._api.stop(_STREAM_GRACE_S)
        self._threads.close()
        return has_stopped_well

    def _bind(self) -> int:
        try:
            port = self._api.add_insecure_port(self._config.address)
        except RuntimeError as error:
            raise ConfigError("--port", f"{self._config.address} can not be bound; is it in use?") from error
        if self._config.health_port is not None:
            limits = self._config.watchdog()
            self._probe = ProbePort(self._config.host, self._config.health_port, self._vitals, limits)
        self._watching.require_ports()
        self._add_servicers(replace(self._config, port=port))
        return port

    def _add_servicers(self, config: ServeConfig) -> None:
        """`config`: what is in force, with the port that was taken."""
        session_pb2_grpc.add_SessionServicer_to_server(SessionServicer(self._cell), self._api)
        generate_pb2_grpc.add_GenerateServicer_to_server(GenerateServicer(self._cell), self._api)
        admin = AdminServicer(self._cell, config.effective())
        admin_pb2_grpc.add_AdminServicer_to_server(admin, self._api)
        self._health.add_to(self._api)
        services: tuple[str, ...] = SERVICES
        if config.fault_injection:
            faults_pb2_grpc.add_FaultsServicer_to_server(FaultsServicer(self._cell), self._api)
            services = (*SERVICES, FAULTS_SERVICE)
        if config.reflection:
            reflection.enable_server_reflection((*services, reflection.SERVICE_NAME), self._api)
