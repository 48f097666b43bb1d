"""The parts of a core, wired as the facade wires them but each within reach: for tests of one module."""

from dataclasses import dataclass

from engine.core.commands import Open
from engine.core.config import CoreConfig
from engine.core.events import CoreEvent, EventLog
from engine.core.ids import Rid, SessionId, TurnId, pack_ids
from engine.core.invariants import Books
from engine.core.pools import Pools
from engine.core.prefix_cache import RadixCache
from engine.core.queues import Queues
from engine.core.radix import RadixTree
from engine.core.request import Request
from engine.core.rows import PageTable
from engine.core.sampling import GREEDY
from engine.core.session_cache import SessionAwareCache
from engine.core.sessions import Session, SessionController


@dataclass(frozen=True, slots=True)
class CoreParts:
    page_size: int
    log: EventLog
    pools: Pools
    table: PageTable
    tree: RadixTree
    radix: RadixCache
    slots: SessionAwareCache
    queues: Queues
    sessions: SessionController
    books: Books

    def events(self, *kinds: type) -> list[CoreEvent]:
        """What was told since the last call, of these kinds (all without any)."""
        told = [numbered.event for numbered in self.log.take()]
        return [event for event in told if not kinds or isinstance(event, kinds)]

    def open_session(self, name: str = "s") -> Session:
        """A streaming session with an empty slot."""
        session = self.sessions.open(Open(SessionId(name), streaming=True), 0.0)
        self.slots.open_session(session)
        return session

    def request(self, rid: int, ids: list[int], session: Session | None = None, base_len: int = 0) -> Request:
        """A request among the live ones, that waits and holds nothing."""
        request = Request(
            rid=Rid(rid),
            turn_id=TurnId(f"t{rid}"),
            session=session,
            parent=None,
            namespace=session.namespace if session is not None else "",
            ids=bytearray(pack_ids(ids)),
            base_len=base_len,
            prompt_len=len(ids),
            max_tokens=8,
            ignore_eos=False,
            sampling=GREEDY,
            arrival=rid,
            trace_id="",
        )
        self.queues.live[request.rid] = request
        self.queues.wait(request)
        return request


def make_parts(page_size: int = 4, pool_pages: int = 17, num_rows: int = 5) -> CoreParts:
    """Pools of `pool_pages` - 1 pages and `num_rows` - 1 rows."""
    log = EventLog()
    pools = Pools(pool_pages, num_rows, log)
    table = PageTable(num_rows, pages_per_row=pool_pages)
    tree = RadixTree(page_size, pools)
    radix = RadixCache(page_size, pools, table, tree)
    slots = SessionAwareCache(radix, page_size, pools, table, tree, log)
    queues = Queues()
    config = CoreConfig(page_size, pool_pages, num_rows, context_len=64, vocab_size=1000)
    sessions = SessionController(config, log)
    books = Books(page_size, pools, table, tree, queues, slots.slots, slots.idle, sessions.all)
    return CoreParts(page_size, log, pools, table, tree, radix, slots, queues, sessions, books)
