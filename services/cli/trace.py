"""`tenure trace`: where the time of a turn went, and how its KV came to it."""

import sys
from collections.abc import Sequence
from datetime import datetime

from rich.console import Console
from rich.text import Text

from services.cli.arguments import DEFAULT_TARGET
from services.cli.dump import find_width
from services.cli.run import run_work
from services.cli.trace_tree import PLAIN_WIDTH, draw_trace
from services.client import TenureError, Trace, connect

_WIDTH_MIN = 60


def run_trace(target: str, turn_id: str | None, session_id: str | None, trace_id: str | None) -> int:
    """The exit code is 1 when nothing is remembered of it."""
    return run_work(target, _trace(target, turn_id, session_id, trace_id))


async def _trace(target: str, turn_id: str | None, session_id: str | None, trace_id: str | None) -> int:
    async with connect(target) as client:
        try:
            trace = await client.trace(turn_id, session_id=session_id, trace_id=trace_id)
        except TenureError as error:
            if error.reason != "TRACE_UNKNOWN":
                raise
            print(f"tenure: {explain_absence(error, session_id, target)}", file=sys.stderr)
            return 1
    show_trace(trace)
    return 0


def explain_absence(error: TenureError, session_id: str | None, target: str) -> str:
    """Why there is nothing to draw, and what to ask instead."""
    told = error.message.removeprefix(f"{error.field}: ")
    at = "" if target == DEFAULT_TARGET else f" --target {target}"
    if error.field == "trace_id":
        return f"{told}; a server keeps the newest spans only, and a span only once it has ended"
    where = f"tenure timeline {session_id}{at}" if session_id is not None else f"tenure timeline SESSION{at}"
    return f"{told}. Turns that still run: tenure snapshot{at}. What became of a session's turns: {where}"


def show_trace(trace: Trace) -> None:
    """In colours, and as wide as it is, on a terminal; plain in a pipe."""
    when = datetime.fromtimestamp(trace.spans[0].start_s).astimezone().isoformat(sep=" ", timespec="milliseconds")
    width = find_width()
    lines = draw_trace(trace, max(width or PLAIN_WIDTH, _WIDTH_MIN), when, is_ascii=not _has_signs())
    if width is None:
        print("\n".join(line.plain for line in lines))
    else:
        _print(lines)


def _print(lines: Sequence[Text]) -> None:
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    for line in lines:
        console.print(line, no_wrap=True, crop=True, overflow="ellipsis")


def _has_signs() -> bool:
    try:
        "│├└─█▏…·".encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        return False
    return True
