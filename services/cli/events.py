"""`tenure events`: shows what happens to the books of a running server, or proves that it says all of it."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from services.cli.arguments import DEFAULT_TARGET, Place
from services.cli.dump import find_width
from services.cli.event_lines import format_event, format_image, format_place
from services.cli.run import run_work
from services.client import (
    Client,
    KvBooks,
    KvBooksError,
    KvBooksImage,
    KvEventInfo,
    PoolStats,
    connect,
)
from services.client.asking import LONG_S
from services.client.kv_events import KvItem

_PAUSE_S = 0.02
"""Between two comparisons."""
_WIDTH_FULL = 120
"""Columns of a terminal from which on names are shown whole."""


def run_events(target: str, since: Place | None) -> int:
    return run_work(target, _show(target, since))


def run_verify(target: str, seconds: float) -> int:
    """The exit code is 1 when the books by the events are not those that the server shows."""
    return run_work(target, _verify(target, seconds))


async def _show(target: str, since: Place | None) -> int:
    shown = _Shown(since)
    from_sequence, log_id = (None, None) if since is None else (since[0] + 1, since[1])
    try:
        async with connect(target) as client, aclosing(client.kv_events(from_sequence, log_id)) as items:
            async for item in items:
                shown.show(item)
    finally:
        if shown.last is not None:
            at = "" if target == DEFAULT_TARGET else f" --target {target}"
            print(f"tenure: to go on from here: tenure events --since {format_place(shown.last)}{at}", file=sys.stderr)
    return 0


@dataclass(slots=True)
class _Shown:
    """What was printed so far."""

    last: Place | None
    """The last event that is known to whoever reads it."""

    def show(self, item: KvItem) -> None:
        """Names are shortened on a terminal that has not much room."""
        if isinstance(item, KvEventInfo):
            width = find_width()
            print(format_event(item, is_short=width is not None and width < _WIDTH_FULL), flush=True)
            assert self.last is not None, "the stream begins with the books, or after a place"
            self.last = (item.sequence, self.last[1])
            return
        if self.last is not None:
            print("tenure: the server's log has not, or no longer, what was to come: books anew", file=sys.stderr)
        print(format_image(item), flush=True)
        self.last = (item.sequence, item.log_id)


@dataclass(slots=True)
class Verification:
    """What was compared so far."""

    comparisons: int = 0
    events: int = 0
    lapped: int = 0
    """How often the server had to send its books anew."""
    difference: str = ""
    """The first that was found, of several lines; the verification ends with it."""


async def _verify(target: str, seconds: float) -> int:
    async with connect(target) as client:
        found = await verify(client, seconds)
    print(format_verification(found))
    return 1 if found.difference else 0


async def verify(client: Client, seconds: float) -> Verification:
    """Follows the stream, and compares with the server's own numbers again and again. Raises TenureError."""
    found = Verification()
    async with aclosing(client.kv_events()) as items:
        first = await anext(items)
        assert isinstance(first, KvBooksImage), "the stream begins with the books"
        books, end_s = KvBooks(first), time.monotonic() + seconds
        while not found.difference and (found.comparisons == 0 or time.monotonic() < end_s):
            stats = await client.pools()
            try:
                async with asyncio.timeout(LONG_S):
                    is_there = await _follow(items, books, stats, found)
            except TimeoutError:
                found.difference = f"event {stats.kv_sequence} has not come within {LONG_S:g} s"
            except KvBooksError as error:
                found.difference = str(error)
            else:
                if is_there:
                    found.comparisons += 1
                    found.difference = _compare(books, stats)
            await asyncio.sleep(_PAUSE_S)
    return found


async def _follow(
    items: AsyncGenerator[KvBooksImage | KvEventInfo, None], books: KvBooks, stats: PoolStats, found: Verification
) -> bool:
    """Replays up to the last event that is in `stats`. False when books came anew that are further."""
    while books.sequence < stats.kv_sequence and books.log_id == stats.kv_log_id:
        item = await anext(items)
        books.apply(item)
        found.events += isinstance(item, KvEventInfo)
        found.lapped += isinstance(item, KvBooksImage)
    return books.sequence == stats.kv_sequence or books.log_id != stats.kv_log_id


def _compare(books: KvBooks, stats: PoolStats) -> str:
    if books.log_id != stats.kv_log_id:
        return f"the stream is of log {books.log_id}, the pools of {stats.kv_log_id}"
    differences = books.find_differences(stats)
    return "\n".join((f"after event {books.sequence}:", *differences)) if differences else ""


def format_verification(found: Verification) -> str:
    """A line that says all is well, or what is not."""
    counts = f"{found.comparisons} comparisons, {found.events:,} events"
    counts += f", {found.lapped} times too slow: books anew" if found.lapped else ""
    if found.difference:
        return f"THE EVENTS DO NOT LEAD TO THE BOOKS; please report this ({counts}):\n{found.difference}"
    return f"the books by the events are the server's in every pool ({counts})"
