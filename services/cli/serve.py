"""`tenure serve`: configuration, logging, signals, exit code."""

import argparse
import asyncio
import faulthandler
import logging
import os
import signal
import sys
import textwrap
import time
from dataclasses import dataclass, fields
from typing import TextIO

from services.cli.progress import ProgressPrinter
from services.config import ConfigError, ServeConfig
from services.interceptors import GRPC_LOGGER, is_worth_logging
from services.server import Announcer, ProcessHooks, Server
from telemetry.background_writer import BackgroundWriter
from telemetry.log_handler import BackgroundHandler

FORCED_EXIT_CODE = 130

_FLUSH_S = 1.0
"""How long what the server said last may take to be written, when nobody reads it."""
_FORCED_FLUSH_S = 0.1
_SILENCE_S = 120.0
"""When not even the watchdog could run for so long, the interpreter prints its stacks by itself. So it does when it was
stopped for so long, for it can not tell the two apart."""


@dataclass(frozen=True, slots=True)
class Output:
    """What the server says: to people on `lines`, to the log on `log`. Neither ever makes it wait."""

    lines: BackgroundWriter
    log: BackgroundHandler

    def close(self, timeout_s: float) -> None:
        """Lets what waits be written, each for so long at most."""
        self.lines.close(timeout_s)
        self.log.finish(timeout_s)
        logging.getLogger().removeHandler(self.log)


def run_serve(arguments: argparse.Namespace, *, owns_process: bool = False) -> int:
    """Serves until SIGTERM or SIGINT. A second signal ends the process at once.

    With `owns_process` it ends the process itself, with its exit code, once all is in order.
    """
    try:
        config = ServeConfig(**{field.name: getattr(arguments, field.name) for field in fields(ServeConfig)})
    except ConfigError as error:
        return _report_config(error)
    log = set_up_logging(sys.stderr, logging.DEBUG if arguments.verbose else logging.INFO)
    output = Output(BackgroundWriter(sys.stdout), log)
    output.lines.write(describe(config) + "\n")
    runner = asyncio.Runner()
    refused: ConfigError | None = None
    code = 2
    try:
        code = runner.run(_serve(config, output))
    except ConfigError as error:
        refused = error
    finally:
        faulthandler.cancel_dump_traceback_later()
        output.close(_FLUSH_S)
    if refused is not None:
        code = _report_config(refused)
    if owns_process:
        # Threads may still run: the loader's, torch's, one that makes ids of a long text. An interpreter that is taken
        # down around them waits for some and is aborted by others, in C++. Nothing of theirs is needed any more.
        os._exit(code)
    runner.close()
    return code


def _report_config(error: ConfigError) -> int:
    """In one piece, and once all that was said before is written: both may end up in the same pipe."""
    sys.stderr.write(f"tenure serve: {error}\n")
    sys.stderr.flush()
    return 2


def describe(config: ServeConfig) -> str:
    """The configuration that is in force, as a few lines."""
    settings = ", ".join(f"{name}={value}" for name, value in config.effective().items())
    return "configuration:\n" + textwrap.fill(settings, 100, initial_indent="  ", subsequent_indent="  ")


def set_up_logging(stream: TextIO, level: int) -> BackgroundHandler:
    """One line an entry, on `stream`: time, level, logger, then `event=... key=value`."""
    handler = BackgroundHandler(stream)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.getLogger(GRPC_LOGGER).addFilter(is_worth_logging)
    logging.captureWarnings(True)
    for room in ("tenure", "engine", "services"):
        logging.getLogger(room).setLevel(level)
    return handler


async def _serve(config: ServeConfig, output: Output) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    progress = ProgressPrinter(output.lines)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, signal.Signals(number), stop, progress, output)
    announcer, hooks = Announcer(progress.say, progress), _process_hooks(progress, output)
    server = Server(config, announcer, process=hooks, environment=os.environ)
    code = await server.run(stop)
    if server.start_failure is not None:
        progress.say(f"stopped: the server could not start: {server.start_failure}")
        code = 2 if server.is_setting_wrong else code
    else:
        progress.say("stopped" if code == 0 else "stopped because of a failure; the log says which")
    return code


def _process_hooks(progress: ProgressPrinter, output: Output) -> ProcessHooks:
    def leave(why: str) -> None:
        try:
            progress.close()
            progress.say(f"leaving, the engine is lost: {why}")
            output.close(_FLUSH_S)
        finally:
            os._exit(1)

    return ProcessHooks(leave, _SilenceAlarm().put_off)


class _SilenceAlarm:
    """Prints all stacks, in C and without the interpreter's lock, unless it is put off again and again."""

    def __init__(self) -> None:
        self._put_off_at_s = 0.0

    def put_off(self) -> None:
        """At most once a second: each time a thread is started for it."""
        now_s = time.monotonic()
        if now_s - self._put_off_at_s >= 1.0:
            self._put_off_at_s = now_s
            faulthandler.dump_traceback_later(_SILENCE_S)


def _on_signal(number: signal.Signals, stop: asyncio.Event, progress: ProgressPrinter, output: Output) -> None:
    progress.close()
    if stop.is_set():
        progress.say(f"{number.name} again: leaving at once")
        output.close(_FORCED_FLUSH_S)
        os._exit(FORCED_EXIT_CODE)
    progress.say(f"{number.name}: stopping; send it again to leave at once")
    stop.set()
