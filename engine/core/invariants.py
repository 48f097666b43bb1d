"""The checks that prove the books, with findings as data.

They never repair, never log, and never derive a term from what it verifies.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from engine.core.claims import Claim, check_claims
from engine.core.events import SlotState
from engine.core.findings import CheckLevel, Finding, FindingKind, Report
from engine.core.ids import TOKEN_BYTES, pages_for
from engine.core.ownership import CACHE, FREE, Owner, OwnerKind, PoolKind
from engine.core.pools import Pools
from engine.core.queues import Queues
from engine.core.radix import Lock, Node, RadixTree, path_up
from engine.core.request import Holding, Phase, Request
from engine.core.rows import PageTable
from engine.core.session_cache import IDLE_STATES, IdleSlots, SessionSlot
from engine.core.sessions import Session

__all__ = ["Books", "CheckLevel", "Finding", "FindingKind", "Report", "check_books"]


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


FULL = PoolKind.FULL
counters = itemgetter(OwnerKind.FREE, OwnerKind.SESSION, OwnerKind.REQUEST, OwnerKind.CACHE, OwnerKind.QUARANTINED)
"""Both looked up once: asking an enum for a member costs as much as a call, and the busy check runs every step."""


def check_books(books: Books, level: CheckLevel) -> Report:
    """Runs the checks of a level and reports what they found. The busy one costs a few microseconds."""
    if level is CheckLevel.BUSY:
        findings = (*check_equation(books.pools), *check_stacks(books.pools))
    else:
        findings = (*check_equation(books.pools), *(finding for check in FULL_CHECKS for finding in check(books)))
    return Report(level, findings, books.pools.ledger.num_moves)


def check_equation(pools: Pools) -> list[Finding]:
    """available + evictable + protected + session_held + uncached = total, and no term below zero, by the counters."""
    findings: list[Finding] = []
    ledger = pools.ledger
    for pool in ledger.pools:
        counts = ledger.counts(pool)
        protected = ledger.protected_pages if pool is FULL else 0
        free, held, lent, cached, quarantined = counters(counts)
        terms = (free, cached - protected, protected, held, lent)
        total = ledger.size(pool) - 1 - quarantined
        if sum(terms) != total:
            findings.append(Finding("equation", f"{pool}: {' + '.join(map(str, terms))} is not {total}", pool=pool))
        if min(terms) < 0:
            findings.append(Finding("equation", f"{pool}: a term is below zero in {terms}", pool=pool))
    return findings


def check_stacks(pools: Pools) -> list[Finding]:
    """As many units on the free stacks as the counters say. What the difference means, only the full check can tell."""
    findings: list[Finding] = []
    for pool in pools.ledger.pools:
        counted, stacked = pools.ledger.count(pool, OwnerKind.FREE), pools.free(pool)
        if counted != stacked:
            findings.append(Finding("equation", f"{pool}: {counted} free by the ledger, {stacked} stacked", pool=pool))
    return findings


def check_owners(books: Books) -> Iterator[Finding]:
    """Free stacks, tree, holders and draining lists, against the ledger unit by unit."""
    nodes = tuple(books.tree.nodes())
    claims: dict[PoolKind, list[Claim]] = {
        pool: [Claim("census", "the free stack", FREE, books.pools.free_units(pool))]
        for pool in books.pools.ledger.pools
    }
    full = claims[PoolKind.FULL]
    full.append(Claim("census", "the tree", CACHE, [page for node in nodes for page in node.pages]))
    for name, owner, kv in books.holders():
        full.append(Claim("holders", name, owner, kv.pages))
        if kv.req_pool_idx is not None:
            claims[PoolKind.ROWS].append(Claim("holders", name, owner, (kv.req_pool_idx,)))
    for drain in books.pools.draining:
        full.append(Claim("holders", f"draining until {drain.until}", drain.owner, drain.pages))
    for pool, claimed in claims.items():
        yield from check_claims(books.pools.ledger, pool, claimed)
    protected = sum(len(node.pages) for node in nodes if node.lock_count > 0)
    if protected != books.pools.ledger.protected_pages:
        message = f"{protected} pages of the tree are locked, {books.pools.ledger.protected_pages} are counted"
        yield Finding("census", message, pool=PoolKind.FULL)


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
        if slot.state is not SlotState.HELD and _holds(kv):
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
        for turn_id, turn in session.live.items():
            request = live.get(turn.rid)
            if request is None or request.turn_id != turn_id or request.outcome is not None:
                yield Finding("session", f"{session.session_id!r}: turn {turn_id!r} (rid {turn.rid}) is not live")
    for request in live.values():
        if request.phase is Phase.WAITING and _holds(request.kv):
            yield Finding("session", f"rid {request.rid} waits and holds KV")
    yield from _check_queue(books, Phase.WAITING, books.queues.waiting)
    yield from _check_queue(books, Phase.RUNNING, books.queues.running)


def _check_queue(books: Books, phase: Phase, queue: Sequence[Request]) -> Iterator[Finding]:
    """Live requests of a phase are those in its queue, each once."""
    queued = Counter(request.rid for request in queue)
    due = Counter(request.rid for request in books.queues.live.values() if request.phase is phase)
    for rid in sorted((queued - due) + (due - queued)):
        yield Finding("session", f"rid {rid} is {queued[rid]} times in the {phase} queue, {due[rid]} times due there")


def _holds(kv: Holding) -> bool:
    return bool(kv.pages) or kv.lock is not None or kv.req_pool_idx is not None


FULL_CHECKS = (
    check_owners,
    check_tree,
    check_holdings,
    check_slots,
    check_reclaimable,
    check_sessions,
)
