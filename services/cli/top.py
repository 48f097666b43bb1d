"""`tenure top`: a running server, live on the terminal."""

import asyncio
import os
import signal
import time

from services.cli.arguments import BadInputError
from services.cli.report import describe_error
from services.cli.run import run_work
from services.cli.top_view.frame import View, render_frame
from services.cli.top_view.reading import Sort, take_reading
from services.cli.top_view.screen import TerminalScreen, is_screen
from services.cli.top_view.watch import PATIENCE_S, Watch
from services.client import connect

INTERVALS_S = (0.1, 3600.0)
"""The shortest and the longest time between two looks."""
_PLAIN_WIDTH, _PLAIN_HEIGHT = 100, 80
"""Of the one frame that goes into a pipe."""


def run_top(target: str, *, interval_s: float = 1.0, once: bool = False, sort: Sort = "pages") -> int:
    """The exit code. Without a terminal, or with `once`: one frame, plain. Raises BadInputError."""
    least_s, most_s = INTERVALS_S
    if not least_s <= interval_s <= most_s:
        raise BadInputError(f"--interval: {interval_s:g} is not from {least_s:g} to {most_s:g} seconds")
    if once or not is_screen():
        return run_work(target, _show_once(target, sort))
    return run_work(target, _show_live(target, interval_s, sort))


async def _show_once(target: str, sort: Sort) -> int:
    async with connect(target, answer_timeout_s=PATIENCE_S) as client:
        reading = await take_reading(client)
    for line in render_frame(View(target, reading, sort), _PLAIN_WIDTH, _PLAIN_HEIGHT):
        print(line.plain.rstrip())
    return 0


async def _show_live(target: str, interval_s: float, sort: Sort) -> int:
    screen = TerminalScreen()
    async with connect(target) as client:
        watch = Watch(
            client,
            screen,
            target,
            interval_s=interval_s,
            sort=sort,
            clock=time.monotonic,
            describe=lambda error: describe_error(error, target),
        )
        screen.enter()
        try:
            _obey_signals(watch, screen)
            screen.listen(watch.press)
            await watch.run()
        finally:
            screen.leave()
    return 0


def _obey_signals(watch: Watch, screen: TerminalScreen) -> None:
    """Ctrl-C leaves, Ctrl-Z lets the shell have its terminal for a while, another size is drawn at once."""

    def pause_process() -> None:
        screen.leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        screen.enter()
        watch.draw()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, watch.leave)
    loop.add_signal_handler(signal.SIGTSTP, pause_process)
    loop.add_signal_handler(signal.SIGWINCH, watch.draw)
