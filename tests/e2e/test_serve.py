"""The server process: health while loading, signals, exit codes."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2

from services.client import FinishReason, Message, TenureError, connect
from tests.kit.server_process import LISTENING, READY, SMALL, ready_server, server_process

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def probe(target: str, service: str) -> int:
    """The status of one service, as a probe sees it."""
    async with aio.insecure_channel(target) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        answer = await check(health_pb2.HealthCheckRequest(service=service), wait_for_ready=True, timeout=5)
    return int(answer.status)


async def test_health_when_the_model_loads_then_alive_and_not_ready_and_calls_say_why() -> None:
    with server_process() as server:
        target = server.wait_for(LISTENING)
        assert await probe(target, "readiness") == NOT_SERVING
        assert await probe(target, "startup") == NOT_SERVING
        assert await probe(target, "") == NOT_SERVING
        assert await probe(target, "liveness") == SERVING
        async with connect(target) as client:
            with pytest.raises(TenureError) as caught:
                await client.pools()
        assert (caught.value.reason, caught.value.code) == ("SERVER_LOADING", grpc.StatusCode.UNAVAILABLE)
        assert caught.value.retry_after_s is not None
        server.wait_for(READY)
        for service in ("", "startup", "liveness", "readiness"):
            assert await probe(target, service) == SERVING
        with pytest.raises(aio.AioRpcError) as unknown:
            await probe(target, "tenure.v1.Nothing")
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


def test_signal_when_the_model_loads_then_ends_at_once() -> None:
    with server_process() as server:
        server.wait_for(LISTENING)
        code, took_s = server.end()
        assert code == 0, server.output()
        assert took_s < 5
        assert "Traceback" not in server.output()


def test_signal_when_the_weights_were_just_loaded_then_ends_in_order() -> None:
    """The threads that loaded them are still there: an interpreter taken down around them was aborted."""
    with server_process() as server:
        server.wait_for(re.compile("(weights loaded)"))
        code, took_s = server.end()
        assert code == 0, server.output()
        assert took_s < 5
        assert "stopped" in server.output()


@contextmanager
def unread_server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server whose output is read until it is ready and then never again, and its address."""
    command = (sys.executable, "-m", "services.cli.main", "serve", "--port", "0", *SMALL)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = (READY.search(line) for line in process.stdout)
            yield process, next(match[1] for match in found if match is not None)
        finally:
            process.kill()


async def test_log_when_nobody_reads_it_then_the_server_answers_and_ends_in_time() -> None:
    with unread_server() as (process, target):
        async with connect(target) as client:
            for _ in range(500):  # two entries each: more than a pipe holds
                async with client.session("s"):
                    pass
            assert (await client.pools()).balanced
        process.terminate()
        assert await asyncio.to_thread(process.wait, 5) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_when_a_turn_streams_then_it_is_told_and_the_server_ends_in_time(number: signal.Signals) -> None:
    """GRP-09 (grpc/grpc#40834): the process ends although a call is in progress."""
    with ready_server() as (server, target):
        async with connect(target) as client:
            turn = client.generate("Count to one thousand:", max_tokens=400, ignore_eos=True)
            stream = aiter(turn)
            await anext(stream)
            ending = asyncio.create_task(asyncio.to_thread(server.end, number))
            with pytest.raises(TenureError) as caught:
                async for _piece in stream:
                    pass
            assert (caught.value.reason, caught.value.code) == ("SHUTDOWN", grpc.StatusCode.UNAVAILABLE)
            assert turn.finish_reason is FinishReason.ABORT
            code, took_s = await ending
            assert code == 0, server.output()
            assert took_s < 5


def test_port_when_in_use_then_exit_code_2_and_the_flag_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with server_process("--port", str(taken.getsockname()[1])) as server:
            assert server.process.wait(30) == 2
            assert "tenure serve: --port: 127.0.0.1:" in server.output()
            assert "Traceback" not in server.output()


@pytest.mark.parametrize("flag", ["--metrics-port", "--kv-events-port", "--kv-events-replay-port"])
def test_port_of_telemetry_when_in_use_then_refused_before_the_model_is_loaded_and_told_once(flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = ("--kv-events-port", "0") if flag == "--kv-events-replay-port" else ()
        with server_process(flag, str(port), *other) as server:
            assert server.process.wait(30) == 2
            told = server.output()
    assert told.endswith(f"\ntenure serve: {flag}: 127.0.0.1:{port} can not be bound; is it in use?\n")
    assert told.startswith("configuration:")
    assert "listening on" not in told


def test_config_when_a_variable_of_opentelemetry_can_not_be_then_exit_code_2_and_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "zip")
    with server_process("--otlp-endpoint", "http://127.0.0.1:4317") as server:
        assert server.process.wait(30) == 2
        told = server.output()
    assert told.endswith("\ntenure serve: OTEL_EXPORTER_OTLP_COMPRESSION: must be one of none, gzip, not 'zip'\n")
    assert "Traceback" not in told
    assert "loaded" not in told


def test_pool_when_the_model_can_not_have_it_then_exit_code_2_and_the_flag_is_named() -> None:
    with server_process("--state-slots", "10") as server:
        assert server.process.wait(60) == 2
        assert "--state-slots: this model has no recurrent layers" in server.output()
        assert "Traceback" not in server.output()


def test_model_when_not_a_model_then_exit_code_1_and_says_why(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("model") / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(8))
    with server_process("--model", str(path)) as server:
        assert server.process.wait(30) == 1
        assert "broken.gguf" in server.output()
        assert "Traceback" not in server.output()


async def test_drain_when_it_is_given_time_then_the_turn_finishes_and_new_ones_are_refused() -> None:
    with ready_server("--drain-s", "60") as (server, target):
        async with connect(target) as client:
            turn = client.generate("Count to one hundred:", max_tokens=40, ignore_eos=True)
            stream = aiter(turn)
            await anext(stream)
            ending = asyncio.create_task(asyncio.to_thread(server.end, signal.SIGTERM, 60))
            await asyncio.sleep(0.1)
            with pytest.raises(TenureError) as caught:
                await client.generate("x").text()
            assert caught.value.reason == "SERVER_STOPPING"
            assert [piece async for piece in stream]
            assert turn.finish_reason is FinishReason.LENGTH
            assert (await ending)[0] == 0, server.output()


async def test_signal_when_sent_again_then_the_server_leaves_at_once() -> None:
    with server_process("--drain-s", "600") as server:
        async with connect(server.wait_for(READY), resume_timeout_s=0.2) as client:
            stream = aiter(client.generate("Count to one thousand:", max_tokens=400, ignore_eos=True))
            await anext(stream)
            server.process.send_signal(signal.SIGTERM)
            server.wait_for(re.compile("(SIGTERM): stopping"))
            code, took_s = await asyncio.to_thread(server.end)
            assert (code, took_s < 2) == (130, True), server.output()
            with pytest.raises(TenureError):
                await anext(stream)


async def test_streaming_sessions_when_off_then_refused_by_name_and_ordinary_ones_work() -> None:
    with ready_server("--no-streaming-sessions") as (_server, target):
        async with connect(target) as client:
            with pytest.raises(TenureError) as caught:
                await client.session().open()
            assert (caught.value.reason, caught.value.code) == (
                "STREAMING_DISABLED",
                grpc.StatusCode.FAILED_PRECONDITION,
            )
            async with client.session("tree", streaming=False) as session:
                root = session.turn("My name is Ada. Remember it, please.", max_tokens=6)
                first = await root.text()
                assert first
                child = session.turn("Who am I?", parent=root.turn_id, max_tokens=6)
                assert await child.text()
                assert child.usage is not None
                assert child.usage.tokens_from_tree >= 16, "the prefix cache is on"
                assert [info.session_id async for info in client.sessions()] == ["tree"]
            assert await client.generate(messages=[Message("user", "Hello!")], max_tokens=4).text()
            assert "streaming_sessions" not in (await client.model()).features
            stats = await client.pools()
            assert (stats.balanced, stats.sessions_open, stats.find("full").session_held) == (True, 0, 0)
