"""Spans on their way to a collector that is well, slow, silent, failing, or not there: over real gRPC, on loopback."""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import grpc
import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from telemetry.export.resource import build_resource
from telemetry.export.span_exporter import SpanExporter
from telemetry.names import Attr
from telemetry.settings import TelemetrySettings
from telemetry.spans.record import Attributes, FinishedSpan, SpanContext, SpanKind, SpanStatus, Value
from tests.kit.finished_spans import make_full_span, make_span
from tests.kit.otlp_receiver import OtlpReceiver, receiving
from tests.kit.runtime_rig import running
from tests.kit.span_per_event import SpanPerEvent

WAIT_S = 30.0
SLACK_S = 0.6
"""What this machine may be late by; an exporter may take 0.2 s longer than it is given."""
HAS_IS_REMOTE, IS_REMOTE = 0x100, 0x200
"""Flags of OTLP."""


@contextmanager
def exporting(endpoint: str, variables: Mapping[str, str] | None = None) -> Iterator[SpanExporter]:
    exporter = SpanExporter(TelemetrySettings(otlp_endpoint=endpoint, environment=variables or {}), build_resource({}))
    try:
        yield exporter
    finally:
        exporter.close(0.0)


def quick(batch: int = 16, queue: int = 8192, timeout_s: float = 10.0) -> dict[str, str]:
    return {
        "OTEL_BSP_SCHEDULE_DELAY": "10",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": str(batch),
        "OTEL_BSP_MAX_QUEUE_SIZE": str(queue),
        "OTEL_EXPORTER_OTLP_TIMEOUT": str(timeout_s),
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def nobody() -> str:
    return f"http://127.0.0.1:{free_port()}"


def wait_for(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline_s, "it does not come to hold"
        time.sleep(0.005)


def different_spans(count: int) -> list[FinishedSpan]:
    """Roots and children, with and without each of what a span may have."""
    full, spans = make_full_span(), []
    for number in range(1, count + 1):
        context = SpanContext(f"{number // 10 + 1:032x}", f"{number:016x}", True, "vendor=opaque" if number % 3 else "")
        spans.append(
            replace(
                full,
                name=f"span {number}",
                context=context,
                parent_span_id="" if number % 10 == 0 else f"{number // 10 * 10 + 1:016x}",
                kind=SpanKind.SERVER if number % 10 == 0 else SpanKind.INTERNAL,
                attributes={**full.attributes, Attr.TURN_NUMBER: number},
                events=full.events if number % 2 else (),
                links=full.links if number % 5 == 0 else (),
                status=(SpanStatus.UNSET, SpanStatus.OK, SpanStatus.ERROR)[number % 3],
                status_message="why" if number % 3 == 2 else "",
            )
        )
    return spans


def on_the_wire(span: FinishedSpan) -> Span:
    """Written field by field from the protocol's definition, without the SDK."""
    is_below_remote = bool(span.parent_span_id) and span.kind is SpanKind.SERVER
    codes = {
        SpanStatus.UNSET: Status.STATUS_CODE_UNSET,
        SpanStatus.OK: Status.STATUS_CODE_OK,
        SpanStatus.ERROR: Status.STATUS_CODE_ERROR,
    }
    return Span(
        trace_id=bytes.fromhex(span.context.trace_id),
        span_id=bytes.fromhex(span.context.span_id),
        trace_state=span.context.tracestate,
        parent_span_id=bytes.fromhex(span.parent_span_id),
        flags=HAS_IS_REMOTE | (IS_REMOTE if is_below_remote else 0),
        name=span.name,
        kind=Span.SPAN_KIND_SERVER if span.kind is SpanKind.SERVER else Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        attributes=pairs(span.attributes),
        events=[
            Span.Event(time_unix_nano=event.time_ns, name=event.name, attributes=pairs(event.attributes))
            for event in span.events
        ],
        links=[
            Span.Link(
                trace_id=bytes.fromhex(link.context.trace_id),
                span_id=bytes.fromhex(link.context.span_id),
                attributes=pairs({Attr.LINK: link.relation.value}),
                flags=HAS_IS_REMOTE,
            )
            for link in span.links
        ],
        status=Status(code=codes[span.status], message=span.status_message),
    )


def pairs(attributes: Attributes) -> list[KeyValue]:
    return [KeyValue(key=str(key), value=any_value(value)) for key, value in attributes.items()]


def any_value(value: Value) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case tuple():
            return AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=each) for each in value]))
        case _:
            return AnyValue(string_value=value)


def test_spans_when_the_collector_is_well_then_all_arrive_byte_for_byte_in_order_and_none_is_lost_at_the_end() -> None:
    spans = different_spans(3000)
    with receiving() as receiver, exporting(receiver.endpoint) as exporter:
        for span in spans:
            exporter.take(span)
        exporter.close(WAIT_S)
        assert (exporter.exported, exporter.dropped) == (3000, 0)
        received = [span.SerializeToString(deterministic=True) for span in receiver.spans]
        assert received == [on_the_wire(span).SerializeToString(deterministic=True) for span in spans]


def test_spans_when_few_then_sent_after_the_delay_without_a_full_batch() -> None:
    with receiving() as receiver, exporting(receiver.endpoint, quick(batch=512)) as exporter:
        exporter.take(make_span())
        wait_for(lambda: len(receiver.spans) == 1)
        wait_for(lambda: exporter.exported == 1)


async def test_turns_when_the_collector_takes_calls_and_answers_none_then_all_complete_meanwhile() -> None:
    """The thread is inside its one call from before the first turn until after the last: whoever ends spans waits for
    nothing of it.
    """
    with receiving() as receiver, exporting(receiver.endpoint, quick(queue=64)) as exporter:
        receiver.behaviour.is_blocked = True
        exporter.take(make_span())
        await asyncio.to_thread(receiver.called.wait, WAIT_S)
        load = SpanPerEvent(exporter)
        async with running(sinks=(load,)) as rig:
            await rig.open("s")
            for number in range(20):
                answer = await rig.run(f"t{number}", [1, 2, 3], "s", max_tokens=4)
                assert len(answer.ids) == 4
        assert (receiver.num_calls, exporter.exported) == (1, 0), "it has not come back, and there was no other call"
        assert load.num_ended > 64 + 1
        assert exporter.dropped == load.num_ended - 64
        exporter.close(0.1)
        assert exporter.dropped == load.num_ended + 1


@pytest.mark.parametrize("kind", ["down", "blocked", "slow"])
def test_close_when_the_collector_is_unwell_then_within_its_time_and_every_span_counted(kind: str) -> None:
    with ExitStack() as stack:
        receiver = stack.enter_context(receiving())
        receiver.behaviour.is_blocked = kind == "blocked"
        receiver.behaviour.delay_s = 0.3
        endpoint = nobody() if kind == "down" else receiver.endpoint
        exporter = stack.enter_context(exporting(endpoint, quick()))
        for number in range(1, 201):
            exporter.take(make_span(number))
        begun_s = time.monotonic()
        exporter.close(1.0)
        assert time.monotonic() - begun_s < 1.0 + SLACK_S
        assert exporter.exported + exporter.dropped == 200
        assert exporter.dropped > 0
        assert (exporter.exported > 0) == (kind == "slow")
        assert_no_thread_left()


def assert_no_thread_left() -> None:
    wait_for(lambda: not [thread for thread in threading.enumerate() if thread.name == "tenure-spans"])


def test_spans_when_the_collector_is_slow_then_what_arrived_and_what_was_dropped_add_up() -> None:
    with receiving() as receiver, exporting(receiver.endpoint, quick(queue=32)) as exporter:
        receiver.behaviour.delay_s = 0.05
        for number in range(1, 401):
            exporter.take(make_span(number))
            if number % 40 == 0:
                time.sleep(0.02)
        receiver.behaviour.delay_s = 0.0
        exporter.close(WAIT_S)
        assert exporter.exported == len(receiver.spans)
        assert exporter.exported + exporter.dropped == 400
        assert exporter.dropped > 0
        ids = [span.span_id for span in receiver.spans]
        assert ids == sorted(set(ids)), "in order, and none twice"


def test_spans_when_the_collector_is_away_for_one_try_then_tried_again_and_none_lost() -> None:
    with receiving() as receiver, exporting(receiver.endpoint, quick()) as exporter:
        receiver.behaviour.refuse_next = 1
        for number in range(1, 33):
            exporter.take(make_span(number))
        exporter.close(WAIT_S)
        assert (exporter.exported, exporter.dropped, len(receiver.spans)) == (32, 0, 32)


def test_spans_when_the_collector_fails_half_way_then_the_lost_are_counted_and_told_and_the_rest_arrives(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with receiving() as receiver, exporting(receiver.endpoint, quick(timeout_s=0.5)) as exporter:
        send(exporter, receiver, 16)
        receiver.behaviour.refuse_next = 2
        for _ in range(2):  # the first back-off is longer than the time there is: one try each
            exporter_takes(exporter, 16)
            lost = exporter.dropped
            wait_for(lambda lost=lost: exporter.dropped == lost + 16)  # type: ignore[misc]  # bound at once
        send(exporter, receiver, 16)
        exporter.close(WAIT_S)
        assert (exporter.exported, exporter.dropped, len(receiver.spans)) == (32, 32, 32)
    told = [(each.levelname, each.getMessage()) for each in caplog.records]
    assert [level for level, _ in told] == ["ERROR", "INFO", "WARNING"], told
    assert receiver.endpoint in told[0][1]
    assert "UNAVAILABLE: as the test wants" in told[0][1]
    assert told[1][1].endswith("lost=32")


def exporter_takes(exporter: SpanExporter, count: int) -> None:
    for number in range(1, count + 1):
        exporter.take(make_span(number))


def send(exporter: SpanExporter, receiver: OtlpReceiver, count: int) -> None:
    before = exporter.exported
    exporter_takes(exporter, count)
    wait_for(lambda: exporter.exported == before + count)
    assert receiver.spans


def test_spans_when_the_collector_comes_up_later_then_what_still_waits_arrives(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    port = free_port()
    with exporting(f"http://127.0.0.1:{port}", quick(timeout_s=0.5)) as exporter:
        exporter_takes(exporter, 16)
        wait_for(lambda: exporter.dropped == 16)
        with receiving(port) as receiver:
            sent = 0
            while not exporter.exported:  # the channel takes some time until it tries to connect again
                assert sent < 100
                exporter_takes(exporter, 16)
                sent += 1
                wait_for(lambda sent=sent: exporter.exported + exporter.dropped == 16 + sent * 16)  # type: ignore[misc]  # bound at once
            exporter.close(WAIT_S)
            assert len(receiver.spans) == exporter.exported
    names = [record.getMessage().split()[0] for record in caplog.records]
    assert names == ["event=span_export_failed", "event=span_export_recovered", "event=span_export_ended"]


@pytest.mark.parametrize("code", [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED])
def test_spans_when_the_collector_will_never_take_them_then_no_second_try(code: grpc.StatusCode) -> None:
    with receiving() as receiver, exporting(receiver.endpoint, quick()) as exporter:
        receiver.behaviour.refuse_next, receiver.behaviour.refusal = 100, code
        exporter_takes(exporter, 16)
        exporter.close(WAIT_S)
        assert (exporter.dropped, receiver.num_calls) == (16, 1)


def test_outage_when_its_cause_changes_then_one_more_line(caplog: pytest.LogCaptureFixture) -> None:
    with receiving() as receiver, exporting(receiver.endpoint, quick()) as exporter:
        receiver.behaviour.refuse_next, receiver.behaviour.refusal = 3, grpc.StatusCode.INVALID_ARGUMENT
        exporter_takes(exporter, 48)
        wait_for(lambda: exporter.dropped == 48)
        receiver.behaviour.refuse_next, receiver.behaviour.refusal = 3, grpc.StatusCode.PERMISSION_DENIED
        exporter_takes(exporter, 48)
        wait_for(lambda: exporter.dropped == 96)
        exporter.close(WAIT_S)
    told = [record.getMessage() for record in caplog.records]
    assert [line.split()[0] for line in told] == ["event=span_export_failed"] * 2 + ["event=span_export_ended"]
    assert ["INVALID_ARGUMENT" in told[0], "PERMISSION_DENIED" in told[1]] == [True, True]
    assert told[2].endswith("lost=96: 96 spans were lost since the start")


class MetadataOnly(grpc.GenericRpcHandler):
    """Keeps what is sent along with a call, and knows no method."""

    def __init__(self) -> None:
        self.heard: dict[str, str | bytes] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> None:
        self.heard |= dict(handler_call_details.invocation_metadata)


def test_headers_when_given_by_a_variable_then_sent_and_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    handler, server = MetadataOnly(), grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    variables = {"OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer s3cret,x-tenant=a%20b"}
    with exporting(f"http://127.0.0.1:{port}", quick() | variables) as exporter:
        exporter_takes(exporter, 16)
        wait_for(lambda: exporter.dropped == 16)
    server.stop(0).wait()
    assert (handler.heard["authorization"], handler.heard["x-tenant"]) == ("Bearer s3cret", "a b")
    assert "UNIMPLEMENTED" in caplog.text
    assert "s3cret" not in caplog.text


def test_spans_when_compressed_then_they_arrive() -> None:
    with (
        receiving() as receiver,
        exporting(receiver.endpoint, quick() | {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}) as exporter,
    ):
        send(exporter, receiver, 16)
