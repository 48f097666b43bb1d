"""A log that can not be written, and a start that takes too long."""

import asyncio
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

import pytest

from services.client import Client, TenureError
from tests.kill.row import Row, Scale, Solo
from tests.kill.server_log import read_log
from tests.kill.stage import Stage, stage
from tests.kill.watch import Condition, Timeline
from tests.kit.server_process import READY

SESSIONS = 100
"""Opened and closed: two lines of the log each."""
PIPE_SESSIONS = 600
"""More lines than a pipe holds."""
LOADING_S = 0.3
_READY_S = 120.0
_READ_S = 30.0


async def disk_full(scale: Scale) -> Row:
    """Standard error is a device without any space."""
    with _full_disk() as full:
        async with stage(scale.calm, stderr=full) as here:
            row = await _serve_on(here, SESSIONS, "all of it is lost")
            await here.end()
            return row


async def disk_full_for_a_while(scale: Scale) -> Row:
    """The file of the log may not grow, and then may again: lines that were lost in between are counted."""
    async with stage(scale.calm) as here:
        pid = here.server.process.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        await here.sure_ready()
        here.mark()
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))
        await _open_sessions(here.client, SESSIONS)
        assert await here.client.generate("Hello!", max_tokens=8, ignore_eos=True).text()
        assert not here.entries("session_opened"), "the disk is not full"
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
        await _open_sessions(here.client, 1)
        dropped = await here.entry("log_lines_dropped")
        well = await here.prove_well()
        probe = _require_steady(here)
        await here.end()
    lines = int(dropped.facts["lines"])
    assert lines >= 2 * SESSIONS, dropped
    return Row(
        clients=f"nothing: {SESSIONS} sessions and a turn as ever",
        health=str(probe),
        dump=f"none; once there is space: event=log_lines_dropped lines={lines}",
        recovered=f"the log, with the number of lines that are missing; {well}",
    )


async def log_unread(scale: Scale) -> Row:
    """Standard error is a pipe that nobody reads."""
    async with stage(scale.calm, stderr=subprocess.PIPE) as here:
        said = f"once somebody reads, all {2 * PIPE_SESSIONS:,} lines about these sessions come"
        row = await _serve_on(here, PIPE_SESSIONS, said)
        async with asyncio.timeout(_READ_S):
            await asyncio.to_thread(_read_sessions, here.server.process.stderr, PIPE_SESSIONS)
        await here.end()
        return row


async def slow_start(scale: Scale) -> Row:
    """Loading takes longer than it may, and no end is set for a lost process: it is dumped, and left to finish."""
    flags = ("--watchdog-loading-s", f"{LOADING_S:g}")
    async with stage(scale.calm, *flags, is_ready=False) as here:
        here.mark()
        tripped = await _wait_tripped(here)
        with pytest.raises(TenureError) as caught:
            await here.client.pools()
        assert caught.value.reason == "SERVER_LOADING", caught.value
        await asyncio.to_thread(here.server.wait_for, READY, _READY_S)
        await here.sure_ready()
        dump = next(entry for entry in read_log(here.server.output()) if entry.name == "engine_dump")
        stacks = [line for line in dump.lines if line.startswith("thread: ")]
        assert any("MainThread" in line for line in stacks), dump.lines[:20]
        recovered = [entry for entry in read_log(here.server.output()) if entry.name == "watchdog_recovered"]
        assert recovered, here.tail()
        probe = here.probe.since(here.planted_s)
        assert probe.conditions[-1] is Condition.READY, probe
        well = await here.prove_well()
        await here.end()
    return Row(
        clients=f"not served until it is ready: {caught.value.code.name} {caught.value.reason}",
        health=str(probe),
        dump=f"{tripped}; stacks of {len(stacks)} threads",
        recovered=f"all by itself: loading ended; {well}",
    )


async def _wait_tripped(here: Stage) -> str:
    deadline_s = time.monotonic() + _READY_S
    while time.monotonic() < deadline_s:
        for entry in read_log(here.server.output()):
            if entry.name == "watchdog_tripped":
                assert (entry.kind, entry.facts["phase"]) == ("slow_start", "loading"), entry
                return f"no books yet: {entry.rest.partition(': ')[2]}"
        assert here.server.process.poll() is None, here.tail()
        await asyncio.sleep(0.05)
    raise AssertionError(f"no slow start was noticed; {here.tail()}")


async def _serve_on(here: Stage, sessions: int, said: str) -> Row:
    """Sessions and turns as ever, and health never wavers."""
    await here.sure_ready()
    here.mark()
    await _open_sessions(here.client, sessions)
    well = await here.prove_well()
    probe = _require_steady(here)
    return Row(
        clients=f"nothing: {sessions} sessions and a turn as ever",
        health=str(probe),
        dump=f"none; of the log: {said}",
        recovered=f"nothing had to; {well}; it stops when it is told to, with exit code 0",
    )


@contextmanager
def _full_disk() -> Iterator[BinaryIO]:
    with Path("/dev/full").open("wb") as full:
        yield full


def _read_sessions(log: IO[bytes] | None, count: int) -> None:
    """Reads until each session was opened and closed."""
    assert log is not None, "the log is a pipe"
    opened = closed = 0
    while (opened, closed) != (count, count):
        line = log.readline()
        assert line, f"the log ended after {opened} sessions were opened and {closed} closed"
        opened += b"event=session_opened" in line
        closed += b"event=session_closed" in line


async def _open_sessions(client: Client, count: int) -> None:
    for _ in range(count):
        async with client.session():
            pass


def _require_steady(here: Stage) -> Timeline:
    probe = here.probe.since(here.planted_s)
    for told in (probe, here.public.since(here.planted_s)):
        assert told.conditions == [Condition.READY], told
    return probe


def _loading_title(_scale: Scale) -> str:
    return f"loading takes longer than its limit ({LOADING_S:g} s)"


DISK_FULL = Solo("disk_full", lambda _scale: "the disk for the log is full", disk_full)
DISK_FULL_FOR_A_WHILE = Solo(
    "disk_full_for_a_while", lambda _scale: "the disk for the log is full, and then is not", disk_full_for_a_while
)
LOG_UNREAD = Solo("log_unread", lambda _scale: "nobody reads the log", log_unread)
SLOW_START = Solo("slow_start", _loading_title, slow_start)
