"""The whole server over the shadow executor: unreadable requests, callers that leave, calls by the hundred."""

import asyncio
import logging
import time
from collections import Counter

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from engine.core.ids import SessionId
from engine.runtime.engine import LocalEngine
from engine.runtime.handle import Caller
from protos.v1 import admin_pb2, admin_pb2_grpc, session_pb2, session_pb2_grpc
from services.client.errors import to_error
from services.interceptors import GRPC_LOGGER, is_worth_logging
from services.limits import LIMITS
from tests.kit.runtime_rig import wait_until
from tests.kit.server_rig import running_server

UNREADABLE = b"\x0a\x01\xff"
"""A text of one byte that is no UTF-8, in field 1."""


def as_it_is(message: bytes) -> bytes:
    return message


@pytest.mark.parametrize(
    "method",
    [
        "/tenure.v1.Session/Get",
        "/tenure.v1.Session/Open",
        "/tenure.v1.Generate/Abort",
        "/grpc.health.v1.Health/Check",
    ],
)
async def test_request_when_it_can_not_be_read_then_invalid_argument_and_no_entry_in_the_log(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_server() as rig, aio.insecure_channel(rig.target) as channel:
        with pytest.raises(aio.AioRpcError) as caught:
            await channel.unary_unary(method, as_it_is, as_it_is)(UNREADABLE)
        error = to_error(caught.value)
        assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID")
        assert method in error.message
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    "method", ["/tenure.v1.Generate/Generate", "/tenure.v1.Generate/Resume", "/grpc.health.v1.Health/Watch"]
)
async def test_request_of_a_stream_when_it_can_not_be_read_then_invalid_argument_and_no_entry_in_the_log(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_server() as rig, aio.insecure_channel(rig.target) as channel:
        with pytest.raises(aio.AioRpcError) as caught:
            await channel.unary_stream(method, as_it_is, as_it_is)(UNREADABLE).read()
        error = to_error(caught.value)
        assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_request_of_an_exchange_when_it_can_not_be_read_then_invalid_argument_after_the_answers_before_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
    async with running_server() as rig, aio.insecure_channel(rig.target) as channel:
        ask = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", as_it_is, as_it_is
        )
        answers = aiter(ask(iter([good, UNREADABLE])))
        assert b"tenure.v1.Session" in await anext(answers)
        with pytest.raises(aio.AioRpcError) as caught:
            await anext(answers)
        assert to_error(caught.value).reason == "FIELD_INVALID"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_health_when_watched_then_the_state_comes_and_an_unknown_name_is_not_found() -> None:
    async with running_server() as rig, aio.insecure_channel(rig.target) as channel:
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch", as_it_is, health_pb2.HealthCheckResponse.FromString
        )
        call = watch(health_pb2.HealthCheckRequest(service="readiness").SerializeToString())
        answer = await call.read()
        assert isinstance(answer, health_pb2.HealthCheckResponse)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        call.cancel()
        with pytest.raises(aio.AioRpcError) as caught:
            await channel.unary_unary("/grpc.health.v1.Health/Check", as_it_is, as_it_is)(
                health_pb2.HealthCheckRequest(service="nothing").SerializeToString()
            )
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_calls_when_more_at_once_than_a_connection_may_have_then_none_is_refused() -> None:
    async with running_server() as rig, aio.insecure_channel(rig.target) as channel:
        admin = admin_pb2_grpc.AdminStub(channel)
        answers: Counter[str] = Counter()

        async def ask() -> None:
            try:
                await admin.PoolStats(admin_pb2.PoolStatsRequest())
                answers["OK"] += 1
            except aio.AioRpcError as error:
                answers[f"{error.code()}: {error.details()}"] += 1

        for _ in range(3):
            await asyncio.gather(*(ask() for _ in range(3 * LIMITS.streams_max)))
    assert answers == {"OK": 9 * LIMITS.streams_max}


@pytest.mark.parametrize("leaves_by", ["deadline", "cancel"])
async def test_open_when_the_caller_leaves_before_it_is_told_the_name_then_the_session_is_closed(
    leaves_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[SessionId] = []
    open_session = LocalEngine.open_session

    async def open_and_lose_the_caller(
        engine: LocalEngine,
        session_id: SessionId,
        *,
        streaming: bool,
        idle_timeout_s: float | None,
        priority: int,
        caller: Caller,
    ) -> None:
        await open_session(engine, session_id, streaming=streaming, idle_timeout_s=idle_timeout_s, caller=caller)
        opened.append(session_id)
        if leaves_by == "cancel":
            call.cancel()
        block_loop(0.3)  # the server meets the open session and the end of the call at once

    async with running_server() as rig, aio.insecure_channel(rig.target) as channel:
        monkeypatch.setattr(LocalEngine, "open_session", open_and_lose_the_caller)
        await channel.channel_ready()
        call = session_pb2_grpc.SessionStub(channel).Open(
            session_pb2.OpenRequest(), timeout=0.2 if leaves_by == "deadline" else 10
        )
        with pytest.raises((aio.AioRpcError, asyncio.CancelledError)):
            await call

        async def is_closed() -> bool:
            return (await rig.client.pools()).sessions_open == 0

        await wait_until(is_closed)
    assert len(opened) == 1


def block_loop(duration_s: float) -> None:
    time.sleep(duration_s)


def test_log_filter_when_an_answer_could_not_be_sent_then_left_out_and_other_entries_are_not() -> None:
    def record(error: Exception | None) -> logging.LogRecord:
        facts = None if error is None else (type(error), error, None)
        return logging.LogRecord(GRPC_LOGGER, logging.ERROR, __file__, 1, "raised in core", (), facts)

    assert not is_worth_logging(record(aio.InternalError("the client is gone")))
    assert is_worth_logging(record(ValueError("x")))
    assert is_worth_logging(record(None))
