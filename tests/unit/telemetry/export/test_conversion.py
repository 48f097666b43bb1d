"""Our spans as OpenTelemetry's, held against what goes over the wire."""

from dataclasses import replace

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, Status

from telemetry.export.conversion import TEXT_CHARS_MAX, SpanConverter
from telemetry.export.resource import build_resource
from telemetry.names import Attr
from telemetry.spans.record import FinishedSpan, SpanContext, SpanEvent, SpanKind, SpanStatus
from tests.kit.finished_spans import START_NS, TRACE_ID, make_full_span, make_span

HAS_IS_REMOTE, IS_REMOTE = 0x100, 0x200
"""Flags of OTLP."""


def encode(*spans: FinishedSpan) -> ResourceSpans:
    converter = SpanConverter(build_resource({}, "one"))
    request = encode_spans([converter.convert(span) for span in spans])
    assert len(request.resource_spans) == 1, "one resource for all"
    return request.resource_spans[0]


def encode_one(span: FinishedSpan) -> Span:
    return encode(span).scope_spans[0].spans[0]


def test_convert_when_a_span_has_everything_then_all_of_it_is_on_the_wire() -> None:
    span = encode_one(make_full_span())
    assert (span.trace_id.hex(), span.span_id.hex()) == (TRACE_ID, "00f067aa0ba902b7")
    assert (span.parent_span_id.hex(), span.trace_state) == ("b7ad6b7169203331", "vendor=opaque,other=1")
    assert (span.name, span.kind) == ("Generate tiny", Span.SPAN_KIND_SERVER)
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (START_NS, START_NS + 12_345_678)
    assert (span.status.code, span.status.message) == (Status.STATUS_CODE_ERROR, "disconnect")
    values = {each.key: each.value for each in span.attributes}
    assert values[Attr.SESSION_ID].string_value == "Zoë's"
    assert values[Attr.INPUT_TOKENS].int_value == 812
    assert values[Attr.QUEUE_S].double_value == 0.25
    assert values[Attr.COMMITTED].bool_value is True
    reasons = values[Attr.FINISH_REASONS].array_value.values
    assert [reason.string_value for reason in reasons] == ["length", "stop"]
    assert len(values) == 5


def test_convert_when_a_text_can_not_be_sent_or_is_endless_then_cut_and_the_others_of_its_batch_arrive() -> None:
    bad = replace(
        make_full_span(),
        name="p\ud800q",
        attributes={Attr.SESSION_ID: "x" * 10_000_000, Attr.DETAIL: "\udfff"},
        events=(SpanEvent("retracted", START_NS, {Attr.DETAIL: "\ud83d"}),),
        status_message="é" * 5_000_000,
    )
    spans = encode(bad, make_full_span()).scope_spans[0].spans
    assert len(spans) == 2
    values = {each.key: each.value.string_value for each in spans[0].attributes}
    assert (spans[0].name, values[Attr.DETAIL]) == ("p\\ud800q", "\\udfff")
    assert len(values[Attr.SESSION_ID]) == len(spans[0].status.message) == TEXT_CHARS_MAX
    assert spans[0].events[0].attributes[0].value.string_value == "\\ud83d"
    assert spans[1].name == "Generate tiny"


def test_convert_when_a_span_has_events_and_links_then_they_keep_their_order_times_and_facts() -> None:
    span = encode_one(make_full_span())
    assert [(event.name, event.time_unix_nano) for event in span.events] == [
        ("first_token", START_NS + 5),
        ("chunk", START_NS + 7),
    ]
    assert [(each.key, each.value.int_value) for each in span.events[1].attributes] == [(Attr.TOKENS, 8)]
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in span.links] == [
        ("0af7651916cd43dd8448eb211c80319c", "00f067aa0ba902b8"),
        (TRACE_ID, "0000000000000009"),
    ]
    relations = [(each.key, each.value.string_value) for link in span.links for each in link.attributes]
    assert relations == [(Attr.LINK, "previous_turn"), (Attr.LINK, "previous_holder")]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (SpanStatus.UNSET, Status.STATUS_CODE_UNSET),
        (SpanStatus.OK, Status.STATUS_CODE_OK),
        (SpanStatus.ERROR, Status.STATUS_CODE_ERROR),
    ],
)
def test_convert_when_a_span_has_a_status_then_that_code(status: SpanStatus, code: int) -> None:
    span = FinishedSpan("turn", SpanContext(TRACE_ID, "00f067aa0ba902b7"), 1, 2, status=status)
    assert encode_one(span).status.code == code


def test_convert_when_the_parent_is_another_process_s_then_the_wire_says_so() -> None:
    call = make_full_span()
    assert encode_one(call).flags == HAS_IS_REMOTE | IS_REMOTE
    assert encode_one(replace(call, kind=SpanKind.INTERNAL)).flags == HAS_IS_REMOTE
    assert encode_one(replace(call, parent_span_id="")).flags == HAS_IS_REMOTE


def test_convert_when_a_root_then_no_parent_and_internal() -> None:
    span = encode_one(make_span())
    assert (span.parent_span_id, span.kind, len(span.attributes)) == (b"", Span.SPAN_KIND_INTERNAL, 0)


def test_convert_when_the_trace_state_is_nonsense_then_the_span_goes_without_it() -> None:
    span = FinishedSpan("turn", SpanContext(TRACE_ID, "00f067aa0ba902b7", tracestate="no pair at all"), 1, 2)
    assert encode_one(span).trace_state == ""


def test_convert_when_many_then_one_resource_and_one_scope_with_our_name_and_version() -> None:
    sent = encode(make_span(1), make_span(2))
    assert [scope.scope.name for scope in sent.scope_spans] == ["tenure"]
    assert len(sent.scope_spans[0].spans) == 2
    names = {each.key: each.value.string_value for each in sent.resource.attributes}
    assert names["service.name"] == "tenure"
    assert names["service.version"] == sent.scope_spans[0].scope.version != ""
