"""`tenure serve`: configuration, logging, signals, exit code."""

import argparse
import asyncio
import logging
import os
import signal
import sys
import textwrap
from dataclasses import fields

from services.cli.progress import ProgressPrinter
from services.config import ConfigError, ServeConfig
from services.server import Announcer, Server

FORCED_EXIT_CODE = 130


def run_serve(arguments: argparse.Namespace) -> int:
    """Serves until SIGTERM or SIGINT. A second signal ends the process at once."""
    try:
        config = ServeConfig(**{field.name: getattr(arguments, field.name) for field in fields(ServeConfig)})
        set_up_logging(logging.DEBUG if arguments.verbose else logging.INFO)
        _say(describe(config))
        return asyncio.run(_serve(config))
    except ConfigError as error:
        print(f"tenure serve: {error}", file=sys.stderr)
        return 2


def describe(config: ServeConfig) -> str:
    """The configuration that is in force, as a few lines."""
    settings = ", ".join(f"{name}={value}" for name, value in config.effective().items())
    return "configuration:\n" + textwrap.fill(settings, 100, initial_indent="  ", subsequent_indent="  ")


def set_up_logging(level: int) -> None:
    """One line an entry, on standard error: time, level, logger, then `event=... key=value`."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=(handler,))
    for room in ("tenure", "engine", "services"):
        logging.getLogger(room).setLevel(level)


async def _serve(config: ServeConfig) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, signal.Signals(number), stop)
    code = await Server(config, Announcer(_say, ProgressPrinter(sys.stdout))).run(stop)
    _say("stopped" if code == 0 else "stopped because of a failure; the log says which")
    return code


def _on_signal(number: signal.Signals, stop: asyncio.Event) -> None:
    if stop.is_set():
        _say(f"{number.name} again: leaving at once")
        os._exit(FORCED_EXIT_CODE)
    _say(f"{number.name}: stopping; send it again to leave at once")
    stop.set()


def _say(line: str) -> None:
    print(line, flush=True)
