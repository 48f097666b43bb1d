"""TRC: spans that cost nobody anything when their collector is away, and losses that are told."""

import asyncio
import logging
import socket
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import grpc
import pytest

from telemetry.export.resource import build_resource
from telemetry.export.span_exporter import SpanExporter
from telemetry.settings import TelemetrySettings
from tests.kit.finished_spans import make_span
from tests.kit.otlp_receiver import receiving, receiving_nothing
from tests.kit.runtime_rig import RuntimeRig, running, wait_until
from tests.kit.span_per_event import SpanPerEvent

FLUSH_S = 1.0
SLACK_S = 0.6
"""What this machine may be late by."""
LOGGER = "tenure.telemetry"


@contextmanager
def exporting(endpoint: str, variables: Mapping[str, str] | None = None) -> Iterator[SpanExporter]:
    given = {"OTEL_BSP_SCHEDULE_DELAY": "10", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "16"} | dict(variables or {})
    exporter = SpanExporter(TelemetrySettings(otlp_endpoint=endpoint, environment=given), build_resource({}))
    try:
        yield exporter
    finally:
        exporter.close(0.0)


def closed_port() -> str:
    """An endpoint where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


async def serve(rig: RuntimeRig, num_turns: int) -> None:
    await rig.open("s")
    for number in range(num_turns):
        answer = await rig.run(f"t{number}", [1, 2, 3], "s", max_tokens=4)
        assert len(answer.ids) == 4


def told(caplog: pytest.LogCaptureFixture, least: int = logging.INFO) -> list[str]:
    """By the whole process: nothing else may be in the log either."""
    return [each.getMessage() for each in caplog.records if each.levelno >= least and each.name != "asyncio"]


async def test_turns_when_nobody_listens_at_the_collector_then_none_waits_and_one_line_says_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """TRC-01 (open-telemetry/opentelemetry-python#2024): 20 requests, a span for every event, hundreds of them."""
    caplog.set_level(logging.INFO)
    with exporting(closed_port(), {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.2"}) as exporter:
        load = SpanPerEvent(exporter)
        async with running(sinks=(load,)) as rig:
            await serve(rig, 20)
            await wait_until(lambda: lost_some(exporter))
        assert load.num_ended > 400
        await asyncio.to_thread(exporter.close, FLUSH_S)
        assert (exporter.exported, exporter.dropped) == (0, load.num_ended)
    lines = told(caplog, logging.WARNING)
    assert [line.split()[0] for line in lines] == ["event=span_export_failed", "event=span_export_ended"]


async def lost_some(exporter: SpanExporter) -> bool:
    return exporter.dropped > 0


async def test_turns_when_the_collector_takes_a_call_and_never_answers_then_they_go_on_during_it() -> None:
    """TRC-01 (open-telemetry/opentelemetry-python#2024): no clock is asked; the one call outlasts all the turns."""
    with receiving() as receiver, exporting(receiver.endpoint) as exporter:
        receiver.behaviour.is_blocked = True
        exporter.take(make_span())
        assert await asyncio.to_thread(receiver.called.wait, 10)
        async with running(sinks=(SpanPerEvent(exporter),)) as rig:
            await serve(rig, 20)
        assert (receiver.num_calls, exporter.exported, exporter.dropped) == (1, 0, 0)


def test_exporters_when_their_collectors_are_silent_then_closed_side_by_side_under_one_deadline() -> None:
    """TRC-03 (Wave-RF/WaveHouse#288): three that would each use up all the time, as traces, metrics and logs did."""
    with ExitStack() as stack:
        receivers = [stack.enter_context(receiving()) for _ in range(3)]
        exporters = [stack.enter_context(exporting(receiver.endpoint)) for receiver in receivers]
        for receiver, exporter in zip(receivers, exporters, strict=True):
            receiver.behaviour.is_blocked = True
            for number in range(1, 41):
                exporter.take(make_span(number))
            assert receiver.called.wait(10)
        threads = stack.enter_context(ThreadPoolExecutor(3))
        begun_s = time.monotonic()
        list(threads.map(lambda exporter: exporter.close(FLUSH_S), exporters))
        assert time.monotonic() - begun_s < FLUSH_S + SLACK_S
        assert [exporter.dropped for exporter in exporters] == [40] * 3


async def test_endpoint_when_it_receives_then_every_span_of_a_request_arrives(caplog: pytest.LogCaptureFixture) -> None:
    """TRC-11 (vllm-project/vllm#56696): counted at both ends."""
    with receiving() as receiver, exporting(receiver.endpoint) as exporter:
        load = SpanPerEvent(exporter)
        async with running(sinks=(load,)) as rig:
            await serve(rig, 1)
        await asyncio.to_thread(exporter.close, 10.0)
        assert len(receiver.spans) == exporter.exported == load.num_ended > 10
        assert exporter.dropped == 0
    assert told(caplog, logging.WARNING) == []


@pytest.mark.parametrize("kind", ["nobody", "another protocol", "another service"])
def test_endpoint_when_the_first_export_fails_then_one_clear_error_and_the_count_moves(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """TRC-11 (vllm-project/vllm#56696): nobody there, HTTP/1.1 there, and gRPC without a place for spans."""
    caplog.set_level(logging.INFO)
    with ExitStack() as stack:
        if kind == "another service":
            receiver = stack.enter_context(receiving())
            receiver.behaviour.refuse_next, receiver.behaviour.refusal = 9, grpc.StatusCode.UNIMPLEMENTED
            endpoint = receiver.endpoint
        else:
            endpoint = closed_port() if kind == "nobody" else stack.enter_context(receiving_nothing())
        exporter = stack.enter_context(exporting(endpoint, {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.5"}))
        for number in range(1, 49):
            exporter.take(make_span(number))
        exporter.close(10.0)
        assert (exporter.exported, exporter.dropped) == (0, 48)
    errors = told(caplog, logging.ERROR)
    assert len(errors) == 1, "three batches were lost"
    causes = {"nobody": "refused", "another protocol": "HTTP/2", "another service": "UNIMPLEMENTED"}
    assert endpoint in errors[0]
    assert causes[kind] in errors[0]


def test_spans_when_one_export_is_refused_and_the_flush_at_the_end_works_then_the_loss_is_counted_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """TRC-15 (freeunitorg/freeunit#218): the collector refuses one batch, then takes all that the end sends."""
    caplog.set_level(logging.INFO)
    with receiving() as receiver, exporting(receiver.endpoint, {"OTEL_BSP_SCHEDULE_DELAY": "3600000"}) as exporter:
        receiver.behaviour.refuse_next, receiver.behaviour.refusal = 1, grpc.StatusCode.INVALID_ARGUMENT
        for number in range(1, 41):
            exporter.take(make_span(number))
        exporter.close(10.0)
        assert (exporter.exported, exporter.dropped) == (24, 16)
        assert len(receiver.spans) == 24
    lines = told(caplog)
    assert [line.split()[0] for line in lines] == [
        "event=span_export_failed",
        "event=span_export_recovered",
        "event=span_export_ended",
    ]
    assert lines[1].endswith("lost=16")
    assert "lost=16" in lines[2]


def test_spans_when_the_flush_at_the_end_itself_fails_then_the_loss_is_counted_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """TRC-15 (freeunitorg/freeunit#218): nothing was sent before, and the one export of the flush is refused."""
    with receiving() as receiver, exporting(receiver.endpoint, {"OTEL_BSP_SCHEDULE_DELAY": "3600000"}) as exporter:
        receiver.behaviour.refuse_next, receiver.behaviour.refusal = 1, grpc.StatusCode.INVALID_ARGUMENT
        for number in range(1, 6):
            exporter.take(make_span(number))
        assert receiver.num_calls == 0
        exporter.close(10.0)
        assert (exporter.exported, exporter.dropped) == (0, 5)
    assert "lost=5" in told(caplog)[-1]
