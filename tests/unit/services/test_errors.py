"""The error table: complete, and nothing is lost between the engine's reason and the client's."""

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc import aio

from engine.core.commands import AbortReason
from engine.core.errors import Refusal, RefusalReason
from engine.runtime.handle import StreamReason, StreamRefusal
from services.client import TenureError
from services.client.errors import to_error
from services.errors import (
    ABORTS,
    DETAILS_KEY,
    REFUSALS,
    STREAMS,
    Problem,
    from_abort,
    from_refusal,
    from_stream_refusal,
    invalid_field,
    to_status,
)
from services.limits import LIMITS

RETRYABLE = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)


def tell_client(problem: Problem) -> TenureError:
    """What our client makes of a problem, after its way over the wire."""
    status = to_status(problem)
    metadata = aio.Metadata((DETAILS_KEY, status.SerializeToString()))
    return to_error(aio.AioRpcError(problem.code, aio.Metadata(), metadata, details=status.message))


@pytest.mark.parametrize("reason", RefusalReason)
def test_from_refusal_when_any_reason_then_the_client_sees_it(reason: RefusalReason) -> None:
    refusal = Refusal(reason, "too much", field="max_tokens", value=9, limit=8)
    error = tell_client(from_refusal(refusal))
    assert (error.reason, error.code, error.field) == (reason.value, REFUSALS[reason].code, "sampling.max_tokens")
    assert error.metadata == {"value": "9", "limit": "8"}
    assert error.message == "too much"


@pytest.mark.parametrize("reason", StreamReason)
def test_from_stream_refusal_when_any_reason_then_the_client_sees_it(reason: StreamReason) -> None:
    error = tell_client(from_stream_refusal(StreamRefusal(reason, "no", field="turn_id", value="t", limit=8)))
    assert (error.reason, error.code, error.field) == (reason.value, STREAMS[reason].code, "turn_id")
    assert error.metadata == {"value": "t", "limit": "8"}


@pytest.mark.parametrize("reason", AbortReason)
def test_from_abort_when_any_reason_then_the_client_sees_it(reason: AbortReason) -> None:
    error = tell_client(from_abort(reason, "why"))
    assert (error.reason, error.code) == (ABORTS[reason].reason, ABORTS[reason].code)
    assert error.message.endswith(": why")


ROWS = [(row.code, row.retry_after_s) for row in (*REFUSALS.values(), *STREAMS.values())]
ROWS += [(row.code, row.retry_after_s) for row in ABORTS.values()]


@pytest.mark.parametrize(("code", "retry_after_s"), ROWS)
def test_tables_when_code_is_retryable_then_and_only_then_a_delay_is_told(
    code: grpc.StatusCode, retry_after_s: float | None
) -> None:
    assert (code in RETRYABLE) == (retry_after_s is not None)


@pytest.mark.parametrize(
    ("reason", "code", "told"),
    [
        (AbortReason.CLIENT, grpc.StatusCode.ABORTED, "TURN_ABORTED"),
        (AbortReason.SESSION_CLOSED, grpc.StatusCode.ABORTED, "SESSION_CLOSED"),
        (AbortReason.DEADLINE, grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE"),
    ],
)
def test_from_abort_when_promised_in_the_protocol_then_so(
    reason: AbortReason, code: grpc.StatusCode, told: str
) -> None:
    problem = from_abort(reason, "")
    assert (problem.code, problem.reason) == (code, told)


def test_to_status_when_delay_is_fractional_then_the_client_gets_it() -> None:
    problem = Problem(grpc.StatusCode.UNAVAILABLE, "X", "later", retry_after_s=1.25)
    assert tell_client(problem).retry_after_s == 1.25


def test_to_status_when_texts_are_huge_then_cut_well_under_the_metadata_limit() -> None:
    huge = "é" * 100_000
    problem = invalid_field(huge, huge, value=huge, limit=huge).problem
    status = to_status(problem)
    assert len(status.SerializeToString()) < LIMITS.metadata_bytes_max / 2
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.metadata["value"].endswith("…")
