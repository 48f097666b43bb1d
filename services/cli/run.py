"""Runs a command's work against a server so that it ends in order when it fails, and when a signal comes."""

import asyncio
import signal
from collections.abc import Coroutine

from services.cli.report import report_error

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def run_work(target: str, work: Coroutine[None, None, int]) -> int:
    """The exit code. A signal cancels `work`, which aborts its turns and closes its session: 128 + its number."""
    return asyncio.run(_run_until_signal(report_error(target, work)))


async def _run_until_signal(work: Coroutine[None, None, int]) -> int:
    """SIGINT is left to asyncio, or to a command that has its own use for it."""
    task = asyncio.create_task(work)
    heard: list[int] = []

    def on_signal(number: signal.Signals) -> None:
        heard.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        return await task
    except asyncio.CancelledError:
        if heard:
            return 128 + heard[0]
        raise
