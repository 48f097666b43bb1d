"""How turns end that their client does not read to the end: on the server, in order, and without noise."""

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc import aio

from protos.v1 import generate_pb2
from services.client import Client, FinishReason, SamplingOptions, TenureError, Turn, connect
from tests.kit.server_rig import ServerRig, running_server

LONG: SamplingOptions = {"max_tokens": 100}
PROMPT = [7, 1, 9, 4]


@asynccontextmanager
async def watched_server() -> AsyncIterator[ServerRig]:
    """Turns stay where they are until the executor is let go. Whatever the loop has to complain of fails the test."""
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(str(context)))
    async with running_server() as rig:
        yield rig
        gc.collect()
        await asyncio.sleep(0)
    assert complaints == []


async def live_turns(client: Client) -> int:
    stats = await client.pools()
    return stats.turns_running + stats.turns_waiting


async def read_one(turn: Turn) -> None:
    async for _piece in turn:
        break


async def started(turn: Turn, rig: ServerRig) -> "asyncio.Task[list[int]]":
    """A task that reads the turn, which the server has accepted."""
    reading = asyncio.create_task(rig.collect(turn))
    async with asyncio.timeout(5):
        while turn.max_tokens is None:  # noqa: ASYNC110 - the turn has no event for what only its reader sees
            await asyncio.sleep(0.001)
    return reading


async def fail_in_the_loop(target: str) -> None:
    async with connect(target) as client:
        async for _piece in client.generate(token_ids=PROMPT, **LONG):
            raise ZeroDivisionError


@pytest.mark.parametrize("kind", ["alone", "streaming", "ordinary"])
async def test_client_when_closed_behind_a_break_then_the_turns_are_aborted_first(kind: str) -> None:
    async with watched_server() as rig:
        async with connect(rig.target) as client:
            if kind == "alone":
                turns = [client.generate(token_ids=PROMPT, **LONG) for _ in range(2)]
            else:
                session = client.session("mine", streaming=kind == "streaming")
                await session.open()
                turns = [session.turn(token_ids=PROMPT, **LONG) for _ in range(1 if kind == "streaming" else 2)]
            for turn in turns:
                await read_one(turn)
        assert [turn.finish_reason for turn in turns] == [FinishReason.ABORT] * len(turns)
        assert await live_turns(rig.client) == 0


async def test_client_when_left_by_an_exception_in_the_loop_then_the_turn_is_aborted() -> None:
    async with watched_server() as rig:
        with pytest.raises(ZeroDivisionError):
            await fail_in_the_loop(rig.target)
        assert await live_turns(rig.client) == 0


async def test_client_when_closed_while_others_read_then_they_are_told_that_the_turn_was_aborted() -> None:
    async with watched_server() as rig:
        client = connect(rig.target)
        reading = await started(client.generate(token_ids=PROMPT, **LONG), rig)
        await client.close()
        with pytest.raises(TenureError) as caught:
            await reading
        assert caught.value.reason == "TURN_ABORTED"
        await client.close()


async def test_session_when_closed_then_all_its_branches_have_ended() -> None:
    async with watched_server() as rig:
        async with rig.client.session(streaming=False) as session:
            branches = [session.turn(token_ids=[*PROMPT, branch], **LONG) for branch in range(3)]
            for branch in branches:
                await read_one(branch)
        assert [branch.finish_reason for branch in branches] == [FinishReason.ABORT] * 3


async def test_turn_when_its_context_is_left_then_aborted_there_and_then() -> None:
    async with watched_server() as rig:
        async with rig.client.generate(token_ids=PROMPT, **LONG) as turn:
            pieces = aiter(turn)
            await anext(pieces)
        assert turn.finish_reason is FinishReason.ABORT
        assert await live_turns(rig.client) == 0


async def test_turn_when_broken_off_then_aborted_without_another_call() -> None:
    async with watched_server() as rig:
        turn = rig.client.generate(token_ids=PROMPT, **LONG)
        await read_one(turn)
        async with asyncio.timeout(5):
            while turn.finish_reason is None:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.001)
        assert turn.finish_reason is FinishReason.ABORT


async def test_turn_when_the_channel_was_closed_by_others_then_leaving_it_is_quiet() -> None:
    async with watched_server() as rig:
        channel = aio.insecure_channel(rig.target)
        async with Client(channel) as client:
            turn = client.generate(token_ids=PROMPT, **LONG)
            pieces = aiter(turn)
            await anext(pieces)
            await channel.close()
            await turn.leave()


async def test_session_when_another_task_reads_a_turn_then_the_second_is_refused_and_the_first_goes_on() -> None:
    async with watched_server() as rig, rig.client.session() as session:
        rig.executor.hold()
        first = session.turn(token_ids=PROMPT, max_tokens=20)
        reading = await started(first, rig)
        with pytest.raises(TenureError) as caught:
            await rig.collect(session.turn(token_ids=PROMPT, **LONG))
        assert (caught.value.reason, caught.value.metadata["value"]) == ("SESSION_BUSY", first.turn_id)
        rig.executor.let_go()
        assert len(await reading) == 20


async def test_session_when_a_turn_was_broken_off_then_the_next_one_ends_it_first() -> None:
    async with watched_server() as rig, rig.client.session() as session:
        first, never = session.turn(token_ids=PROMPT, **LONG), session.turn(token_ids=PROMPT, **LONG)
        await read_one(first)
        second = session.turn(token_ids=PROMPT, max_tokens=3)
        assert len(await rig.collect(second)) == 3
        assert (first.finish_reason, never.finish_reason) == (FinishReason.ABORT, None)


async def test_session_when_it_was_never_opened_then_said_so() -> None:
    async with connect("127.0.0.1:1") as client:
        session = client.session()
        with pytest.raises(RuntimeError, match="not open"):
            session.turn("Hello!")
        await session.close()


async def test_turn_when_iterated_twice_then_refused() -> None:
    async with watched_server() as rig:
        turn = rig.client.generate(token_ids=PROMPT, max_tokens=2)
        await rig.collect(turn)
        with pytest.raises(RuntimeError, match="once"):
            await rig.collect(turn)


async def begin_and_be_silent(
    request: generate_pb2.GenerateRequest, _context: object
) -> AsyncGenerator[generate_pb2.GenerateResponse, None]:
    """What a server tells that has died of its turn, and not of its connection."""
    yield generate_pb2.GenerateResponse(started=generate_pb2.TurnStarted(turn_id=request.turn_id, max_tokens=9))
    await asyncio.Event().wait()


async def test_turn_when_its_time_ends_before_its_end_was_told_then_nobody_claims_to_know_it() -> None:
    server = aio.server()
    handler = grpc.unary_stream_rpc_method_handler(
        begin_and_be_silent,
        generate_pb2.GenerateRequest.FromString,
        generate_pb2.GenerateResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("tenure.v1.Generate", {"Generate": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with connect(f"127.0.0.1:{port}") as client:
            turn = client.generate(token_ids=PROMPT, turn_id="t", timeout_s=0.2)
            with pytest.raises(TenureError) as caught:
                await turn.text()
        assert (caught.value.reason, turn.max_tokens) == ("DEADLINE_EXCEEDED", 9)
        assert (turn.is_committed, turn.finish_reason) == (None, None)
    finally:
        await server.stop(None)


async def test_turn_when_its_time_ends_then_its_end_is_told_before() -> None:
    async with watched_server() as rig:
        rig.executor.hold()
        turn = rig.client.generate(token_ids=PROMPT, turn_id="t", timeout_s=0.3, **LONG)
        with pytest.raises(TenureError) as caught:
            await turn.text()
        assert caught.value.reason == "DEADLINE"
        assert (turn.is_committed, turn.finish_reason) == (False, FinishReason.ABORT)
        rig.executor.let_go()
