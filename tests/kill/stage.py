"""A server process with everything that watches it, and what has to hold once it is well again."""

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import BinaryIO

import grpc

from protos.v1 import faults_pb2
from services.client import Client, TenureError, connect
from tests.kill.load import Load
from tests.kill.server_log import Entry, read_log
from tests.kill.watch import Condition, PortWatch
from tests.kit.planting import plant_fault
from tests.kit.server_process import HEALTH, LISTENING, READY, ServerProcess, server_process

REST_S = 15.0
"""How long the books may take to come to rest, once nothing runs."""
EXIT_S = 60.0
BACK_S = 60.0
_LOG_S = 10.0
_PLANT_TRIES = 200
"""A page to lose has to be free, and is taken by others meanwhile."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The watchdog's, in seconds."""

    forward_s: float = 30.0
    """Of prefill and decode."""
    idle_s: float = 10.0
    exit_s: float = 0.0
    """0: the process is left as it is."""

    def to_flags(self) -> tuple[str, ...]:
        values = {
            "--watchdog-prefill-s": self.forward_s,
            "--watchdog-decode-s": self.forward_s,
            "--watchdog-idle-s": self.idle_s,
            "--watchdog-exit-s": self.exit_s,
        }
        return tuple(text for flag, value in values.items() for text in (flag, f"{value:g}"))


@dataclass(slots=True)
class Stage:
    """One server, watched from outside."""

    server: ServerProcess
    target: str
    client: Client
    public: PortWatch
    probe: PortWatch
    planted_s: float = field(default_factory=time.monotonic)
    planted_wall_s: float = field(default_factory=time.time)

    def mark(self) -> None:
        """From now on times count, and what is said counts."""
        self.planted_s, self.planted_wall_s = time.monotonic(), time.time()

    @property
    def age_s(self) -> float:
        """Seconds since the fault."""
        return time.monotonic() - self.planted_s

    async def plant(
        self, kind: faults_pb2.FaultKind.ValueType, *, seconds: float = 0.0, count: int = 1, every: int = 1
    ) -> None:
        """Returns once the server says that it has been planted."""
        await self.sure_ready()
        self.mark()
        await _plant(self.target, faults_pb2.PlantRequest(kind=kind, seconds=seconds, count=count, every=every))

    async def sure_ready(self) -> None:
        """Both ports have said that the server is ready."""
        await self.wait_until(Condition.READY)

    async def wait_until(self, condition: Condition, timeout_s: float = BACK_S) -> None:
        """Both ports say so. Raises AssertionError."""
        deadline_s = time.monotonic() + timeout_s
        while not (self.public.now is condition and self.probe.now is condition):
            said = f"{self.public.now} on the public port, {self.probe.now} on the probe port"
            assert time.monotonic() < deadline_s, f"not {condition} within {timeout_s:g} s: {said}; {self.tail()}"
            await asyncio.sleep(0.05)

    def entries(self, name: str) -> list[Entry]:
        """Those of that name since the fault."""
        return [entry for entry in read_log(self.server.output(), self.planted_wall_s - 0.05) if entry.name == name]

    async def entry(self, name: str, kind: str | None = None) -> Entry:
        """The first of that name, and kind, since the fault. Raises AssertionError: it does not come."""
        deadline_s = time.monotonic() + _LOG_S
        while time.monotonic() < deadline_s:
            for entry in self.entries(name):
                if kind is None or entry.kind == kind:
                    return entry
            await asyncio.sleep(0.1)
        raise AssertionError(f"no {name} {kind or ''} in the log; {self.tail()}")

    def at_s(self, entry: Entry) -> float:
        """When it was logged, in seconds after the fault."""
        return entry.time_s - self.planted_wall_s

    def tail(self) -> str:
        return "the server said last:\n" + "\n".join(self.server.output().splitlines()[-40:])

    async def exit_code(self, timeout_s: float = EXIT_S) -> tuple[int, float]:
        """Waits for the end of the process. Returns its exit code, and how long after the fault that was."""
        try:
            code = await asyncio.to_thread(self.server.process.wait, timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the process did not end within {timeout_s:g} s; {self.tail()}") from None
        ended_s = self.age_s
        await self.wait_until(Condition.GONE)
        return code, ended_s

    async def end(self) -> None:
        """Asks the process to stop, unless it has ended: it does so in good order, within 5 s."""
        if self.server.process.poll() is None:
            code, took_s = await asyncio.to_thread(self.server.end)
            assert code == 0, f"exit code {code}; {self.tail()}"
            assert took_s < 5, f"the end took {took_s:.1f} s"

    async def prove_well(self, load: Load | None = None, quarantined: int = 0) -> str:
        """A new turn works, sessions go on, the books are right and at rest. Returns what was seen, in words."""
        assert await self.client.generate("Hello!", max_tokens=4, ignore_eos=True).text(), "a new turn works"
        sessions = "" if load is None else f"; the idle session had {await load.prove_sessions()}"
        report = await self.client.check()
        assert report.is_clean, report
        await self._prove_rest(quarantined)
        return f"new turns work{sessions}; check clean, books at rest"

    async def _prove_rest(self, quarantined: int) -> None:
        """Nothing is held by a turn, and what has no owner is what was told."""
        deadline_s = time.monotonic() + REST_S
        while True:
            stats = await self.client.pools()
            pages = stats.find("full")
            is_at_rest = stats.turns_running == stats.turns_waiting == 0 and stats.balanced
            held = (pages.uncached, pages.protected, pages.draining, pages.session_held, pages.quarantined)
            if is_at_rest and held == (0, 0, 0, 0, quarantined):
                return
            assert time.monotonic() < deadline_s, f"the books do not come to rest: {stats}"
            await asyncio.sleep(0.05)


@asynccontextmanager
async def stage(
    limits: Limits, *flags: str, stderr: BinaryIO | int | None = None, is_ready: bool = True
) -> AsyncIterator[Stage]:
    """A server that serves, or with `is_ready=False` one that is still loading. Killed at the end if it still runs."""
    arguments = ("--fault-injection", "--health-port", "0", "--pool-tokens", "4096", *limits.to_flags(), *flags)
    with server_process(*arguments, stderr=stderr) as server:
        probe = PortWatch(await asyncio.to_thread(server.wait_for, HEALTH))
        target = await asyncio.to_thread(server.wait_for, LISTENING)
        public = PortWatch(target)
        try:
            if is_ready:
                await asyncio.to_thread(server.wait_for, READY)
            async with connect(target, resume_timeout_s=0) as client:
                yield Stage(server, target, client, public, probe)
        finally:
            public.stop()
            probe.stop()


async def _plant(target: str, request: faults_pb2.PlantRequest) -> None:
    """Tries again while there is nothing that could be broken so."""
    for _ in range(_PLANT_TRIES):
        try:
            await plant_fault(target, request)
            return
        except TenureError as error:
            if error.code is not grpc.StatusCode.FAILED_PRECONDITION:
                raise
            await asyncio.sleep(0.02)
    raise AssertionError("there was nothing to break")
