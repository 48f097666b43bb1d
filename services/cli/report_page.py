"""`tenure report`: the last minutes of a server as one HTML page, to look at and to pass on."""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from services.cli.run import run_work
from services.client import connect
from services.report.page import Server, find_span, render_report
from services.report.scales import Span, format_length


def run_report(target: str, path: Path, last_s: float | None) -> int:
    """Writes the page to `path`, whole or not at all. `last_s`: so many seconds back; None is all that is kept."""
    return run_work(target, _report(target, path, last_s))


async def _report(target: str, path: Path, last_s: float | None) -> int:
    async with connect(target) as client:
        history = await client.history(last_s)
        incidents = await client.incidents()
        model = await client.model()
        settings = await client.config()
    zone = datetime.now().astimezone().tzinfo or UTC
    page = render_report(history, incidents, Server(model.name, target, settings, zone))
    try:
        size = write_whole(path, page)
    except OSError as error:
        print(f"tenure: {path} can not be written: {error.strerror or error}", file=sys.stderr)
        return 1
    print(describe_page(path, find_span(history, zone), size))
    return 0


def write_whole(path: Path, page: str) -> int:
    """The size in bytes. A reader of `path` sees the old page or the new one. Raises OSError, and leaves nothing."""
    content = page.encode()
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    return len(content)


def describe_page(path: Path, span: Span, size: int) -> str:
    """As in `report.html: 14:02:03 to 14:12:03 (10 min), 312 kB`."""
    times = f"{span.clock(span.start_s)} to {span.clock(span.end_s)} ({format_length(span.length_s)})"
    return f"{path}: {times}, {max(size // 1000, 1):,} kB"
