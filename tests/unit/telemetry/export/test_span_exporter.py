"""The exporter's queue, portions and counts, over a client that a test holds and lets go."""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter as Client
from opentelemetry.sdk.trace.export import SpanExportResult

from telemetry.export.resource import build_resource
from telemetry.export.span_exporter import SpanExporter
from telemetry.settings import TelemetrySettings
from tests.kit.finished_spans import make_span

WAIT_S = 10.0
LOGGER = "tenure.telemetry"


class Script(Client):
    """Does with each export what `answers` says, and well when that has no more; `gate` holds it while inside."""

    def __init__(self, answers: Sequence[SpanExportResult | Exception] = ()) -> None:
        self.answers = list(answers)
        self.batches: list[list[str]] = []
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.num_shut = 0
        self.ignores_shutdown = False
        self.is_stepwise = False
        """The gate lets one export through, and is closed again."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        contexts = [span.get_span_context() for span in spans]
        self.batches.append([f"{context.span_id:x}" for context in contexts if context is not None])
        self.entered.set()
        assert self.gate.wait(WAIT_S), "the test lets go"
        if self.is_stepwise:
            self.gate.clear()
        if self.num_shut:
            return SpanExportResult.FAILURE
        answer = self.answers.pop(0) if self.answers else SpanExportResult.SUCCESS
        if isinstance(answer, Exception):
            raise answer
        return answer

    def shutdown(self) -> None:
        self.num_shut += 1
        if not self.ignores_shutdown:
            self.gate.set()


@dataclass(slots=True)
class Rig:
    client: Script
    exporter: SpanExporter
    taken: int = 0

    def take(self, count: int, *, is_sampled: bool = True) -> None:
        for _ in range(count):
            self.taken += 1
            self.exporter.take(make_span(self.taken, is_sampled=is_sampled))

    @property
    def counts(self) -> tuple[int, int]:
        return self.exporter.exported, self.exporter.dropped


@contextmanager
def exporting(client: Script, *, queue_max: int = 8, batch_max: int = 4) -> Iterator[Rig]:
    """Batches go out when they are full, or at the end."""
    variables = {
        "OTEL_BSP_MAX_QUEUE_SIZE": str(queue_max),
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": str(batch_max),
        "OTEL_BSP_SCHEDULE_DELAY": "3600000",
    }
    settings = TelemetrySettings(otlp_endpoint="http://127.0.0.1:1", environment=variables)
    exporter = SpanExporter(settings, build_resource({}), lambda _export: client)
    try:
        yield Rig(client, exporter)
    finally:
        client.gate.set()
        exporter.close(WAIT_S)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [f"{record.levelname} {record.getMessage()}" for record in caplog.records if record.name == LOGGER]


def test_close_when_spans_wait_then_all_are_sent_in_order_in_batches() -> None:
    with exporting(Script()) as rig:
        rig.client.gate.clear()
        rig.take(4)
        assert rig.client.entered.wait(WAIT_S), "a full batch goes out by itself"
        rig.take(6)
        rig.client.gate.set()
        rig.exporter.close(WAIT_S)
        assert rig.client.batches == [["1", "2", "3", "4"], ["5", "6", "7", "8"], ["9", "a"]]
        assert rig.counts == (10, 0)
        assert rig.client.num_shut == 1


def test_batches_when_more_than_one_waits_then_only_whole_ones_go_and_the_rest_waits_for_more() -> None:
    with exporting(Script(), queue_max=20) as rig:
        rig.client.gate.clear()
        rig.client.is_stepwise = True
        rig.take(4)
        assert rig.client.entered.wait(WAIT_S)
        rig.take(6)
        rig.client.entered.clear()
        rig.client.gate.set()
        assert rig.client.entered.wait(WAIT_S), "of the 6, one batch goes"
        rig.take(2)
        rig.client.is_stepwise = False
        rig.client.gate.set()
        rig.exporter.close(WAIT_S)
        assert [len(batch) for batch in rig.client.batches] == [4, 4, 4]


def test_take_when_the_client_is_stuck_then_it_returns_and_what_finds_no_place_is_counted() -> None:
    with exporting(Script()) as rig:
        rig.client.gate.clear()
        rig.take(4)
        assert rig.client.entered.wait(WAIT_S)
        rig.take(11)
        assert rig.counts == (0, 3), "8 wait, 4 are inside"
        rig.client.gate.set()
        rig.exporter.close(WAIT_S)
        assert rig.counts == (12, 3)


def test_take_when_a_trace_is_not_sampled_then_neither_sent_nor_counted() -> None:
    with exporting(Script()) as rig:
        rig.take(3, is_sampled=False)
        rig.exporter.close(WAIT_S)
        assert (rig.client.batches, rig.counts) == ([], (0, 0))


def test_take_when_it_is_closed_then_counted_as_dropped() -> None:
    with exporting(Script()) as rig:
        rig.exporter.close(WAIT_S)
        rig.take(2)
        assert rig.counts == (0, 2)


def test_export_when_it_fails_and_the_next_does_not_then_its_batch_is_lost_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    failure = SpanExportResult.FAILURE
    with exporting(Script([failure, failure, SpanExportResult.SUCCESS, failure]), queue_max=20) as rig:
        rig.client.gate.clear()
        rig.take(16)
        rig.client.gate.set()
        rig.exporter.close(WAIT_S)
        assert rig.counts == (4, 12)
    told = messages(caplog)
    assert [line.split(" endpoint")[0] for line in told] == [
        "ERROR event=span_export_failed",
        "INFO event=span_export_recovered",
        "ERROR event=span_export_failed",
        "WARNING event=span_export_ended",
    ]
    assert told[1].endswith("lost=8")
    assert "lost=12" in told[3]


def test_export_when_the_client_raises_then_its_batch_is_lost_and_the_thread_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with exporting(Script([ValueError("Cannot invoke RPC on closed channel!")])) as rig:
        rig.take(5)
        rig.exporter.close(WAIT_S)
        assert rig.counts == (1, 4)
    assert "cause='ValueError: Cannot invoke RPC on closed channel!'" in messages(caplog)[0]


def test_queue_when_it_overflows_then_told_once_and_once_more_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with exporting(Script()) as rig:
        rig.client.gate.clear()
        rig.take(4)
        assert rig.client.entered.wait(WAIT_S)
        rig.take(10)
        rig.client.gate.set()
        rig.exporter.close(WAIT_S)
    told = messages(caplog)
    assert [line.split(" endpoint")[0] for line in told] == [
        "WARNING event=span_queue_full",
        "INFO event=span_export_recovered",
        "WARNING event=span_export_ended",
    ]
    assert told[1].endswith("lost=2")


def test_close_when_the_client_is_stuck_then_cut_and_all_that_is_left_is_counted() -> None:
    with exporting(Script()) as rig:
        rig.client.gate.clear()
        rig.take(4)
        assert rig.client.entered.wait(WAIT_S)
        rig.take(3)
        rig.exporter.close(0.0)
        assert rig.counts == (0, 7)
        assert rig.client.num_shut == 1


def test_close_when_not_even_the_cut_ends_the_call_then_left_behind_and_counted_once() -> None:
    client = Script()
    client.ignores_shutdown = True
    with exporting(client) as rig:
        client.gate.clear()
        rig.take(4)
        assert client.entered.wait(WAIT_S)
        rig.take(3)
        rig.exporter.close(0.0)
        assert rig.counts == (0, 7)
        client.gate.set()
        rig.exporter.close(WAIT_S)
        assert rig.counts == (0, 7), "the call that came back late counts nothing"
        assert len(client.batches) == 1, "and nothing more is sent"


def test_close_when_called_twice_then_the_second_does_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with exporting(Script([SpanExportResult.FAILURE])) as rig:
        rig.take(1)
        rig.exporter.close(WAIT_S)
        rig.exporter.close(WAIT_S)
        assert rig.client.num_shut == 1
        assert [line.split(" endpoint")[0] for line in messages(caplog)] == [
            "ERROR event=span_export_failed",
            "WARNING event=span_export_ended",
        ]


def test_close_when_nothing_was_lost_then_the_log_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with exporting(Script()) as rig:
        rig.take(3)
    assert messages(caplog) == []
