"""`tenure serve` called in this process: what it says goes through writers that never wait, and it returns."""

import io
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from services.cli.main import main
from services.cli.serve import set_up_logging
from services.interceptors import GRPC_LOGGER
from telemetry.log_handler import BackgroundHandler


@pytest.fixture
def _log_as_before() -> Iterator[None]:
    root, rooms = logging.getLogger(), [logging.getLogger(name) for name in ("tenure", "engine", "services")]
    levels = [(logger, logger.level) for logger in (root, *rooms)]
    filters = tuple(logging.getLogger(GRPC_LOGGER).filters)
    yield
    for logger, level in levels:
        logger.setLevel(level)
    logging.getLogger(GRPC_LOGGER).filters[:] = filters
    logging.captureWarnings(False)


@pytest.mark.usefixtures("_log_as_before")
def test_logging_when_set_up_then_every_handler_of_ours_is_one_that_never_waits() -> None:
    before = set(logging.getLogger().handlers)
    stream = io.StringIO()
    handler = set_up_logging(stream, logging.DEBUG)
    try:
        assert set(logging.getLogger().handlers) - before == {handler}
        logging.getLogger("engine").debug("event=heard")
        logging.getLogger("asyncio").debug("event=too_fine")
    finally:
        handler.finish(10)
        logging.getLogger().removeHandler(handler)
    assert stream.getvalue().endswith("level=DEBUG logger=engine event=heard\n")
    assert "too_fine" not in stream.getvalue()


@pytest.mark.usefixtures("_log_as_before")
def test_serve_when_called_in_a_process_of_others_then_it_returns_its_code_and_takes_its_handler_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = io.StringIO()
    monkeypatch.setattr(sys, "stdout", lines)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    assert lines.getvalue().startswith("configuration:\n")
    assert not [handler for handler in logging.getLogger().handlers if isinstance(handler, BackgroundHandler)]


BUSY_AT_THE_END = """
import asyncio, sys, time
import services.cli.serve
from services.cli.main import main

class Server:
    start_failure = None

    def __init__(self, config, announcer, process, environment):
        pass

    async def run(self, stop):
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)
        return 3

services.cli.serve.Server = Server
sys.argv = ["tenure", "serve", "--port", "0"]
sys.exit(main())
"""


def test_serve_when_a_thread_is_still_busy_at_the_end_then_the_process_ends_all_the_same() -> None:
    done = subprocess.run((sys.executable, "-c", BUSY_AT_THE_END), capture_output=True, timeout=30, check=False)
    assert done.returncode == 3, done.stderr.decode()
    assert b"stopped" in done.stdout
    assert done.stderr == b""
