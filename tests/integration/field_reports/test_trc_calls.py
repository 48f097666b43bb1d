"""TRC: calls that do not end well still leave a span each, ended, in its place, with its cause."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import grpc
import pytest
from grpc import aio
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from protos.v1 import generate_pb2, generate_pb2_grpc, types_pb2
from tests.kit.otlp_receiver import OtlpReceiver, receiving
from tests.kit.runtime_rig import wait_until
from tests.kit.server_rig import CONFIG, ServerRig, running_server
from tests.kit.tcp_proxy import tcp_proxy

STEP_S = 0.005
LONG = 90
TRACE, CALLER = 0xFEED, 0xCA11
QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "50"}


@dataclass(frozen=True, slots=True)
class Traced:
    rig: ServerRig
    collector: OtlpReceiver

    def of(self, name: str) -> list[Span]:
        return [span for span in self.collector.spans if span.name == name]

    async def wait_for(self, name: str, count: int) -> list[Span]:
        """So many spans of a name, once they have come."""

        async def have_come() -> bool:
            return len(self.of(name)) >= count

        await wait_until(have_come)
        return self.of(name)


@asynccontextmanager
async def traced() -> AsyncIterator[Traced]:
    with receiving() as collector:
        config = replace(CONFIG, otlp_endpoint=collector.endpoint, trace_steps=0)
        async with running_server(config, environment=QUICK) as rig:
            rig.executor.faults.delay_s = lambda _plan: STEP_S
            yield Traced(rig, collector)


def request(turn_id: str | None = None, number: int = 1) -> generate_pb2.GenerateRequest:
    return generate_pb2.GenerateRequest(
        turn_id=turn_id,
        tokens=types_pb2.TokenInput(token_ids=[number, 1, 2]),
        sampling=types_pb2.SamplingParams(ignore_eos=True, max_tokens=LONG),
    )


def facts(pairs: list[KeyValue]) -> dict[str, object]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value") for pair in pairs}


def of_span(span: Span) -> dict[str, object]:
    return facts(list(span.attributes))


async def read_some(call: "aio.UnaryStreamCall[generate_pb2.GenerateRequest, generate_pb2.GenerateResponse]") -> None:
    """The beginning, and three ids at least."""
    seen = 0
    while seen < 3:
        message = await call.read()
        assert isinstance(message, generate_pb2.GenerateResponse)
        seen += len(message.delta.token_ids)


@asynccontextmanager
async def stub_for(target: str) -> AsyncIterator["generate_pb2_grpc.GenerateAsyncStub"]:
    async with aio.insecure_channel(target) as channel:
        stub: generate_pb2_grpc.GenerateAsyncStub = generate_pb2_grpc.GenerateStub(channel)
        yield stub


async def test_streams_when_50_are_cancelled_midway_then_no_context_is_mixed_up_and_each_span_has_its_parent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """TRC-05 (langfuse/langfuse#13590)."""
    async with traced() as it, stub_for(it.rig.target) as stub:
        calls = [stub.Generate(request(number=number)) for number in range(50)]
        for call in calls:
            await call.read()
        for call in calls:
            call.cancel()
        turns = await it.wait_for("turn", 50)
        spans = await it.wait_for("text_completion shadow", 50)
        assert {turn.parent_span_id for turn in turns} == {span.span_id for span in spans}
        by_id = {span.span_id: span for span in spans}
        assert all(by_id[turn.parent_span_id].trace_id == turn.trace_id for turn in turns)
        assert {str(of_span(span)["error.type"]) for span in spans} == {"CANCELLED"}
    assert "different Context" not in caplog.text
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


async def test_streams_when_they_end_in_four_bad_ways_then_four_ended_spans_each_with_its_cause() -> None:
    """TRC-07 (openzipkin/brave#1340): the client cancels, its connection breaks, the server aborts, time is up."""
    async with traced() as it, stub_for(it.rig.target) as stub, tcp_proxy(it.rig.target) as (proxy, broken):
        async with stub_for(broken) as far:
            cancelled, lost = stub.Generate(request(number=1)), far.Generate(request(number=2))
            aborted, late = stub.Generate(request("aborted", 3)), stub.Generate(request(number=4), timeout=0.3)
            for call in (cancelled, lost, aborted, late):
                await call.read()
            cancelled.cancel()
            proxy.cut()
            await stub.Abort(generate_pb2.AbortRequest(turn_id="aborted"))
            turns = await it.wait_for("turn", 4)
        causes = sorted(span.status.message.partition(":")[0] for span in turns)
        assert causes == ["client", "deadline", "disconnect", "disconnect"]
        assert {span.status.code for span in turns} == {Status.STATUS_CODE_ERROR}
        spans = await it.wait_for("text_completion shadow", 4)
        codes = sorted(str(of_span(span)["error.type"]) for span in spans)
        assert codes == ["ABORTED", "CANCELLED", "CANCELLED", "DEADLINE_EXCEEDED"]
        assert {span.status.code for span in spans} == {Status.STATUS_CODE_ERROR}


async def test_stream_when_cancelled_at_its_third_token_then_its_span_says_abort_and_how_far_it_came() -> None:
    """TRC-09 (vllm-project/vllm#32162)."""
    async with traced() as it, stub_for(it.rig.target) as stub:
        call = stub.Generate(request())
        await read_some(call)
        call.cancel()
        (turn,) = await it.wait_for("turn", 1)
        told = of_span(turn)
        reasons = [each.value.array_value for each in turn.attributes if each.key == "gen_ai.response.finish_reasons"]
        assert [value.string_value for value in reasons[0].values] == ["abort"]
        generated = told["gen_ai.usage.output_tokens"]
        assert isinstance(generated, int)
        assert 3 <= generated < LONG
        assert told["gen_ai.usage.input_tokens"] == 3
        assert told["tenure.turn.outcome"] == "disconnect"


async def test_unary_call_when_its_task_is_cancelled_then_the_task_hears_it_and_so_does_the_server() -> None:
    """TRC-13 (open-telemetry/opentelemetry-python-contrib#3271): with a span of the caller's own around it."""
    caller = NonRecordingSpan(SpanContext(TRACE, CALLER, is_remote=False, trace_flags=TraceFlags(1)))
    async with traced() as it:
        session = it.rig.client.session("s")
        await session.open()
        turn = session.turn(token_ids=[1, 2, 3], max_tokens=LONG, ignore_eos=True)
        pieces = aiter(turn)  # held: a turn that nobody reads any more is left
        await anext(pieces)

        async def close() -> None:
            with use_span(caller):
                await session.close(drain=True)

        closing = asyncio.create_task(close())
        await asyncio.sleep(10 * STEP_S)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        (span,) = await it.wait_for("Close", 1)
        assert int.from_bytes(span.trace_id, "big") == TRACE
        assert int.from_bytes(span.parent_span_id, "big") == CALLER
        told = of_span(span)
        assert (told["error.type"], told["rpc.grpc.status_code"]) == ("CANCELLED", grpc.StatusCode.CANCELLED.value[0])
        await turn.leave()
