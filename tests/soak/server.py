"""The server under test: a real `tenure serve`, small enough that sessions and turns have to give way."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from protos.v1 import faults_pb2
from tests.kit.planting import plant_fault
from tests.soak.world import IDLE_TIMEOUT_S

READY = re.compile(r"ready on (\S+)")
HEALTH = re.compile(r"health on (\S+)")
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 20.0
FAILING_EVERY = 33
"""Each such forward raises: 3 %."""
OPTIONS = {
    "port": "0",
    "health-port": "0",
    "pool-tokens": "640",
    "context-len": "512",
    "rows": "16",
    "running-max": "8",
    "chunk-tokens": "64",
    "step-tokens": "128",
    "full-check-steps": "16",
    "detach-grace-s": "2",
    "idle-timeout-s": f"{IDLE_TIMEOUT_S:g}",
}
"""A pool of 40 pages, which a handful of conversations fill."""


STEADY_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""glibc's own first values, held: what is freed goes back at once. Left alone it raises both as it goes, and then keeps
20 MiB or so of freed buffers now, and gives them back then: steps that hide a slope of a percent.
"""


@dataclass(frozen=True, slots=True)
class SoakedServer:
    process: subprocess.Popen[bytes]
    target: str
    health_target: str
    log_path: Path

    def log(self) -> str:
        return self.log_path.read_text("utf-8", errors="replace")

    def stop(self) -> tuple[int | None, float]:
        """Sends SIGTERM. Exit code, None when it did not go in time, and the seconds that it took."""
        started_s = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code: int | None = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        return code, time.monotonic() - started_s


@contextmanager
def soaked_server(log_path: Path, *, has_steady_allocator: bool = False) -> Iterator[SoakedServer]:
    """Raises RuntimeError, with what it said, when it does not come to serve. Killed at the end if it still runs."""
    env = {**os.environ, **(STEADY_ALLOCATOR if has_steady_allocator else {})}
    with log_path.open("wb") as log, subprocess.Popen(command(), stdout=log, stderr=log, env=env) as process:
        try:
            target = _wait_for(READY, process, log_path)
            yield SoakedServer(process, target, _wait_for(HEALTH, process, log_path), log_path)
        finally:
            if process.poll() is None:
                process.kill()


def command() -> Sequence[str]:
    flags = [part for name, value in OPTIONS.items() for part in (f"--{name}", value)]
    return (sys.executable, "-m", "services.cli.main", "serve", "--fault-injection", *flags)


async def fail_forwards(target: str, kind: faults_pb2.FaultKind.ValueType) -> None:
    """From now on each `FAILING_EVERY`. forward goes wrong so, or with FAULT_KIND_NONE none. Raises TenureError."""
    every = 0 if kind == faults_pb2.FAULT_KIND_NONE else FAILING_EVERY
    await plant_fault(target, faults_pb2.PlantRequest(kind=kind, every=every))


def _wait_for(pattern: re.Pattern[str], process: subprocess.Popen[bytes], log_path: Path) -> str:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        said = log_path.read_text("utf-8", errors="replace")
        found = pattern.search(said)
        if found is not None:
            return found[1]
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with exit code {process.returncode}:\n{said}")
        time.sleep(0.05)
    raise RuntimeError(f"the server did not say {pattern.pattern!r} within {START_TIMEOUT_S:g} s")
