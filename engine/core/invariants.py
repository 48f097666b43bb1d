"""The checks that prove the books, with findings as data.

They never repair, never log, and never derive a term from what it verifies.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from engine.core.events import SlotState
from engine.core.ids import TOKEN_BYTES, pages_for
from engine.core.ownership import CACHE, FREE, Owner, OwnerKind, PoolKind
from engine.core.pools import Pools
from engine.core.queues import Queues
from engine.core.radix import Lock, Node, RadixTree, path_up
from engine.core.request import Holding, Phase
from engine.core.rows import PageTable
from engine.core.session_cache import IDLE_STATES, IdleSlots, SessionSlot
from engine.core.sessions import Session


class CheckLevel(StrEnum):
    BUSY = "busy"
    """The equation of every pool, from counters: O(1)."""
    FULL = "full"
    """Three tellings page by page, the tree, slots, sessions, rows: O(pages)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One law that does not hold. `law`: equation, census, holders, tree, holding, slot, reclaimable or session."""

    law: str
    message: str


@dataclass(frozen=True, slots=True)
class Report:
    level: CheckLevel
    findings: tuple[Finding, ...]

    @property
    def is_clean(self) -> bool:
        return not self.findings


@dataclass(frozen=True, slots=True)
class Books:
    """All that the full check looks at. `slots`, `idle` and `sessions` are asked anew at each check."""

    page_size: int
    pools: Pools
    table: PageTable
    tree: RadixTree
    queues: Queues
    slots: Callable[[], tuple[SessionSlot, ...]]
    idle: Callable[[], IdleSlots]
    sessions: Callable[[], tuple[Session, ...]]

    def holders(self) -> Iterator[tuple[str, Owner, Holding]]:
        """Everyone who may hold KV, by name: live requests in any phase, then slots."""
        for request in self.queues.live.values():
            yield f"rid {request.rid} ({request.phase})", request.owner, request.kv
        for slot in self.slots():
            yield f"slot of {slot.session.session_id!r} ({slot.state})", slot.owner, slot.kv


def check_books(books: Books, level: CheckLevel) -> Report:
    """Runs the checks of a level and reports what they found."""
    checks = (check_equation,) if level is CheckLevel.BUSY else FULL_CHECKS
    return Report(level, tuple(finding for check in checks for finding in check(books)))


def check_equation(books: Books) -> Iterator[Finding]:
    """available + evictable + protected + session_held + uncached = total, and no term below zero."""
    for pool in books.pools.ledger.pools:
        told = books.pools.books(pool)
        terms = (told.available, told.evictable, told.protected, told.session_held, told.uncached)
        if sum(terms) != told.total:
            yield Finding("equation", f"{pool}: {' + '.join(map(str, terms))} is not {told.total}")
        if min(terms) < 0:
            yield Finding("equation", f"{pool}: a term is below zero in {terms}")
        if told.available != books.pools.free(pool):
            yield Finding("equation", f"{pool}: {told.available} free by the ledger, {books.pools.free(pool)} stacked")


def check_census(books: Books) -> Iterator[Finding]:
    """Walks the free stacks and the tree: each page once, each the owner's that the ledger says, sums as counted."""
    ledger = books.pools.ledger
    for pool in ledger.pools:
        yield from _owned(books, "census", pool, "free stack", books.pools.free_units(pool), FREE)
    nodes = tuple(books.tree.nodes())
    pages = [page for node in nodes for page in node.pages]
    yield from _owned(books, "census", PoolKind.FULL, "tree", pages, CACHE)
    if len(pages) != ledger.count(PoolKind.FULL, OwnerKind.CACHE):
        yield Finding(
            "census", f"{len(pages)} pages in the tree, {ledger.count(PoolKind.FULL, OwnerKind.CACHE)} counted"
        )
    protected = sum(len(node.pages) for node in nodes if node.lock_count > 0)
    if protected != ledger.protected_pages:
        yield Finding("census", f"{protected} pages of the tree are locked, {ledger.protected_pages} are counted")


def check_holders(books: Books) -> Iterator[Finding]:
    """Sums what live holders and draining lists say they hold, against the ledger's counters, page by page."""
    ledger = books.pools.ledger
    sums: Counter[tuple[PoolKind, OwnerKind]] = Counter()
    seen: set[tuple[PoolKind, int]] = set()
    for name, owner, kv in books.holders():
        rows = [] if kv.req_pool_idx is None else [kv.req_pool_idx]
        for pool, units in ((PoolKind.FULL, kv.pages), (PoolKind.ROWS, rows)):
            yield from _owned(books, "holders", pool, name, units, owner)
            yield from _claimed_once(pool, name, units, seen)
            sums[pool, owner.kind] += len(units)
    for drain in books.pools.draining:
        name = f"draining until {drain.until}"
        yield from _owned(books, "holders", PoolKind.FULL, name, drain.pages, drain.owner)
        yield from _claimed_once(PoolKind.FULL, name, drain.pages, seen)
        sums[PoolKind.FULL, drain.owner.kind] += len(drain.pages)
    for pool in ledger.pools:
        for kind in (OwnerKind.REQUEST, OwnerKind.SESSION):
            if sums[pool, kind] != ledger.count(pool, kind):
                message = f"{pool}: {kind} holders list {sums[pool, kind]}, {ledger.count(pool, kind)} are counted"
                yield Finding("holders", message)


def _claimed_once(
    pool: PoolKind, name: str, units: Iterable[int], seen: set[tuple[PoolKind, int]]
) -> Iterator[Finding]:
    """Across all holders: two claims of one unit by one owner would hide a leak of another in the sums."""
    for unit in units:
        if (pool, unit) in seen:
            yield Finding("holders", f"{pool} {unit} is listed by {name}, and before")
        seen.add((pool, unit))


def _owned(books: Books, law: str, pool: PoolKind, name: str, units: Iterable[int], owner: Owner) -> Iterator[Finding]:
    seen: set[int] = set()
    for unit in units:
        told = books.pools.ledger.owner(pool, unit)
        if told != owner:
            yield Finding(law, f"{pool} {unit} is listed by {name}, but belongs to {told}")
        if unit in seen or unit == 0:
            yield Finding(law, f"{pool} {unit} is listed twice by {name}, or is padding")
        seen.add(unit)


def check_tree(books: Books) -> Iterator[Finding]:
    """Links, keys, and lock counts that are exactly the live locks running through each node."""
    locks: Counter[int] = Counter()
    idles: Counter[int] = Counter()
    for _, _, kv in books.holders():
        for number in _numbers_under(kv.lock):
            locks[number] += 1
            idles[number] += kv.lock is not None and kv.lock.is_idle
    idle_pages = 0
    for node in books.tree.nodes():
        yield from _check_node(node, books.page_size)
        if (locks[node.number], idles[node.number]) != (node.lock_count, node.idle_count):
            message = (
                f"node {node.number}: {node.lock_count} locks ({node.idle_count} idle) counted, "
                f"{locks[node.number]} ({idles[node.number]}) held"
            )
            yield Finding("tree", message)
        idle_pages += len(node.pages) if node.is_idle else 0
    if idle_pages != books.tree.idle_pages:
        yield Finding("tree", f"{idle_pages} pages are locked by idle slots only, {books.tree.idle_pages} are counted")


def _numbers_under(lock: Lock | None) -> Iterator[int]:
    return (node.number for node in path_up(lock.node)) if lock is not None else iter(())


def _check_node(node: Node, page_size: int) -> Iterator[Finding]:
    page_bytes = page_size * TOKEN_BYTES
    if not node.pages or len(node.key) != len(node.pages) * page_bytes:
        yield Finding("tree", f"node {node.number}: {len(node.key)} bytes of key for {len(node.pages)} pages")
    if node.parent is None or node.parent.children.get(node.key[:page_bytes]) is not node:
        yield Finding("tree", f"node {node.number}: its parent does not know it")


def check_holdings(books: Books) -> Iterator[Finding]:
    """Lengths and page tables: protected ≤ committed ≤ allocated, the pages for that, and a row that says the same."""
    for name, _, kv in books.holders():
        lengths = (kv.cache_protected_len, kv.kv_committed_len, kv.kv_allocated_len)
        if kv.cache_protected_len % books.page_size or list(lengths) != sorted(lengths):
            yield Finding("holding", f"{name}: protected, committed, allocated = {lengths}")
        locked = len(kv.lock.pages()) if kv.lock is not None else 0
        if locked * books.page_size != kv.cache_protected_len:
            yield Finding("holding", f"{name}: locks {locked} pages for {kv.cache_protected_len} protected tokens")
        if kv.num_pages(books.page_size) < pages_for(kv.kv_allocated_len, books.page_size):
            yield Finding("holding", f"{name}: {kv.num_pages(books.page_size)} pages for {kv.kv_allocated_len} tokens")
        if kv.req_pool_idx is not None:
            pages = kv.all_pages()
            if list(books.table.row(kv.req_pool_idx)[: len(pages)]) != pages:
                yield Finding("holding", f"{name}: row {kv.req_pool_idx} does not say what it holds")


def check_slots(books: Books) -> Iterator[Finding]:
    """A slot holds KV exactly while HELD, within its history; a lent one has exactly one live lessee."""
    live = books.queues.live
    for slot in books.slots():
        name, kv = f"slot of {slot.session.session_id!r} ({slot.state})", slot.kv
        if slot.state is SlotState.HELD and kv.kv_committed_len > slot.session.history_len - 1:
            yield Finding(
                "slot", f"{name}: {kv.kv_committed_len} tokens of KV for {slot.session.history_len} of history"
            )
        if slot.state is SlotState.HELD and kv.kv_committed_len != kv.kv_allocated_len:
            yield Finding("slot", f"{name}: {kv.kv_committed_len} committed, {kv.kv_allocated_len} allocated")
        if slot.state is not SlotState.HELD and (kv.pages or kv.lock is not None or kv.req_pool_idx is not None):
            yield Finding("slot", f"{name}: holds KV")
        is_lent = slot.state not in IDLE_STATES
        if is_lent != (slot.lessee is not None) or (slot.lessee is not None and slot.lessee not in live):
            yield Finding("slot", f"{name}: lessee {slot.lessee}")


def check_reclaimable(books: Books) -> Iterator[Finding]:
    """What counts as reclaimable is found when room is made: idle slots in their orders, free leaves on the heap."""
    held = [slot for slot in books.slots() if slot.state is SlotState.HELD]
    idle = books.idle()
    if sorted(idle.uids) != sorted(slot.session.uid for slot in held):
        yield Finding("reclaimable", f"slots {sorted(idle.uids)} are in line to give way, others are held")
    with_rows = sorted(slot.session.uid for slot in held if slot.kv.req_pool_idx is not None)
    if sorted(idle.uids_with_row) != with_rows:
        yield Finding(
            "reclaimable", f"slots {sorted(idle.uids_with_row)} are in line to give a row, {with_rows} have one"
        )
    pages = sum(len(slot.kv.pages) for slot in held)
    if pages != idle.num_pages:
        yield Finding("reclaimable", f"idle slots hold {pages} pages, {idle.num_pages} are counted")
    offered = books.tree.offered()
    for node in books.tree.nodes():
        if not node.children and node.lock_count == 0 and node.number not in offered:
            yield Finding("reclaimable", f"node {node.number} could be evicted, but would not be found")


def check_sessions(books: Books) -> Iterator[Finding]:
    """The right to run belongs to live turns only, and waiting turns hold nothing."""
    live = books.queues.live
    for session in books.sessions():
        for turn_id, rid in session.live.items():
            if rid not in live or live[rid].turn_id != turn_id or live[rid].outcome is not None:
                yield Finding("session", f"{session.session_id!r}: turn {turn_id!r} (rid {rid}) is not live")
    for request in live.values():
        kv = request.kv
        if request.phase is Phase.WAITING and (kv.pages or kv.lock is not None or kv.req_pool_idx is not None):
            yield Finding("session", f"rid {request.rid} waits and holds KV")
        if (request in books.queues.waiting) != (request.phase is Phase.WAITING):
            yield Finding("session", f"rid {request.rid} is {request.phase}, the waiting queue says otherwise")
        if (request in books.queues.running) != (request.phase is Phase.RUNNING):
            yield Finding("session", f"rid {request.rid} is {request.phase}, the running queue says otherwise")


FULL_CHECKS = (
    check_equation,
    check_census,
    check_holders,
    check_tree,
    check_holdings,
    check_slots,
    check_reclaimable,
    check_sessions,
)
