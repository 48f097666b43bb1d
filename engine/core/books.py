"""All that the checks look at, and what they call it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine.core.holding import Holding
from engine.core.matcher import Matcher
from engine.core.ownership import Owner
from engine.core.pools import Pools
from engine.core.queues import Queues
from engine.core.radix import RadixTree
from engine.core.request import Request
from engine.core.rows import PageTable
from engine.core.session_cache import IdleSlots, SessionSlot
from engine.core.sessions import Session

HOLDER_UNITS = 16
NODE_UNITS = 8
LOOK_UNITS = 2
"""What it costs to look into a holder, slot or session, at a node, or a name up: about as much as at so many pages."""


@dataclass(frozen=True, slots=True)
class Books:
    """`slots`, `idle` and `sessions` are asked anew at each check."""

    matcher: Matcher
    pools: Pools
    table: PageTable
    tree: RadixTree
    queues: Queues
    slots: Callable[[], tuple[SessionSlot, ...]]
    idle: Callable[[], IdleSlots]
    sessions: Callable[[], tuple[Session, ...]]

    @property
    def page_size(self) -> int:
        return self.matcher.page_size

    def holders(self) -> Iterator[tuple[str, Owner, Holding]]:
        """Everyone who may hold KV, by name: live requests in any phase, then slots."""
        for request in self.queues.live.values():
            yield name_of_request(request), request.owner, request.kv
        for slot in self.slots():
            yield name_of_slot(slot), slot.owner, slot.kv


def name_of_request(request: Request) -> str:
    return f"rid {request.rid} ({request.phase})"


def name_of_slot(slot: SessionSlot) -> str:
    return f"slot of {slot.session.session_id!r} ({slot.state})"
