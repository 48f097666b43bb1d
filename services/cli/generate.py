"""`tenure generate`: one turn without a session."""

import asyncio

from services.cli.chat import print_answer
from services.cli.report import report_error
from services.client import Message, SamplingOptions, connect


def run_generate(target: str, text: str, options: SamplingOptions, *, is_chat: bool) -> int:
    try:
        return asyncio.run(report_error(target, _generate(target, text, options, is_chat)))
    except KeyboardInterrupt:
        return 130  # the turn was aborted on the server on the way out


async def _generate(target: str, text: str, options: SamplingOptions, is_chat: bool) -> int:
    async with connect(target) as client:
        if is_chat:
            turn = client.generate(messages=[Message("user", text)], **options)
        else:
            turn = client.generate(text, **options)
        await print_answer(turn)
    return 0
