"""A turn's stream as the soak reads it: what is booked, and what breaks the interface's promises."""

from collections.abc import Awaitable, Sequence

import grpc
import pytest
from grpc import aio

from protos.v1 import generate_pb2, types_pb2
from services.errors import DETAILS_KEY, Problem, to_status
from tests.soak.ledger import Ledger
from tests.soak.stream import TurnStream

Message = generate_pb2.GenerateResponse
STARTED = Message(started=generate_pb2.TurnStarted(turn_id="t", attempt=1))


def delta(start: int, *ids: int) -> Message:
    return Message(delta=generate_pb2.TokenDelta(token_ids=ids, start=start, attempt=1))


def finished(reason: types_pb2.FinishReason.ValueType, num_tokens: int) -> Message:
    usage = types_pb2.Usage(completion_tokens=num_tokens)
    return Message(finished=generate_pb2.TurnFinished(finish_reason=reason, usage=usage))


def told(code: grpc.StatusCode, reason: str) -> aio.AioRpcError:
    """As the server tells it, with an incident."""
    status = to_status(Problem(code, reason, "planted", metadata={"incident_id": "i1"}))
    return aio.AioRpcError(code, aio.Metadata(), aio.Metadata((DETAILS_KEY, status.SerializeToString())))


def made_up(code: grpc.StatusCode) -> aio.AioRpcError:
    return aio.AioRpcError(code, aio.Metadata(), aio.Metadata())


class FakeCall:
    """Answers what it was given, then the end."""

    def __init__(self, answers: Sequence[Message | aio.AioRpcError]) -> None:
        self._answers = list(answers)

    def read(self) -> Awaitable[object]:
        return self._read()

    async def _read(self) -> object:
        if not self._answers:
            return aio.EOF
        answer = self._answers.pop(0)
        if isinstance(answer, aio.AioRpcError):
            raise answer
        return answer

    def cancel(self) -> bool:
        self._answers = []
        return True


STOP, ABORT = types_pb2.FINISH_REASON_STOP, types_pb2.FINISH_REASON_ABORT
FAILED = told(grpc.StatusCode.INTERNAL, "FORWARD_FAILED")


async def read(*answers: Message | aio.AioRpcError) -> tuple[TurnStream, Ledger]:
    ledger = Ledger()
    stream = TurnStream(FakeCall(answers), ledger)
    await stream.read_all()
    return stream, ledger


async def test_stream_when_complete_then_one_turn_and_one_ending() -> None:
    stream, ledger = await read(STARTED, delta(0, 5, 6), delta(2, 7), finished(STOP, 3))
    assert (stream.ids, stream.error, list(ledger.turns.values())) == ([5, 6, 7], None, ["stop"])
    assert ledger.violations == []


async def test_stream_when_aborted_then_the_status_says_why_and_its_incident_is_kept() -> None:
    _, ledger = await read(STARTED, delta(0, 5), finished(ABORT, 1), FAILED)
    assert (list(ledger.turns.values()), ledger.incident_ids, ledger.violations) == (["forward_failed"], {"i1"}, [])


async def test_call_when_refused_then_no_turn() -> None:
    stream, ledger = await read(told(grpc.StatusCode.NOT_FOUND, "SESSION_UNKNOWN"))
    assert (stream.key, ledger.turns, ledger.unsure, ledger.violations) == (None, {}, 0, [])


async def test_call_when_its_time_was_over_before_the_start_then_nobody_knows() -> None:
    _, ledger = await read(made_up(grpc.StatusCode.DEADLINE_EXCEEDED))
    assert (ledger.turns, ledger.unsure) == ({}, 1)


async def test_stream_when_it_breaks_then_the_ending_is_not_heard_and_nothing_was_promised() -> None:
    _, ledger = await read(STARTED, delta(0, 5), made_up(grpc.StatusCode.UNAVAILABLE))
    assert (ledger.num_unheard, ledger.violations) == (1, [])


@pytest.mark.parametrize(
    "answers",
    [
        [delta(0, 5)],
        [STARTED, STARTED, finished(STOP, 0)],
        [STARTED, delta(1, 5), finished(STOP, 1)],
        [STARTED, delta(0, 5), finished(STOP, 2)],
        [STARTED, finished(STOP, 0), delta(0, 5)],
        [STARTED, finished(STOP, 0), finished(STOP, 0)],
        [STARTED, delta(0, 5)],
        [STARTED, FAILED],
    ],
    ids=["no start", "two starts", "a gap", "a wrong count", "behind the end", "two ends", "no end", "a status alone"],
)
async def test_stream_when_it_breaks_a_promise_then_a_violation(answers: list[Message | aio.AioRpcError]) -> None:
    _, ledger = await read(*answers)
    assert ledger.violations
