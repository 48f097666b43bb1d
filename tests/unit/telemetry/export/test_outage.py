"""What is told of an outage: its begin, each new cause once, its end."""

import logging

import pytest

from telemetry.export.outage import Outage, explain

REFUSED = "UNAVAILABLE: ipv4:127.0.0.1:4317: connect: Connection refused (111)"


@pytest.fixture
def outage(caplog: pytest.LogCaptureFixture) -> Outage:
    caplog.set_level(logging.INFO)
    return Outage("http://127.0.0.1:4317")


def test_cause_when_it_changes_then_each_is_told_once(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    for cause in (
        REFUSED,
        REFUSED.replace("4317", "4318"),
        "UNAVAILABLE: no route",
        REFUSED,
        "UNAVAILABLE: no route",
        "",
    ):
        outage.failed(cause, 0)
    assert [REFUSED in line for line in caplog.messages] == [True, False]


def test_cause_when_there_are_ever_new_ones_then_told_no_more(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    for length in range(1, 100):
        outage.failed("x" * length, 0)
    assert len(caplog.messages) == 16


def test_cause_when_spans_were_lost_for_another_reason_before_then_told(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    outage.overflowed(0)
    outage.failed(REFUSED, 3)
    outage.recovered(7)
    outage.failed(REFUSED, 7)
    assert [line.split()[0] for line in caplog.messages] == [
        "event=span_queue_full",
        "event=span_export_failed",
        "event=span_export_recovered",
        "event=span_export_failed",
    ]
    assert caplog.messages[2].endswith("lost=7")


def test_cause_when_nobody_said_it_then_said_so(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    outage.failed("", 0)
    assert "it gave no answer until the end" in caplog.text


@pytest.mark.parametrize(("lost", "words"), [(1, "1 span was lost"), (2, "2 spans were lost")])
def test_end_when_spans_were_lost_then_told_in_words(
    outage: Outage, caplog: pytest.LogCaptureFixture, lost: int, words: str
) -> None:
    outage.ended(lost)
    assert f"lost={lost}: {words} since the start" in caplog.text


def test_explain_when_the_other_side_speaks_no_http_2_then_the_usual_port_is_named() -> None:
    assert explain("Failed parsing HTTP/2 (...)").endswith("is this an OTLP/HTTP port? gRPC is 4317 by default")
    assert explain(REFUSED) == REFUSED
