"""`tenure generate`: one turn without a session."""

import asyncio

from services.cli.chat import print_answer
from services.cli.report import report_error
from services.client import Message, connect


def run_generate(target: str, text: str, *, is_chat: bool, max_tokens: int) -> int:
    try:
        return asyncio.run(report_error(target, _generate(target, text, is_chat, max_tokens)))
    except KeyboardInterrupt:
        return 130  # the turn was aborted on the server on the way out


async def _generate(target: str, text: str, is_chat: bool, max_tokens: int) -> int:
    async with connect(target) as client:
        if is_chat:
            turn = client.generate(messages=[Message("user", text)], max_tokens=max_tokens)
        else:
            turn = client.generate(text, max_tokens=max_tokens)
        await print_answer(turn)
    return 0
