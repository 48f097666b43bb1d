"""What the SDK's exporter logs: heard by the thread that calls it, kept from the log, and no other's entry is."""

import logging
import threading

import pytest
from grpc import StatusCode

from telemetry.export.sdk_log import EXPORTER_LOGGER, ThreadLog

LOG = logging.getLogger(EXPORTER_LOGGER)


def fail(code: StatusCode = StatusCode.UNAVAILABLE, details: str = "refused", exporting: str = "traces") -> None:
    """As opentelemetry.exporter.otlp.proto.grpc.exporter has it."""
    text = "Failed to export %s to %s, error code: %s, error details: %s"
    LOG.error(text, exporting, "127.0.0.1:1", code, details, exc_info=False)


def retry(details: str) -> None:
    text = "Transient error %s encountered while exporting %s to %s, retrying in %.2fs. Error details: %s"
    LOG.warning(text, StatusCode.UNAVAILABLE, "traces", "127.0.0.1:1", 0.97, details)


def test_entries_when_of_this_thread_then_heard_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with ThreadLog() as heard:
        retry("first try")
        assert heard.cause == "UNAVAILABLE: first try"
        fail(StatusCode.INVALID_ARGUMENT, "no spans")
        assert heard.cause == "INVALID_ARGUMENT: no spans"
        LOG.warning("Exporter already shutdown, ignoring batch")
        assert heard.cause == "INVALID_ARGUMENT: no spans"
    assert caplog.records == []


def test_entries_when_the_same_was_just_logged_by_another_thread_then_heard_all_the_same() -> None:
    with ThreadLog() as heard:
        other = threading.Thread(target=fail, args=(StatusCode.INTERNAL, "theirs", "metrics"))
        other.start()
        other.join()
        assert heard.cause == ""
        fail(details="ours")
        assert heard.cause == "UNAVAILABLE: ours"


def test_cause_when_we_cut_the_call_then_that_of_the_try_before() -> None:
    with ThreadLog() as heard:
        retry("refused")
        fail(StatusCode.CANCELLED, "Channel closed!")
        assert heard.cause == "UNAVAILABLE: refused"


def test_entries_when_it_is_over_then_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    filters = list(LOG.filters)
    with ThreadLog():
        assert len(LOG.filters) == len(filters) + 1
    assert LOG.filters == filters
