"""GetTrace: which spans, what of them, and what names no trace."""

from dataclasses import replace
from typing import cast

import grpc
import pytest

from engine.runtime.handle import EngineHandle
from protos.v1 import traces_pb2
from services.backend import Backend
from services.client.traces import Trace, decode_trace
from services.errors import CallError
from services.tokenization.tokenizer import Tokenizer
from services.trace_codec import BYTES_MAX, SPANS_MAX, find_trace
from telemetry.names import Attr, Relation
from telemetry.spans.record import FinishedSpan, Link
from telemetry.spans.ring import SpanRing
from tests.kit.finished_spans import START_NS, TRACE_ID, make_context, make_full_span, make_span, make_turn

OTHER_TRACE = "0af7651916cd43dd8448eb211c80319c"


def ask(request: traces_pb2.GetTraceRequest, *spans: FinishedSpan, spans_max: int = 4096) -> Trace:
    """As the client sees it."""
    ring = SpanRing(spans_max)
    for span in spans:
        ring.take(span)
    nothing = (cast(EngineHandle, None), cast(Tokenizer, None), None)
    answer = find_trace(Backend(*nothing, spans=ring), request).encode()
    return decode_trace(traces_pb2.GetTraceResponse.FromString(answer.SerializeToString()))


def refuse(request: traces_pb2.GetTraceRequest, *spans: FinishedSpan) -> tuple[grpc.StatusCode, str, str | None, str]:
    with pytest.raises(CallError) as caught:
        ask(request, *spans, spans_max=2)
    problem = caught.value.problem
    return problem.code, problem.reason, problem.field_name, problem.message


def test_find_trace_when_a_span_has_everything_then_the_client_sees_all_of_it() -> None:
    (span,) = ask(traces_pb2.GetTraceRequest(trace_id=TRACE_ID), make_full_span()).spans
    assert (span.trace_id, span.span_id, span.parent_span_id) == (TRACE_ID, "00f067aa0ba902b7", "b7ad6b7169203331")
    assert (span.name, span.kind) == ("Generate tiny", "server")
    assert span.start_s == pytest.approx(START_NS / 1e9, abs=1e-6)
    assert span.end_s - span.start_s == pytest.approx(0.012345678, abs=1e-6)
    assert (span.status, span.status_message) == ("error", "disconnect")
    assert span.attributes == {
        Attr.SESSION_ID: "Zoë's",
        Attr.INPUT_TOKENS: "812",
        Attr.QUEUE_S: "0.25",
        Attr.COMMITTED: "yes",
        Attr.FINISH_REASONS: "length, stop",
    }
    assert [(event.name, event.attributes) for event in span.events] == [
        ("first_token", {}),
        ("chunk", {Attr.TOKENS: "8"}),
    ]
    assert [(link.trace_id, link.span_id, link.relation) for link in span.links] == [
        (OTHER_TRACE, "00f067aa0ba902b8", "previous_turn"),
        (TRACE_ID, "0000000000000009", "previous_holder"),
    ]


def test_find_trace_when_a_turn_is_named_then_all_of_its_trace_and_nothing_of_another() -> None:
    spans = (make_span(3), make_turn(2, "t", "s"), make_turn(1, "t", "r", trace_id=OTHER_TRACE))
    found = ask(traces_pb2.GetTraceRequest(turn_id="t", session_id="s"), *spans)
    assert [span.name for span in found.spans] == ["turn", "step"]
    assert {span.trace_id for span in found.spans} == {TRACE_ID}


def test_find_trace_when_nothing_is_named_then_the_newest_turn_and_with_a_session_the_newest_of_that() -> None:
    spans = (make_turn(1, "t", "s"), make_turn(2, "u", "r", trace_id=OTHER_TRACE), make_span(3))
    (newest,) = ask(traces_pb2.GetTraceRequest(), *spans).spans
    assert newest.attributes[Attr.TURN_ID] == "u"
    of_session = ask(traces_pb2.GetTraceRequest(session_id="s"), *spans).spans
    assert of_session[0].attributes[Attr.TURN_ID] == "t"


def test_find_trace_when_no_turn_has_ended_then_not_found() -> None:
    code, reason, field_name, message = refuse(traces_pb2.GetTraceRequest(), make_span(1))
    assert (code, reason, field_name) == (grpc.StatusCode.NOT_FOUND, "TRACE_UNKNOWN", "turn_id")
    assert message == "turn_id: no turn has ended lately"


@pytest.mark.parametrize("given", [TRACE_ID[:8], TRACE_ID[:9].upper(), TRACE_ID.upper()])
def test_find_trace_when_only_one_trace_begins_so_then_it_is_meant_in_letters_of_any_size(given: str) -> None:
    found = ask(traces_pb2.GetTraceRequest(trace_id=given), make_span(1), make_span(2, OTHER_TRACE))
    assert [span.trace_id for span in found.spans] == [TRACE_ID]


def test_find_trace_when_several_traces_begin_so_then_refused_with_their_number_and_a_longer_one_is_not() -> None:
    near = f"{TRACE_ID[:10]}{'0' * 22}"
    spans = (make_span(1), make_span(2, near))
    code, reason, field_name, message = refuse(traces_pb2.GetTraceRequest(trace_id=TRACE_ID[:8]), *spans)
    assert (code, reason, field_name) == (grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID", "trace_id")
    assert message == "trace_id: 2 traces begin so: give more of its digits"
    assert len(ask(traces_pb2.GetTraceRequest(trace_id=near[:11]), *spans).spans) == 1


def test_find_trace_when_links_lead_to_what_is_kept_then_said_what_that_is() -> None:
    before = make_turn(1, "t1", "s", trace_id=OTHER_TRACE)
    park = replace(make_span(2, OTHER_TRACE, name="kv.park"), parent_span_id=before.context.span_id)
    opened, gone = make_span(3, OTHER_TRACE, name="Open"), make_context(99, OTHER_TRACE)
    links = (
        Link(before.context, Relation.PREVIOUS_TURN),
        Link(park.context, Relation.PREVIOUS_HOLDER),
        Link(opened.context, Relation.OPENED),
        Link(gone, Relation.RESUMED),
    )
    turn = replace(make_turn(4, "t2", "s"), links=links)
    (span,) = ask(traces_pb2.GetTraceRequest(turn_id="t2"), before, park, opened, turn).spans
    assert [link.leads_to for link in span.links] == ["turn t1", "kv.park of t1", "Open", ""]


def test_find_trace_when_spans_were_pushed_out_then_told_how_many() -> None:
    spans = [make_span(number) for number in range(1, 6)]
    found = ask(traces_pb2.GetTraceRequest(trace_id=TRACE_ID), *spans, spans_max=3)
    assert (len(found.spans), found.spans_dropped) == (3, 2)


def test_find_trace_when_it_has_more_than_an_answer_holds_then_the_newest_and_how_many_are_missing() -> None:
    spans = [make_span(number) for number in range(1, SPANS_MAX + 8)]
    found = ask(traces_pb2.GetTraceRequest(trace_id=TRACE_ID), *spans)
    assert (len(found.spans), found.spans_dropped) == (SPANS_MAX, 7)
    assert int(found.spans[-1].span_id, 16) == SPANS_MAX + 7


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (traces_pb2.GetTraceRequest(trace_id=TRACE_ID[:7]), "trace_id"),
        (traces_pb2.GetTraceRequest(trace_id=f"{TRACE_ID}0"), "trace_id"),
        (traces_pb2.GetTraceRequest(trace_id="4bf92f3g"), "trace_id"),
        (traces_pb2.GetTraceRequest(trace_id="4bf92f3٣"), "trace_id"),
        (traces_pb2.GetTraceRequest(trace_id=TRACE_ID, turn_id="t"), "trace_id"),
        (traces_pb2.GetTraceRequest(trace_id=TRACE_ID, session_id="s"), "trace_id"),
    ],
)
def test_find_trace_when_it_names_no_trace_or_two_then_the_field_is_refused(
    request_: traces_pb2.GetTraceRequest, field: str
) -> None:
    code, _, field_name, _ = refuse(request_)
    assert (code, field_name) == (grpc.StatusCode.INVALID_ARGUMENT, field)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (traces_pb2.GetTraceRequest(turn_id="u"), "turn_id"),
        (traces_pb2.GetTraceRequest(turn_id="t", session_id="r"), "turn_id"),
        (traces_pb2.GetTraceRequest(session_id="r"), "session_id"),
        (traces_pb2.GetTraceRequest(trace_id=OTHER_TRACE), "trace_id"),
        (traces_pb2.GetTraceRequest(trace_id=OTHER_TRACE[:8]), "trace_id"),
    ],
)
def test_find_trace_when_nothing_is_kept_then_not_found_and_how_much_was_pushed_out(
    request_: traces_pb2.GetTraceRequest, field: str
) -> None:
    code, reason, field_name, message = refuse(request_, make_span(1), make_turn(2, "t", "s"), make_span(3))
    assert (code, reason, field_name) == (grpc.StatusCode.NOT_FOUND, "TRACE_UNKNOWN", field)
    assert message.endswith("; 1 older spans had to make room for newer ones")


def test_find_trace_when_its_spans_are_large_then_the_newest_that_fit_into_a_message_and_the_others_counted() -> None:
    spans = [replace(make_span(number), status_message="x" * 100_000) for number in range(1, 61)]
    trace = ask(traces_pb2.GetTraceRequest(trace_id=TRACE_ID), *spans)
    assert BYTES_MAX // 100_000 - 1 <= len(trace.spans) <= BYTES_MAX // 100_000
    assert trace.spans[-1].span_id == make_context(60).span_id
    assert trace.spans_dropped == 60 - len(trace.spans)
