"""The client's side of lost streams, against a server that loses them as a script says."""

import asyncio
import hashlib
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc import aio

from engine.runtime.handle import StreamReason, StreamRefusal
from protos.v1 import generate_pb2, generate_pb2_grpc, types_pb2
from services.client import Client, FinishReason, TenureError, Turn, connect
from services.errors import DETAILS_KEY, EdgeReason, Problem, from_stream_refusal, to_status, unavailable

Step = generate_pb2.GenerateResponse | grpc.StatusCode | StreamReason | EdgeReason
"""What one call does next: sends a message, ends with a status that nobody explained, or with a reason of ours."""

_Context = aio.ServicerContext[generate_pb2.GenerateRequest, generate_pb2.GenerateResponse]
_ResumeContext = aio.ServicerContext[generate_pb2.ResumeRequest, generate_pb2.GenerateResponse]

STARTED = generate_pb2.GenerateResponse(started=generate_pb2.TurnStarted(turn_id="t", attempt=1, max_tokens=9))
FINISHED = generate_pb2.GenerateResponse(
    finished=generate_pb2.TurnFinished(finish_reason=types_pb2.FINISH_REASON_LENGTH)
)
LOST = grpc.StatusCode.UNAVAILABLE


def delta(start: int, ids: Sequence[int], text: str) -> generate_pb2.GenerateResponse:
    return generate_pb2.GenerateResponse(
        delta=generate_pb2.TokenDelta(start=start, token_ids=ids, text=text, attempt=1)
    )


class Script(generate_pb2_grpc.GenerateServicer):
    """Plays one list of steps for each call, and keeps what was asked."""

    def __init__(self, calls: Sequence[Sequence[Step]]) -> None:
        self._calls = list(calls)
        self.asked: list[generate_pb2.GenerateRequest | generate_pb2.ResumeRequest] = []
        self.aborts = 0

    async def Generate(  # noqa: N802 - the name in the proto
        self, request: generate_pb2.GenerateRequest, context: _Context
    ) -> AsyncIterator[generate_pb2.GenerateResponse]:
        self.asked.append(request)
        async for message in self._play(context):
            yield message

    async def Resume(  # noqa: N802 - the name in the proto
        self, request: generate_pb2.ResumeRequest, context: _ResumeContext
    ) -> AsyncIterator[generate_pb2.GenerateResponse]:
        self.asked.append(request)
        async for message in self._play(context):
            yield message

    async def Abort(  # noqa: N802 - the name in the proto
        self,
        request: generate_pb2.AbortRequest,
        context: aio.ServicerContext[generate_pb2.AbortRequest, generate_pb2.AbortResponse],
    ) -> generate_pb2.AbortResponse:
        self.aborts += 1
        return generate_pb2.AbortResponse()

    async def _play(self, context: _Context | _ResumeContext) -> AsyncIterator[generate_pb2.GenerateResponse]:
        for step in self._calls.pop(0):
            match step:
                case generate_pb2.GenerateResponse():
                    yield step
                case grpc.StatusCode():
                    await context.abort(step)
                case EdgeReason():
                    await refuse(context, unavailable(step, "not now").problem)
                case _:
                    await refuse(context, from_stream_refusal(StreamRefusal(step, "said so")))


async def refuse(context: _Context | _ResumeContext, problem: Problem) -> None:
    details = to_status(problem).SerializeToString()
    await context.abort(problem.code, problem.message, ((DETAILS_KEY, details),))


@asynccontextmanager
async def serving(
    *calls: Sequence[Step], resume_timeout_s: float = 5.0, on_reconnecting: Callable[[], None] | None = None
) -> AsyncIterator[tuple[Script, Client]]:
    script = Script(calls)
    server = aio.server()
    generate_pb2_grpc.add_GenerateServicer_to_server(script, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    target = f"127.0.0.1:{port}"
    async with connect(target, resume_timeout_s=resume_timeout_s, on_reconnecting=on_reconnecting) as client:
        yield script, client
    await server.stop(0)


async def read(turn: Turn) -> tuple[list[int], str]:
    pieces = [piece async for piece in turn]
    return [token_id for piece in pieces for token_id in piece.token_ids], "".join(piece.text for piece in pieces)


def resume_request(held: Sequence[int]) -> generate_pb2.ResumeRequest:
    digest = hashlib.sha256(struct.pack(f"<{len(held)}i", *held)).digest()
    return generate_pb2.ResumeRequest(turn_id="t", from_token=len(held), held_ids_sha256=digest)


async def test_turn_when_its_stream_is_lost_again_and_again_then_each_id_and_the_rest_once() -> None:
    calls: list[list[Step]] = [
        [STARTED, delta(0, [5, -1], "ab"), LOST],
        [LOST],
        [STARTED, delta(2, [7], "c"), delta(3, [], "EN"), StreamReason.SLOW_READER],
        [STARTED, delta(3, [], "EN"), FINISHED],
    ]
    async with serving(*calls) as (script, client):
        turn = client.generate("x", turn_id="t")
        assert await read(turn) == ([5, -1, 7], "abcEN")
        assert (turn.finish_reason, turn.resumptions) == (FinishReason.LENGTH, 2)
        assert script.asked[1:] == [resume_request([5, -1]), resume_request([5, -1]), resume_request([5, -1, 7])]
        assert script.aborts == 0


async def test_turn_when_lost_before_it_started_then_sent_once_more() -> None:
    async with serving([LOST], [STARTED, delta(0, [5], "a"), FINISHED]) as (script, client):
        assert await read(client.generate("x", turn_id="t")) == ([5], "a")
        assert script.asked[0] == script.asked[1]


async def test_turn_when_lost_before_it_started_both_times_then_the_error_is_told() -> None:
    async with serving([LOST], [LOST]) as (script, client):
        with pytest.raises(TenureError) as caught:
            await read(client.generate("x", turn_id="t"))
        assert caught.value.code is LOST
        assert len(script.asked) == 2


async def test_turn_when_it_is_another_attempt_by_now_then_the_error_is_told_and_nothing_spliced() -> None:
    async with serving([STARTED, delta(0, [5], "a"), LOST], [StreamReason.ATTEMPT_CHANGED]) as (script, client):
        with pytest.raises(TenureError) as caught:
            await read(client.generate("x", turn_id="t"))
        assert caught.value.reason == "ATTEMPT_CHANGED"
        assert (len(script.asked), script.aborts) == (2, 0)


async def test_turn_when_lost_for_too_long_then_the_first_error_is_told() -> None:
    losses: list[list[Step]] = [[LOST] for _ in range(50)]
    async with serving([STARTED, LOST], *losses, resume_timeout_s=0.2) as (script, client):
        with pytest.raises(TenureError) as caught:
            await read(client.generate("x", turn_id="t"))
        assert caught.value.code is LOST
        assert 2 < len(script.asked) < 20


async def test_turn_when_only_the_status_is_lost_behind_its_end_then_it_has_ended_as_told() -> None:
    async with serving([STARTED, delta(0, [5], "a"), FINISHED, LOST]) as (script, client):
        turn = client.generate("x", turn_id="t")
        assert await read(turn) == ([5], "a")
        assert (turn.finish_reason, len(script.asked), script.aborts) == (FinishReason.LENGTH, 1, 0)


async def test_turn_when_the_status_is_lost_behind_an_abort_then_the_error_is_told() -> None:
    aborted = generate_pb2.GenerateResponse(
        finished=generate_pb2.TurnFinished(finish_reason=types_pb2.FINISH_REASON_ABORT)
    )
    async with serving([STARTED, aborted, LOST]) as (script, client):
        turn = client.generate("x", turn_id="t")
        with pytest.raises(TenureError):
            await read(turn)
        assert (turn.finish_reason, len(script.asked)) == (FinishReason.ABORT, 1)


async def test_turn_when_the_server_was_started_anew_then_sought_until_it_has_loaded_and_said_once() -> None:
    loading: list[list[Step]] = [[EdgeReason.SERVER_LOADING] for _ in range(6)]
    calls: list[list[Step]] = [[STARTED, delta(0, [5], "a"), LOST], *loading, [StreamReason.TURN_UNKNOWN]]
    told: list[str] = []
    async with serving(*calls, on_reconnecting=lambda: told.append("reconnecting")) as (script, client):
        with pytest.raises(TenureError) as caught:
            await read(client.generate("x", turn_id="t"))
        assert caught.value.reason == "TURN_UNKNOWN"
        assert (len(script.asked), told) == (8, ["reconnecting"])


async def test_turn_when_the_server_is_stopping_while_it_is_sought_then_told_at_once() -> None:
    calls: list[list[Step]] = [[STARTED, delta(0, [5], "a"), LOST], [EdgeReason.SERVER_STOPPING]]
    async with serving(*calls) as (script, client):
        with pytest.raises(TenureError) as caught:
            await read(client.generate("x", turn_id="t"))
        assert caught.value.reason == "SERVER_STOPPING"
        assert len(script.asked) == 2


async def test_turn_when_it_is_larger_than_a_message_may_be_then_said_how_much_may_be() -> None:
    async with serving() as (script, client):
        with pytest.raises(TenureError) as caught:
            await read(client.generate("x" * 5_000_000))
        assert caught.value.reason == "MESSAGE_TOO_LARGE"
        assert "(4 MiB)" in caught.value.message
        assert not script.asked


async def test_turn_when_left_while_it_is_sought_again_then_aborted() -> None:
    losses: list[list[Step]] = [[LOST] for _ in range(50)]
    async with serving([STARTED, delta(0, [5], "a"), LOST], *losses) as (script, client):
        reading = asyncio.create_task(read(client.generate("x", turn_id="t")))
        async with asyncio.timeout(5):
            while len(script.asked) < 3:  # noqa: ASYNC110 - seen by the script only
                await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert script.aborts == 1
