"""`tenure trace` as a process, against a server that remembers the spans of real turns and answers nothing else."""

import asyncio
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import grpc
import pytest
from grpc import aio

from engine.runtime.handle import EngineHandle
from protos.v1 import admin_pb2, traces_pb2
from services.backend import Backend
from services.client import TenureError, connect
from services.interceptors import ErrorInterceptor
from services.tokenization.tokenizer import Tokenizer
from services.trace_codec import find_trace
from telemetry.spans.ring import SpanRing
from telemetry.spans.sink import SpanSink
from telemetry.spans.tracer import Tracer
from tests.kit.runtime_rig import running

SERVICE = admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name
WAIT_S = 60.0
COLUMNS = 80


@asynccontextmanager
async def remembering() -> AsyncIterator[str]:
    """The address of a server that has served two turns, t1 and t2, of session `s`."""
    ring = SpanRing()
    sink = SpanSink(Tracer([ring]), 1)
    sink.begin()
    async with running(sinks=(sink,)) as rig:
        await rig.open("s")
        for turn_id in ("t1", "t2"):
            await rig.run(turn_id, range(20), "s", max_tokens=4)
    backend = Backend(cast(EngineHandle, None), cast(Tokenizer, None), None, spans=ring)

    async def tell(request: traces_pb2.GetTraceRequest, _context: object) -> traces_pb2.GetTraceResponse:
        return find_trace(backend, request).encode()

    handler = grpc.unary_unary_rpc_method_handler(
        tell,
        request_deserializer=traces_pb2.GetTraceRequest.FromString,
        response_serializer=traces_pb2.GetTraceResponse.SerializeToString,
    )
    server = aio.server(interceptors=[ErrorInterceptor()])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"GetTrace": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def run(target: str, *arguments: str, output: int = asyncio.subprocess.PIPE) -> tuple[int, str, str]:
    """Its exit code, and what it says on either stream."""
    command = (sys.executable, "-m", "services.cli.main", "trace", *arguments, "--target", target)
    process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=asyncio.subprocess.PIPE)
    async with asyncio.timeout(WAIT_S):
        said, complained = await process.communicate()
    assert process.returncode is not None
    return process.returncode, (said or b"").decode(), complained.decode()


async def test_trace_when_of_a_turn_then_its_tree_and_the_turn_before_by_a_link() -> None:
    async with remembering() as target:
        async with connect(target) as client:
            before, trace = await client.trace("t1"), await client.trace("t2", session_id="s")
        code, said, complained = await run(target, "t2")
    assert (code, complained) == (0, "")
    lines = said.splitlines()
    assert lines[:2] == ["turn t2 of session s", f"trace {trace.spans[0].trace_id}"]
    heads = [line.split()[0].strip("├└─│") for line in lines[3:] if re.match(r"[│ ]*[├└]─|\w", line)]
    assert sorted(heads) == sorted(span.name for span in trace.spans)
    assert {"turn", "turn.queue", "turn.prefill", "turn.decode", "kv.lend", "kv.park"} <= set(heads)
    turn = next(span for span in before.spans if span.name == "turn")
    park = next(span for span in before.spans if span.name == "kv.park")
    assert f"<- previous_turn t1  {turn.trace_id[:8]}…/{turn.span_id[:8]}…" in said
    assert f"<- previous_holder kv.park of t1  {park.trace_id[:8]}…/{park.span_id[:8]}…" in said
    assert "session 1 -> request 2" in said
    assert "\x1b" not in said, "a pipe gets no colours"


async def test_trace_when_by_its_id_then_the_same_as_by_the_turn() -> None:
    async with remembering() as target:
        _, by_turn, _ = await run(target, "t1", "--session", "s")
        trace_id = by_turn.splitlines()[1].removeprefix("trace ")
        assert await run(target, "--id", trace_id) == (0, by_turn, "")


async def test_trace_when_by_what_a_link_shows_then_the_trace_that_it_leads_to() -> None:
    async with remembering() as target:
        _, by_turn, _ = await run(target, "t1")
        _, after, _ = await run(target, "t2")
        link = re.search(r"previous_turn t1  (\w{8}…/\w{8}…)", after)
        assert link is not None
        for given in (link[1], link[1][:8], link[1][:8].upper()):
            assert await run(target, "--id", given) == (0, by_turn, "")


async def test_trace_when_no_turn_is_named_then_the_newest_of_all_or_of_the_session() -> None:
    async with remembering() as target:
        code, newest, _ = await run(target, "t2")
        assert code == 0
        assert await run(target) == (0, newest, "")
        assert await run(target, "--session", "s") == (0, newest, "")
        async with connect(target) as client:
            assert await client.trace() == await client.trace("t2")


async def test_trace_when_on_a_terminal_of_80_columns_then_every_line_fits() -> None:
    async with remembering() as target:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
        try:
            code, _, complained = await run(target, "t2", output=theirs)
            said = os.read(ours, 1 << 16).decode()
        finally:
            os.close(theirs)
            os.close(ours)
    assert (code, complained) == (0, "")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", said).splitlines()
    assert lines[0] == "turn t2 of session s"
    assert max(map(len, lines)) <= COLUMNS
    assert any(len(line) == COLUMNS for line in lines), "bars use all of it"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("t9",), 1, ("no turn of that name has ended lately", "tenure snapshot --target", "tenure timeline SESSION")),
        (("t1", "--session", "r"), 1, ("of that session has ended lately", "tenure timeline r --target")),
        (("--id", "0" * 32), 1, ("no span of that trace is kept", "once it has ended")),
        (("--session", "r"), 1, ("no turn of that session has ended lately", "tenure timeline r --target")),
        (("--id", "4bf9"), 2, ("--id: must be 32 hexadecimal digits, or the first 8",)),
        (("--id", "0" * 32, "--session", "s"), 2, ("--id: stands for itself",)),
        (("t1", "--id", "0" * 32), 2, ("not allowed with",)),
    ],
)
async def test_trace_when_there_is_none_or_the_arguments_can_not_be_then_said_so_with_what_to_do(
    arguments: tuple[str, ...], code: int, words: tuple[str, ...]
) -> None:
    async with remembering() as target:
        got, said, complained = await run(target, *arguments)
    assert (got, said) == (code, "")
    assert all(each in complained for each in words), complained


async def test_client_when_the_trace_is_unknown_then_a_typed_error() -> None:
    async with remembering() as target, connect(target) as client:
        with pytest.raises(TenureError) as caught:
            await client.trace("nobody's")
    assert (caught.value.reason, caught.value.field) == ("TRACE_UNKNOWN", "turn_id")
