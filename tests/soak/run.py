"""One soak from start to end: server, load, readings, and the evidence when all has come to rest."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from protos.v1 import faults_pb2
from services.client import CheckReport, Client, History, Incident, PoolStats, TenureError, connect
from tests.soak.ledger import Ledger
from tests.soak.load import Deck, Probes, run_probes, run_workers
from tests.soak.memory import INTERVAL_S, MIB, Reading, read_process, resident_trend
from tests.soak.report import Plan
from tests.soak.server import SoakedServer, fail_forwards, soaked_server
from tests.soak.trend import Trend
from tests.soak.verdict import Evidence

REST_TIMEOUT_S = 60.0
"""How long turns that were left may take to end, and sessions to be closed."""
ROUND_TIMEOUT_S = 120.0
"""How much longer than was asked for the load may take to begin every scenario."""
LINE_S = 60.0
"""How often is told how it goes."""
_LOOK_S = 0.25
Say = Callable[[str], None]


@dataclass(slots=True)
class _Soak:
    """One that runs."""

    plan: Plan
    server: SoakedServer
    say: Say
    ledger: Ledger = field(default_factory=Ledger)
    probes: Probes = field(default_factory=Probes)
    readings: list[Reading] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    deck: Deck = field(init=False)

    def __post_init__(self) -> None:
        self.deck = Deck(self.plan.seed)

    async def load(self) -> None:
        """Until the time is over and every scenario was begun, or the server has gone; then to the end of those."""
        probes_stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(run_probes(self.server.health_target, self.probes, probes_stop), name="probes")
            group.create_task(self._watch(), name="readings")
            plan = self.plan
            await run_workers(self.server.target, self.deck, plan.seed, plan.num_clients, self.ledger, self.stop)
            probes_stop.set()

    async def _watch(self) -> None:
        """Reads the process, tells how it goes, and ends the load."""
        started_s = time.monotonic()
        read_s = told_s = started_s
        while self._goes_on((now_s := time.monotonic()) - started_s):
            if now_s >= read_s:
                self.readings.append(read_process(self.server.process.pid, started_s))
                read_s += INTERVAL_S
            if now_s >= told_s + LINE_S:
                self.say(self._line())
                told_s += LINE_S
            await asyncio.sleep(_LOOK_S)
        self.stop.set()

    def _goes_on(self, elapsed_s: float) -> bool:
        """On a busy machine a short run takes longer: until one round of scenarios was begun."""
        is_time_over = elapsed_s > 60 * self.plan.minutes
        is_through = self.deck.rounds > 1 or elapsed_s > 60 * self.plan.minutes + ROUND_TIMEOUT_S
        return self.server.process.poll() is None and not (is_time_over and is_through)

    def _line(self) -> str:
        last, ledger = self.readings[-1], self.ledger
        minutes, seconds = divmod(round(last.time_s), 60)
        return (
            f"{minutes:3}:{seconds:02}  {len(ledger.turns):6} turns  {ledger.sessions_opened:5} sessions  "
            f"{last.resident_bytes / MIB:8.1f} MiB  {last.threads} threads  {last.open_files} files  "
            f"{ledger.surprises.total() + len(ledger.violations)} surprises  "
            f"{self.probes.failures.total()} probes failed"
        )


@dataclass(frozen=True, slots=True)
class _AtRest:
    """What the server says of itself when nothing runs any more."""

    stats: PoolStats
    report: CheckReport
    history: History
    incidents: tuple[Incident, ...]


async def soak(plan: Plan, log_path: Path, say: Say) -> Evidence:
    """Raises RuntimeError when the server does not come to serve."""
    with soaked_server(log_path, has_steady_allocator=plan.has_steady_allocator) as server:
        say(f"{server.target}, process {server.process.pid}, log in {log_path}")
        await fail_forwards(server.target, faults_pb2.FAULT_KIND_FORWARD_RAISES)
        run = _Soak(plan, server, say)
        await run.load()
        at_rest = await _come_to_rest(server.target)
        exit_code, stop_s = await asyncio.to_thread(server.stop)
        log = server.log()
    return Evidence(
        ledger=run.ledger,
        probes=run.probes,
        readings=tuple(run.readings),
        trend=_trend(run.readings),
        history=None if at_rest is None else at_rest.history,
        stats=None if at_rest is None else at_rest.stats,
        findings=() if at_rest is None else at_rest.report.findings,
        incidents=() if at_rest is None else at_rest.incidents,
        log=log,
        exit_code=exit_code,
        stop_s=stop_s,
    )


async def _come_to_rest(target: str) -> _AtRest | None:
    """Closes what is open and waits until nothing is in use. None when the server does not answer."""
    try:
        await fail_forwards(target, faults_pb2.FAULT_KIND_NONE)
        async with connect(target) as client:
            await _wait_for_rest(client)
            # The check first: whatever it finds is in the books that are read behind it.
            report = await client.check()
            return _AtRest(
                await client.pools(), report, await client.history(with_facts=False), await client.incidents()
            )
    except TenureError:
        return None


async def _wait_for_rest(client: Client) -> None:
    """Gives up after a while: what is left is in the evidence then."""
    deadline_s = time.monotonic() + REST_TIMEOUT_S
    while time.monotonic() < deadline_s:
        stats = await client.pools()
        if not stats.turns_running + stats.turns_waiting:
            async for info in client.sessions():
                # As whoever finds it: the session's own client has gone.
                await client.session(info.session_id).close()
            if not (stats.sessions_open or any(pool.draining or pool.protected for pool in stats.pools)):
                return
        await asyncio.sleep(_LOOK_S)


def _trend(readings: list[Reading]) -> Trend | None:
    try:
        return resident_trend(readings)
    except ValueError:
        return None
