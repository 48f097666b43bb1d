"""Faults planted on purpose, so that what the checks do about a real one can be seen and tested."""

from enum import StrEnum
from typing import assert_never

from engine.core.errors import Refusal, RefusalReason
from engine.core.events import SlotState
from engine.core.invariants import Books
from engine.core.ownership import PoolKind
from engine.core.provenance import UnitHistory


class Fault(StrEnum):
    LEAK = "leak"
    """A page that somebody had and gave back is in nobody's list any more. The check quarantines it."""
    DOUBLE_OWNER = "double_owner"
    """A page that the prefix cache or a session has is free to be taken as well. The check halts."""


def plant_fault(books: Books, fault: Fault) -> UnitHistory:
    """Breaks the books of the full pool. Returns the page concerned, with its history.

    Raises Refusal (FAULT_IMPOSSIBLE), and then nothing has changed, when there is no page to do it with.
    """
    match fault:
        case Fault.LEAK:
            page = books.pools.lose_free_unit(PoolKind.FULL)
            missing = "no free page was ever owned"
        case Fault.DOUBLE_OWNER:
            page = _find_held_page(books)
            missing = "neither the prefix cache nor an idle session has a page"
            if page is not None:
                books.pools.stack_held_unit(PoolKind.FULL, page)
        case _:
            assert_never(fault)
    if page is None:
        message = f"{fault} can't be planted: {missing}; run a longer turn, or close a session, first"
        raise Refusal(RefusalReason.FAULT_IMPOSSIBLE, message, field="fault", value=fault)
    return books.pools.ledger.explain(PoolKind.FULL, page)


def _find_held_page(books: Books) -> int | None:
    """A session's page, else one of the cache; none of a running turn, which might give it back before the check."""
    for slot in books.slots():
        if slot.state is SlotState.HELD and slot.kv.pages:
            return slot.kv.pages[0]
    node = next(books.tree.nodes(), None)
    return node.pages[0] if node is not None else None
