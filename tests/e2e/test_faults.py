"""Faults planted in a running server: a leak is quarantined and told, a page with two owners ends the service."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Sequence

import grpc
import pytest
from grpc import aio

from protos.v1 import faults_pb2, generate_pb2, generate_pb2_grpc, types_pb2
from services.client import Client, TenureError, connect
from services.client.inspection import UnitHistory, decode_unit
from tests.kit.planting import plant_fault
from tests.kit.server_process import READY, ServerProcess, ready_server, server_process

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = (("traceparent", f"00-{TRACE_ID}-00f067aa0ba902b7-01"),)
NUM_TOKENS = 64


async def plant(target: str, kind: faults_pb2.FaultKind.ValueType) -> UnitHistory:
    return decode_unit((await plant_fault(target, faults_pb2.PlantRequest(kind=kind))).history)


async def generate_traced(target: str) -> None:
    """A short turn of a caller with a trace. Its pages are free again afterwards."""
    async with aio.insecure_channel(target) as channel:
        request = generate_pb2.GenerateRequest(text=types_pb2.TextInput(text="Hello"))
        request.sampling.max_tokens = 2
        async for _message in generate_pb2_grpc.GenerateStub(channel).Generate(request, metadata=TRACEPARENT):
            pass


async def plant_traced_leak(target: str) -> UnitHistory:
    """Loses a page that a turn with a trace has just given back, before the traffic takes it."""
    for _ in range(20):
        await generate_traced(target)
        try:
            return await plant(target, faults_pb2.FAULT_KIND_LEAK)
        except TenureError as error:
            if error.reason != "FAULT_IMPOSSIBLE":
                raise
    raise AssertionError("the page was taken again every time")


async def count_tokens(client: Client, number: int) -> int:
    turn = client.generate(f"Count to one hundred, {number} times:", max_tokens=NUM_TOKENS, ignore_eos=True)
    return len([token_id async for piece in turn for token_id in piece.token_ids])


async def quarantined(client: Client) -> int:
    return (await client.pools()).find("full").quarantined


async def wait_quarantined(client: Client, count: int) -> None:
    async with asyncio.timeout(30):
        while await quarantined(client) != count:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.01)


def tenure(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "services.cli.main", *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


async def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(tenure, *arguments)


async def test_leak_when_planted_then_traffic_goes_on_the_page_is_quarantined_and_explained() -> None:
    with ready_server("--fault-injection", "--full-check-steps", "8") as (server, target):
        async with connect(target) as client:
            traffic = [asyncio.create_task(count_tokens(client, number)) for number in range(3)]
            lost = await plant_traced_leak(target)
            assert not any(task.done() for task in traffic)
            await wait_quarantined(client, 1)
            assert await asyncio.gather(*traffic) == [NUM_TOKENS] * 3, "no turn noticed"
            assert await count_tokens(client, 5) == NUM_TOKENS
            stats = await client.pools()
            assert (stats.balanced, stats.find("full").total) == (True, 127)
            assert (await client.check()).is_clean
            explained = await ask("explain", str(lost.unit), "--target", target)
            assert explained.returncode == 0, explained.stderr
            require_history(explained.stdout, lost.unit, [change.step for change in lost.changes])
            checked = await ask("check", "--target", target)
            assert (checked.returncode, "OUT OF CIRCULATION: 1" in checked.stdout) == (0, True)
            assert f"units={lost.unit} " in server.output()
            assert f"trace_id={TRACE_ID}" in server.output()


def require_history(shown: str, unit: int, steps: Sequence[int]) -> None:
    """The page, its owner now, and its last owners with step and trace id, newest first."""
    head, quarantine, *moves = shown.splitlines()
    assert head == f"full page {unit}: quarantined; newest move first:"
    assert re.fullmatch(r"  step \d+ +quarantine +\S.* -> quarantined.*", quarantine)
    assert [int(step) for step in re.findall(r"^  step (\d+)", "\n".join(moves), re.MULTILINE)] == list(steps)
    granted = next(line for line in moves if " grant " in line)
    assert re.search(rf"free -> request \d+ +trace {TRACE_ID}$", granted), shown


async def test_double_owner_when_planted_then_every_stream_ends_internal_with_a_dump_and_exit_code_1() -> None:
    with server_process("--fault-injection", "--full-check-steps", "8") as server:
        target = server.wait_for(READY)
        async with connect(target, resume_timeout_s=0) as client:
            session = client.session()
            await session.open()
            await session.turn(text="Once upon a time there was a dog.", max_tokens=20, ignore_eos=True).text()
            streams = [asyncio.create_task(end_of(client, number)) for number in range(4)]
            await started(client, 4)
            broken = await plant(target, faults_pb2.FAULT_KIND_DOUBLE_OWNER)
            for error in await asyncio.gather(*streams):
                assert (error.reason, error.code) == ("ENGINE_FAILED", grpc.StatusCode.INTERNAL)
            require_dump(await ended(server), broken)


async def end_of(client: Client, number: int) -> TenureError:
    with pytest.raises(TenureError) as caught:
        async for _piece in client.generate(f"{number}: count to one hundred", max_tokens=400, ignore_eos=True):
            pass
    return caught.value


async def started(client: Client, count: int) -> None:
    async with asyncio.timeout(30):
        while (await client.pools()).turns_running < count:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.01)


async def ended(server: ServerProcess) -> str:
    """What the server said, once it has gone with exit code 1."""
    assert await asyncio.to_thread(server.process.wait, 20) == 1, server.output()
    return server.output()


def require_dump(said: str, broken: UnitHistory) -> None:
    assert "event=engine_halted" in said
    dump = said[said.index("event=engine_dump") :]
    finding = next(line for line in dump.splitlines() if line.startswith("finding: conflict"))
    assert re.search(rf"\bfull {broken.unit}\b", finding), dump
    assert str(broken.owner).replace(" ", ":") in dump, dump
    assert "free stack" in dump, "the other owner"
    assert "pool: full" in dump
    assert dump.count("turn: rid=") >= 4


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])  # noqa: S104 - refused before anything is bound
def test_fault_injection_when_not_on_loopback_then_refused_at_start_by_name(host: str) -> None:
    with server_process("--fault-injection", "--host", host, "--insecure-bind") as server:
        assert server.process.wait(30) == 2
        assert f"tenure serve: --fault-injection: {host} can be reached" in server.output()
