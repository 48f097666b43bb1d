"""Has the prefix cache flushed bit by bit, so that turns go on meanwhile."""

from engine.core.commands import Flush, Flushed
from engine.core.core import Core
from engine.runtime.inbox import Inbox

EVICTIONS_AT_ONCE = 256
"""Some 5 ms of the loop, with all that is told of them."""


async def flush_cache(core: Core, inbox: Inbox) -> Flushed:
    """All that nobody uses now. What turns leave behind meanwhile is theirs: a busy server is not flushed for ever.

    Raises EngineClosed, and Refusal, QUEUE_FULL.
    """
    cached = sum(books.evictable for books in core.snapshot().pools)
    total = Flushed(0, is_complete=False)
    while not total.is_complete and total.pages + total.swa_pages + total.states <= cached:
        flushed = await inbox.send(Flush(EVICTIONS_AT_ONCE))
        assert isinstance(flushed, Flushed), "the core says what it freed"
        total = total.plus(flushed)
    return total
