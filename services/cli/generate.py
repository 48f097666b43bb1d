"""`tenure generate`: one turn without a session."""

import sys

from services.cli.answers import announcing_reconnects, print_answer, wait_loaded
from services.cli.arguments import BadInputError
from services.cli.lines import decode_text
from services.cli.run import run_work
from services.cli.terminal import Terminal, open_terminal
from services.client import Message, SamplingOptions, connect

STANDARD_INPUT = "-"


def run_generate(target: str, text: str, options: SamplingOptions, *, is_chat: bool) -> int:
    """`text` as it was given: `-` is standard input. Raises BadInputError."""
    return run_work(target, _generate(target, read_text(text), options, is_chat, open_terminal()))


def read_text(given: str) -> str:
    """Raises BadInputError for what is no UTF-8 text."""
    if given == STANDARD_INPUT:
        if sys.stdin is None:
            raise BadInputError("there is no standard input")
        return decode_text(sys.stdin.buffer.read(), "standard input")
    # How Python holds the bytes of arguments that are no text.
    return decode_text(given.encode(errors="surrogateescape"), "the text")


async def _generate(target: str, text: str, options: SamplingOptions, is_chat: bool, terminal: Terminal) -> int:
    async with connect(target, on_reconnecting=announcing_reconnects(terminal)) as client:
        await wait_loaded(client, terminal)
        if is_chat:
            turn = client.generate(messages=[Message("user", text)], **options)
        else:
            turn = client.generate(text, **options)
        await print_answer(turn, terminal)
    return 0
