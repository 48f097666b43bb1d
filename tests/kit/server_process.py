"""A real `tenure serve` in a process of its own, for end-to-end tests."""

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

READY = re.compile(r"ready on (\S+)")
LISTENING = re.compile(r"listening on ([^\s;]+)")
HEALTH = re.compile(r"health on (\S+)")
START_TIMEOUT_S = 120.0
SMALL = ("--pool-tokens", "2048", "--context-len", "512", "--full-check-steps", "1")
"""Every test server proves all its books after every step."""


@dataclass(slots=True)
class ServerProcess:
    process: subprocess.Popen[bytes]
    log: Path
    """What it says: standard error included, unless that was sent elsewhere."""

    def output(self) -> str:
        return self.log.read_text()

    def wait_for(self, pattern: re.Pattern[str], timeout_s: float = START_TIMEOUT_S) -> str:
        """The first group of `pattern` in the output. Raises AssertionError when it does not come in time."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            found = pattern.search(self.output())
            if found is not None:
                return found[1]
            assert self.process.poll() is None, f"exit code {self.process.returncode}: {self.output()}"
            time.sleep(0.02)
        raise AssertionError(f"no {pattern.pattern!r} within {timeout_s} s in: {self.output()}")

    def end(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 10.0) -> tuple[int, float]:
        """Sends a signal. Returns exit code, and the seconds that the end took."""
        started_s = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(timeout_s)
        return code, time.monotonic() - started_s


@contextmanager
def server_process(*arguments: str, stderr: BinaryIO | int | None = None) -> Iterator[ServerProcess]:
    """Starts a server on a free port, and kills it at the end when it still runs. Does not wait until it is ready.

    `stderr`: where its log goes, as `subprocess` takes it; None is where everything goes.
    """
    command = (sys.executable, "-m", "services.cli.main", "serve", "--port", "0", *SMALL, *arguments)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with (
            log.open("wb") as out,
            subprocess.Popen(command, stdout=out, stderr=out if stderr is None else stderr) as process,
        ):
            try:
                yield ServerProcess(process, log)
            finally:
                if process.poll() is None:
                    process.kill()


@contextmanager
def ready_server(*arguments: str) -> Iterator[tuple[ServerProcess, str]]:
    """A server that serves, and its address. At the end it must go by itself, with exit code 0, in under 5 s."""
    with server_process(*arguments) as server:
        yield server, server.wait_for(READY)
        if server.process.poll() is None:
            code, took_s = server.end()
            assert code == 0, server.output()
            assert took_s < 5, f"{took_s:.1f} s"
            assert "Traceback" not in server.output(), server.output()
