"""Answers as they come, and what is said while there is none."""

import asyncio
from collections.abc import Callable

from services.cli.terminal import Terminal
from services.client import Client, TenureError, Turn

_LOADING_POLL_S = 0.3


async def print_answer(turn: Turn, terminal: Terminal) -> None:
    """Prints text as it comes, and ends its line also when the answer is cut short. A refusal prints nothing."""
    has_text = False
    try:
        async for piece in turn:
            if piece.text:
                has_text = True
            terminal.say(piece.text)
    finally:
        if turn.is_committed and not has_text:
            terminal.say("\n")  # an empty answer is a line of a pipe, too
        terminal.end_line()


def announcing_reconnects(terminal: Terminal) -> Callable[[], None]:
    return lambda: terminal.complain("tenure: the connection is lost; reconnecting...")


async def wait_loaded(client: Client, terminal: Terminal) -> None:
    """Returns once the server has its model. Raises TenureError."""
    is_told = False
    while True:
        try:
            await client.model()
        except TenureError as error:
            if error.reason != "SERVER_LOADING":
                raise
        else:
            return
        if not is_told:
            terminal.complain("tenure: the server is still loading its model; waiting...")
            is_told = True
        await asyncio.sleep(_LOADING_POLL_S)
