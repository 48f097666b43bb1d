"""The parts of a core that are measured alone, and the turns that the cases give them."""

from dataclasses import dataclass
from itertools import count

from engine.core.config import CoreConfig
from engine.core.events import EventLog
from engine.core.ids import Rid, TurnId, pack_ids
from engine.core.ownership import Owner, OwnerKind
from engine.core.plan import StepPlan, StepResult
from engine.core.pools import Pools
from engine.core.radix import RadixTree
from engine.core.radix_cache import RadixCache
from engine.core.request import Request
from engine.core.rows import PageTable
from engine.core.sampling import GREEDY
from engine.core.session_cache import SessionAwareCache
from engine.core.sessions import Session, SessionController

VOCAB = 50_000
SAMPLED = 7
"""The id that every step yields here."""
NUM_ROWS = 8


@dataclass(frozen=True, slots=True)
class Parts:
    page_size: int
    log: EventLog
    pools: Pools
    table: PageTable
    tree: RadixTree
    radix: RadixCache
    slots: SessionAwareCache
    sessions: SessionController


def make_parts(page_size: int, pool_pages: int, pages_per_row: int = 1) -> Parts:
    """The facade's wiring without its scheduler; the pool has `pool_pages` pages besides the padding."""
    log = EventLog()
    pools = Pools(pool_pages + 1, NUM_ROWS, log)
    table = PageTable(NUM_ROWS, pages_per_row)
    tree = RadixTree(page_size, pools)
    config = CoreConfig(page_size, pool_pages + 1, NUM_ROWS, context_len=pages_per_row * page_size, vocab_size=VOCAB)
    radix = RadixCache(tree.matcher, config.cut_back_max, config.checkpoint_interval, pools, table, tree)
    slots = SessionAwareCache(radix, page_size, pools, table, tree, log)
    return Parts(page_size, log, pools, table, tree, radix, slots, SessionController(config, log))


def grant_pages(parts: Parts, owner: Owner, num_pages: int) -> list[int]:
    """Pages of the pool, which has so many."""
    granted = parts.pools.grant(owner, num_pages)
    assert granted is not None, "the pool is empty"
    return granted.pages


def request_owner(rid: int) -> Owner:
    return Owner(OwnerKind.REQUEST, rid)


def make_ids(num_tokens: int, seed: int = 0) -> bytes:
    """Ids without repetition that a search could profit from: a walk through the vocabulary, another one a seed."""
    return pack_ids((seed * 7919 + position * 31 + (position >> 7)) % VOCAB for position in range(num_tokens))


def make_request(rid: int, ids: bytes, session: Session | None = None, base_len: int = 0) -> Request:
    """A waiting request that holds nothing."""
    return Request(
        rid=Rid(rid),
        turn_id=TurnId(f"t{rid}"),
        session=session,
        namespace="",
        ids=bytearray(ids),
        base_len=base_len,
        prompt_len=len(ids) // 4,
        max_tokens=16,
        ignore_eos=True,
        sampling=GREEDY,
        rank=(rid, rid),
        trace_id="",
    )


def answer(plan: StepPlan) -> StepResult:
    """What an executor would say, with the same id for every sample."""
    return StepResult(plan.step, tuple((SAMPLED,) * row.num_samples for row in plan.rows))


class Minter:
    """Rids and turn ids, each once."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def next(self) -> tuple[Rid, TurnId]:
        number = next(self._numbers)
        return Rid(number), TurnId(f"t{number}")
