"""Lost streams between real processes: cut connections, killed clients, and what is left of their turns."""

import asyncio
import hashlib
import signal
import struct
import subprocess
import sys
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence

import grpc
import pytest
from grpc import aio

from protos.v1 import generate_pb2, generate_pb2_grpc, types_pb2
from services.client import Client, FinishReason, TenureError, connect
from tests.kit.server_process import ready_server
from tests.kit.tcp_proxy import tcp_proxy

PROMPT = "Once upon a time there was a small dog."
NUM_TOKENS = 36
GRACE_S = 3.0


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with ready_server("--detach-grace-s", str(GRACE_S)) as (_server, target):
        yield target


@pytest.fixture
async def client(target: str) -> AsyncIterator[Client]:
    """After the test the server must hold nothing."""
    async with connect(target) as client:
        yield client
        await wait_no_turns(client)
        stats = await client.pools()
        assert (await client.check()).is_clean
        assert (stats.sessions_open, stats.find("full").uncached, stats.find("full").session_held) == (0, 0, 0)


async def wait_no_turns(client: Client, timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while (stats := await client.pools()).turns_running + stats.turns_waiting:  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0.02)


async def answer_of(client: Client, max_tokens: int = NUM_TOKENS) -> tuple[list[int], str]:
    """Ids and text of the undisturbed turn."""
    turn = client.generate(PROMPT, max_tokens=max_tokens, ignore_eos=True)
    pieces = [piece async for piece in turn]
    return [token_id for piece in pieces for token_id in piece.token_ids], "".join(piece.text for piece in pieces)


def request(turn_id: str, max_tokens: int, session_id: str | None = None) -> generate_pb2.GenerateRequest:
    return generate_pb2.GenerateRequest(
        session_id=session_id,
        turn_id=turn_id,
        text=types_pb2.TextInput(text=PROMPT),
        sampling=types_pb2.SamplingParams(max_tokens=max_tokens, ignore_eos=True),
    )


def digest(ids: Sequence[int]) -> bytes:
    return hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).digest()


@pytest.mark.parametrize("in_session", [False, True])
async def test_turn_when_its_connections_are_cut_again_and_again_then_every_token_once(
    client: Client, target: str, in_session: bool
) -> None:
    expected = await answer_of(client)
    async with tcp_proxy(target) as (proxy, address), connect(address) as far:
        session = far.session()
        if in_session:
            await session.open()
            turn = session.turn(text=PROMPT, max_tokens=NUM_TOKENS, ignore_eos=True)
        else:
            turn = far.generate(PROMPT, max_tokens=NUM_TOKENS, ignore_eos=True)
        ids: list[int] = []
        text = ""
        async for piece in turn:
            ids += piece.token_ids
            text += piece.text
            if len(ids) in (5, 15, 25):
                proxy.cut()
        assert (ids, text) == expected
        assert (turn.finish_reason, turn.attempt) == (FinishReason.LENGTH, 1)
        assert turn.resumptions >= 3
        assert proxy.connections >= 4
        if in_session:
            assert turn.session_len is not None
            after = session.turn(text=" The end.", max_tokens=4)
            assert len([piece async for piece in after]) > 0
            assert after.usage is not None
            assert after.usage.tokens_from_slot + after.usage.tokens_from_tree == turn.session_len - 1
            await session.close()


async def test_turn_when_the_connection_does_not_come_back_then_the_error_is_told(client: Client, target: str) -> None:
    async with tcp_proxy(target) as (proxy, address), connect(address, resume_timeout_s=0.5) as far:
        turn = far.generate(PROMPT, max_tokens=300, ignore_eos=True)
        pieces = aiter(turn)
        await anext(pieces)
        proxy.is_open = False
        proxy.cut()
        with pytest.raises(TenureError) as caught:
            await drain(pieces)
        assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    await wait_no_turns(client)


READ_AND_DIE = """
import asyncio, os, signal, sys
from grpc import aio
from protos.v1 import generate_pb2, generate_pb2_grpc

async def main():
    async with aio.insecure_channel(sys.argv[1]) as channel:
        request = generate_pb2.GenerateRequest.FromString(bytes.fromhex(sys.argv[2]))
        seen = 0
        async for message in generate_pb2_grpc.GenerateStub(channel).Generate(request):
            print(*message.delta.token_ids, flush=True)
            seen += len(message.delta.token_ids)
            if seen >= 5:
                os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def killed_client(target: str, sent: generate_pb2.GenerateRequest) -> list[int]:
    """A client process that is killed in the middle of its turn. Returns the ids that it has seen."""
    command = (sys.executable, "-c", READ_AND_DIE, target, sent.SerializeToString().hex())
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return [int(word) for word in done.stdout.split()]


async def test_client_when_killed_and_nobody_comes_back_then_the_turn_is_aborted_after_its_grace(
    client: Client, target: str
) -> None:
    """ABO-01 (vllm-project/vllm#10806)."""
    async with client.session() as session:
        ids = await asyncio.to_thread(killed_client, target, request("killed", 400, session.session_id))
        assert len(ids) >= 5
        assert (await client.find_session(session.session_id)).live_turn_ids == ("killed",), "it runs on"
        await wait_no_turns(client, GRACE_S + 2)
        info = await client.find_session(session.session_id)
        assert (info.session_len, info.live_turn_ids, info.kv_pages) == (0, (), 0)
        assert (await client.pools()).find("full").uncached == 0
        # The id is free again: the same turn runs anew.
        again = session.turn(text=PROMPT, turn_id="killed", max_tokens=4)
        assert [piece async for piece in again]
        assert again.attempt == 2


async def test_client_when_killed_and_another_comes_back_in_time_then_it_gets_the_rest_and_every_id_once(
    client: Client, target: str
) -> None:
    expected, text = await answer_of(client)
    held = await asyncio.to_thread(killed_client, target, request("mine", NUM_TOKENS))
    async with aio.insecure_channel(target) as channel:
        stub = generate_pb2_grpc.GenerateStub(channel)
        resume = generate_pb2.ResumeRequest(turn_id="mine", from_token=len(held), held_ids_sha256=digest(held))
        messages = [message async for message in stub.Resume(resume)]
        assert messages[0].started.turn_id == "mine"
        assert messages[1].delta.start == len(held)
        rest = [token_id for message in messages for token_id in message.delta.token_ids]
        assert held + rest == expected
        assert messages[-1].finished.finish_reason == types_pb2.FINISH_REASON_LENGTH
        # Sent again as a whole, it is replayed, and nothing is generated.
        steps = (await client.pools()).steps
        replayed = [message async for message in stub.Generate(request("mine", NUM_TOKENS))]
        assert [token_id for message in replayed for token_id in message.delta.token_ids] == expected
        assert "".join(message.delta.text for message in replayed) == text
        assert (await client.pools()).steps == steps


async def drain(messages: AsyncIterable[object]) -> None:
    async for _message in messages:
        pass


async def require_error(call: AsyncIterable[object], code: grpc.StatusCode, word: str) -> None:
    with pytest.raises(aio.AioRpcError) as caught:
        await drain(call)
    assert caught.value.code() is code
    assert word in (caught.value.details() or "")


async def test_resume_when_it_can_not_be_then_typed(client: Client, target: str) -> None:
    turn = client.generate(PROMPT, turn_id="short", max_tokens=4, ignore_eos=True)
    ids = [token_id async for piece in turn for token_id in piece.token_ids]
    async with aio.insecure_channel(target) as channel:
        resume = generate_pb2_grpc.GenerateStub(channel).Resume
        asked = generate_pb2.ResumeRequest
        await require_error(resume(asked(turn_id="nobody")), grpc.StatusCode.NOT_FOUND, "nobody")
        await require_error(resume(asked(turn_id="")), grpc.StatusCode.INVALID_ARGUMENT, "turn_id")
        await require_error(resume(asked(turn_id="short", from_token=5)), grpc.StatusCode.OUT_OF_RANGE, "4 tokens")
        await require_error(
            resume(asked(turn_id="short", from_token=-1)), grpc.StatusCode.INVALID_ARGUMENT, "from_token"
        )
        wrong = asked(turn_id="short", from_token=4, held_ids_sha256=digest([*ids[::-1], 0]))
        await require_error(resume(wrong), grpc.StatusCode.ABORTED, "attempt")
