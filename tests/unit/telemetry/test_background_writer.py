"""Writing and logging to a stream that nobody reads: never a wait, every loss counted and told."""

import errno
import io
import logging
import re
import threading
from collections.abc import Iterator

import pytest

from telemetry.background_writer import BackgroundWriter
from telemetry.log_handler import BackgroundHandler

WAIT_S = 10.0


class Stream(io.StringIO):
    """Can be as stuck as a full pipe, or broken."""

    def __init__(self) -> None:
        super().__init__()
        self.is_free = threading.Event()
        self.is_free.set()
        self.is_held = threading.Event()
        """Set once a write waits."""
        self.is_quiet = threading.Event()
        """Set once `quiet_after` was written."""
        self.quiet_after = "\0"
        self.failure: Exception | None = None

    def write(self, text: str) -> int:
        if not self.is_free.is_set():
            self.is_held.set()
            assert self.is_free.wait(WAIT_S)
        if self.failure is not None:
            raise self.failure
        written = super().write(text)
        if self.quiet_after in text:
            self.is_quiet.set()
        return written


@pytest.fixture
def stream() -> Iterator[Stream]:
    stream = Stream()
    yield stream
    stream.is_free.set()


def hold(stream: Stream, writer: BackgroundWriter) -> None:
    """From now on the writer's thread is stuck, with one text in its hands."""
    stream.is_free.clear()
    writer.write("held\n")
    assert stream.is_held.wait(WAIT_S)


def test_write_when_the_stream_works_then_all_texts_in_order(stream: Stream) -> None:
    writer = BackgroundWriter(stream)
    for number in range(100):
        writer.write(f"{number}\n")
    writer.close(WAIT_S)
    assert stream.getvalue().split() == [str(number) for number in range(100)]
    assert writer.dropped == 0


def test_write_when_the_stream_is_stuck_then_returns_and_the_loss_is_counted_and_told_in_its_place(
    stream: Stream,
) -> None:
    writer = BackgroundWriter(stream, lambda dropped: f"lost {dropped}\n", waiting_max=2)
    hold(stream, writer)
    for number in range(10):
        writer.write(f"{number}\n")
    assert writer.dropped == 8
    stream.quiet_after = "lost"
    stream.is_free.set()
    assert stream.is_quiet.wait(WAIT_S), "told although nothing more comes"
    writer.write("later\n")
    writer.close(WAIT_S)
    assert stream.getvalue() == "held\n0\n1\nlost 8\nlater\n"


def test_write_when_the_stream_breaks_then_counted_and_it_goes_on(stream: Stream) -> None:
    writer = BackgroundWriter(stream)
    hold(stream, writer)
    stream.failure = BrokenPipeError()
    stream.is_free.set()
    writer.write("two\n")
    writer.close(WAIT_S)
    assert writer.dropped >= 2


class FullStream(Stream):
    """Takes nothing until, with the text `space`, there is room for what comes after it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = True
        self.was_told = threading.Event()
        """Set once it was to take the number of what was lost."""

    def write(self, text: str) -> int:
        if not self.is_full:
            return super().write(text)
        self.is_full = "space" not in text
        if "lost" in text:
            self.was_told.set()
        raise OSError(errno.ENOSPC, "no space left")


def test_write_when_the_disk_is_full_for_a_while_then_all_that_was_lost_is_told_in_one() -> None:
    stream = FullStream()
    writer = BackgroundWriter(stream, lambda dropped: f"lost {dropped}\n")
    writer.write("one\n")
    assert stream.was_told.wait(WAIT_S)
    writer.write("space\n")
    writer.close(WAIT_S)
    assert stream.getvalue() == "lost 2\n"
    assert writer.dropped == 2


def test_close_when_the_stream_is_stuck_then_returns_in_time_and_later_texts_are_dropped(stream: Stream) -> None:
    writer = BackgroundWriter(stream)
    hold(stream, writer)
    writer.write("waits\n")
    writer.close(0.01)
    writer.close(0.01)
    writer.write("late\n")
    assert writer.dropped == 1
    stream.is_free.set()
    writer.close(WAIT_S)
    assert stream.getvalue().startswith("held\nwaits\n")
    assert "late" not in stream.getvalue()


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("tests.background")
    logger.propagate = False
    yield logger
    for handler in tuple(logger.handlers):
        logger.removeHandler(handler)


def test_log_when_the_stream_is_stuck_then_no_thread_waits_and_the_loss_is_an_entry(
    stream: Stream, logger: logging.Logger
) -> None:
    """A plain handler keeps its lock while it writes: then whoever logs next waits too, the event loop included."""
    handler = BackgroundHandler(stream, waiting_max=2)
    logger.addHandler(handler)
    stream.is_free.clear()
    logger.error("event=first")
    assert stream.is_held.wait(WAIT_S)
    for number in range(5):
        logger.error("event=more number=%s", number)
    assert handler.dropped == 3
    stream.is_free.set()
    handler.finish(WAIT_S)
    lines = stream.getvalue().splitlines()
    assert [re.sub(r"^[-\d]+ [:,\d]+ ", "", line) for line in lines] == [
        "level=ERROR logger=tests.background event=first",
        "level=ERROR logger=tests.background event=more number=0",
        "level=ERROR logger=tests.background event=more number=1",
        "level=WARNING logger=telemetry.log_handler event=log_lines_dropped lines=3",
    ]


def test_log_when_an_entry_can_not_be_formatted_then_it_is_named_and_nothing_is_raised(stream: Stream) -> None:
    handler = BackgroundHandler(stream)
    # Past the logger: pytest listens there, and fails on such an entry.
    handler.handle(
        logging.LogRecord("tests.background", logging.ERROR, __file__, 1, "event=odd number=%d", ("x",), None)
    )
    handler.finish(WAIT_S)
    assert "level=ERROR logger=telemetry.log_handler event=log_entry_broken logger=tests.background" in (
        stream.getvalue()
    )
