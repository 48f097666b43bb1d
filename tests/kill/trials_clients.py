"""A client that stops reading, among many that read."""

import asyncio
import time

import pytest
from grpc import aio

from protos.v1 import generate_pb2, generate_pb2_grpc, types_pb2
from services.client.errors import to_error
from tests.kill.load import Stream
from tests.kill.row import Group, Row, Scale, Trial
from tests.kill.stage import Limits, Stage
from tests.kill.watch import Condition

READERS = 49
READER_TOKENS = 16
STALLED_TOKENS = 1500
UNREAD_TOKENS_MAX = 32
_WINDOW_BYTES = 512
"""Of the stalled client: so much the server may send before it has to wait for somebody to read."""
_ENDED_S = 120.0
_OPTIONS = (
    ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
    ("grpc.http2.bdp_probe", 0),
)

_Call = aio.UnaryStreamCall[generate_pb2.GenerateRequest, generate_pb2.GenerateResponse]


async def stalled_client(stage: Stage, _scale: Scale) -> Row:
    await stage.sure_ready()
    stage.mark()
    async with aio.insecure_channel(stage.target, options=_OPTIONS) as channel:
        request = generate_pb2.GenerateRequest(text=types_pb2.TextInput(text="Count to one thousand:"))
        request.sampling.max_tokens, request.sampling.ignore_eos = STALLED_TOKENS, True
        stalled = generate_pb2_grpc.GenerateStub(channel).Generate(request)
        assert isinstance(await stalled.read(), generate_pb2.GenerateResponse), "its stream has begun"
        readers = [
            Stream(stage.client.generate(f"{number}: tell me a story", max_tokens=READER_TOKENS, ignore_eos=True))
            for number in range(READERS)
        ]
        async with asyncio.timeout(_ENDED_S):
            endings = await asyncio.gather(*(reader.task for reader in readers))
        assert {(ending.code, ending.tokens) for ending in endings} == {("OK", READER_TOKENS)}, endings
        took_s = max(ending.at_s for ending in endings) - stage.planted_s
        ended_s = await _wait_ended(stage)
        well = await stage.prove_well()
        told = await _read_end(stalled)
        outcomes = (await stage.client.history()).totals.endings
    assert outcomes.get("slow_reader", 0) == 1, outcomes
    probe, public = stage.probe.since(stage.planted_s), stage.public.since(stage.planted_s)
    assert probe.conditions == [Condition.READY], probe
    assert public.conditions == [Condition.READY], public
    return Row(
        clients=f"{READERS} others: all {READER_TOKENS} tokens each, after {took_s:.1f} s; "
        f"the stalled one, when it reads again: {told}",
        health=f"{probe}; public port: {public}",
        dump="none: no fault of the server's",
        recovered=f"the stalled turn ended as slow_reader after {ended_s:.1f} s, and its pages came back; {well}",
    )


async def _read_end(stalled: _Call) -> str:
    """What the stalled client is told once it reads again: what it was sent, and then why there is no more."""
    with pytest.raises(aio.AioRpcError) as caught:
        await _drain(stalled)
    error = to_error(caught.value)
    assert error.reason == "SLOW_READER", error
    return f"{error.code.name} {error.reason}"


async def _drain(stalled: _Call) -> None:
    while await stalled.read() is not aio.EOF:
        pass


async def _wait_ended(stage: Stage) -> float:
    """When the stalled turn ended, while its client still holds the stream."""
    deadline_s = time.monotonic() + _ENDED_S
    while (await stage.client.pools()).turns_running:
        assert time.monotonic() < deadline_s, f"the stalled turn runs on: {await stage.client.pools()}"
        await asyncio.sleep(0.05)
    return stage.age_s


STALLED = Group(
    "stalled",
    lambda _scale: Limits(),
    (Trial("stalled_client", lambda _scale: f"one client among {READERS + 1} stops reading", stalled_client),),
    flags=(
        *("--running-max", "50", "--context-len", "2048", "--pool-tokens", "8192"),
        *("--unread-tokens-max", str(UNREAD_TOKENS_MAX), "--full-check-steps", "16"),
    ),
)
