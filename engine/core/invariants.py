"""The checks that prove the books, with findings as data.

They never repair, never log, and never derive a term from what it verifies. The full check is a row of generators that
yield after every piece of work: drained it is the whole check, stopped and gone on with a sliced one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from engine.core.books import HOLDER_UNITS, LOOK_UNITS, NODE_UNITS, Books, name_of_slot
from engine.core.claims import Listing, check_claims
from engine.core.events import SlotState
from engine.core.findings import CheckLevel, Finding, FindingKind, Report, Tally, Work
from engine.core.holding import Holding
from engine.core.holding_checks import check_holding
from engine.core.ids import Rid
from engine.core.ownership import CACHE, FREE, PoolKind
from engine.core.pools import Pools
from engine.core.releases import own_units
from engine.core.request import Phase, Request
from engine.core.session_cache import IDLE_STATES, SessionSlot
from engine.core.tree_checks import check_lines, check_tree

__all__ = ["Books", "CheckLevel", "Finding", "FindingKind", "Report", "check_books"]

TOLD_MAX = 16
"""Names that a message tells of many."""


FULL, SWA, MAMBA = PoolKind.FULL, PoolKind.SWA, PoolKind.MAMBA
"""Looked up once: asking an enum for a member costs as much as a call, and the busy check runs every step."""


def check_books(books: Books, level: CheckLevel) -> Report:
    """Runs the checks of a level and reports what they found. The busy one costs a few microseconds."""
    num_moves = books.pools.ledger.num_moves
    if level is CheckLevel.BUSY:
        return Report(level, tuple(check_equation(books.pools, are_stacks_counted=True)), num_moves)
    tally = Tally()
    tally.run(full_check(books))
    return tally.report(level, num_moves)


def full_check(books: Books) -> Iterator[Work]:
    """All pools, rows, tree, sessions and slots. Void as soon as anything of the books changes: then begin again."""
    yield from check_equation(books.pools)
    for check in FULL_CHECKS:
        yield from check(books)


def check_equation(pools: Pools, *, are_stacks_counted: bool = False) -> list[Finding]:
    """available + evictable + protected + session_held + uncached = total, and no term below zero, by the counters.

    With `are_stacks_counted` as many units are on the free stacks as the counters say, too. What a difference there
    means, only the full check can tell.
    """
    findings: list[Finding] = []
    ledger = pools.ledger
    for (pool, size, counts), stack in zip(ledger.tallies, pools.stacks, strict=True):
        free, lent, held, cached, quarantined = counts.values()  # by place: each look-up by name hashes an enum
        protected = ledger.protected(pool)
        evictable, total = cached - protected, size - 1 - quarantined
        if free + evictable + protected + held + lent != total:
            terms = f"{free} + {evictable} + {protected} + {held} + {lent}"
            findings.append(Finding("equation", f"{pool}: {terms} is not {total}", pool=pool))
        if free < 0 or evictable < 0 or protected < 0 or held < 0 or lent < 0:
            terms = f"{(free, evictable, protected, held, lent)}"
            findings.append(Finding("equation", f"{pool}: a term is below zero in {terms}", pool=pool))
        if are_stacks_counted and len(stack) != free:
            message = f"{pool}: {free} free by the ledger, {len(stack)} stacked"
            findings.append(Finding("equation", message, pool=pool))
    return findings


def check_owners(books: Books) -> Iterator[Work]:
    """Free stacks, tree, holders and draining lists, against the ledger unit by unit."""
    ledger = books.pools.ledger
    for pool in ledger.pools:
        yield from check_claims(ledger, pool, partial(LISTINGS[pool], books))


def _list_pages(books: Books) -> Iterator[Listing]:
    yield Listing("census", "the free stack", FREE, (books.pools.free_units(FULL),))
    yield Listing("census", "the tree", CACHE, (node.pages for node in books.tree.nodes()))
    for name, owner, kv in books.holders():
        yield Listing("holders", name, owner, (kv.pages,))
    yield from _list_draining(books, FULL)


def _list_windows(books: Books) -> Iterator[Listing]:
    yield Listing("census", "the free stack", FREE, (books.pools.free_units(SWA),))
    yield Listing("census", "the tree", CACHE, (node.swa for node in books.tree.nodes()))
    for name, owner, kv in books.holders():
        yield Listing("holders", name, owner, (list(kv.swa.values()),))
    yield from _list_draining(books, SWA)


def _list_states(books: Books) -> Iterator[Listing]:
    yield Listing("census", "the free stack", FREE, (books.pools.free_units(MAMBA),))
    yield Listing("census", "the tree", CACHE, (node.units(MAMBA) for node in books.tree.nodes()))
    for name, owner, kv in books.holders():
        yield Listing("holders", name, owner, (kv.state_slots(),))
    yield from _list_draining(books, MAMBA)


def _list_draining(books: Books, pool: PoolKind) -> Iterator[Listing]:
    for drain in books.pools.draining:
        if drain.pool is pool:
            yield Listing("holders", f"draining until {drain.until}", drain.owner, (drain.pages,))


def _list_rows(books: Books) -> Iterator[Listing]:
    yield Listing("census", "the free stack", FREE, (books.pools.free_units(PoolKind.ROWS),))
    for name, owner, kv in books.holders():
        if kv.req_pool_idx is not None:
            yield Listing("holders", name, owner, ((kv.req_pool_idx,),))


def check_holdings(books: Books) -> Iterator[Work]:
    """Lengths and page tables of every holder."""
    for name, _, kv in books.holders():
        yield from check_holding(books, name, kv)
        yield HOLDER_UNITS


def check_slots(books: Books) -> Iterator[Work]:
    """Every slot, and its lessee."""
    for slot in books.slots():
        yield from check_slot(slot, books.queues.live)
        yield HOLDER_UNITS


def check_slot(slot: SessionSlot, live: Mapping[Rid, Request]) -> Iterator[Finding]:
    """It holds KV exactly while HELD, within its history; a lent one has exactly one live lessee."""
    name, kv, history_len = name_of_slot(slot), slot.kv, slot.session.history_len
    if slot.state is SlotState.HELD and kv.kv_committed_len > history_len - 1:
        yield Finding("slot", f"{name}: {kv.kv_committed_len} tokens of KV for {history_len} of history")
    if slot.state is SlotState.HELD and kv.kv_committed_len != kv.kv_allocated_len:
        yield Finding("slot", f"{name}: {kv.kv_committed_len} committed, {kv.kv_allocated_len} allocated")
    if slot.state is not SlotState.HELD and _holds(kv):
        yield Finding("slot", f"{name}: holds KV")
    is_lent = slot.state not in IDLE_STATES
    if is_lent != (slot.lessee is not None) or (slot.lessee is not None and slot.lessee not in live):
        yield Finding("slot", f"{name}: lessee {slot.lessee}")


def check_reclaimable(books: Books) -> Iterator[Work]:
    """What counts as reclaimable is found when room is made: idle slots in their orders, free leaves on the heap."""
    held: Counter[int] = Counter()
    with_row: Counter[int] = Counter()
    units: Counter[PoolKind] = Counter()
    for slot in books.slots():
        if slot.state is SlotState.HELD:
            held[slot.session.uid] += 1
            with_row[slot.session.uid] += slot.kv.req_pool_idx is not None
            units.update({pool: len(own) for pool, own in own_units(slot.kv)})
        yield NODE_UNITS
    idle = books.idle()
    yield from _check_line(idle.uids, held, "to give way")
    yield from _check_line(idle.uids_with_row, with_row, "to give a row")
    for pool, counted in idle.num_units.items():
        if units[pool] != counted:
            yield Finding("reclaimable", f"idle slots hold {units[pool]} of {pool}, {counted} are counted")
    yield from check_lines(books)


def _check_line(uids: Iterable[int], due: Counter[int], purpose: str) -> Iterator[Work]:
    """Slots of these sessions stand in line, each once, and they are those that are due there. Uses `due` up."""
    for uid in uids:
        due[uid] -= 1
        yield LOOK_UNITS
    wrong: list[int] = []
    for uid, missing in due.items():
        if missing:
            wrong.append(uid)
        yield LOOK_UNITS
    if wrong:
        told = f"{sorted(wrong)[:TOLD_MAX]}{' and more' if len(wrong) > TOLD_MAX else ''}"
        yield Finding("reclaimable", f"{len(wrong)} slots are in line {purpose} or ought to be, not both: {told}")


def check_sessions(books: Books) -> Iterator[Work]:
    """The right to run belongs to live turns only, and waiting turns hold nothing."""
    live = books.queues.live
    for session in books.sessions():
        for turn_id, turn in session.live.items():
            request = live.get(turn.rid)
            if request is None or request.turn_id != turn_id or request.outcome is not None:
                yield Finding("session", f"{session.session_id!r}: turn {turn_id!r} (rid {turn.rid}) is not live")
            yield NODE_UNITS
        yield NODE_UNITS
    for request in live.values():
        if request.phase is Phase.WAITING and _holds(request.kv):
            yield Finding("session", f"rid {request.rid} waits and holds KV")
        yield NODE_UNITS
    yield from _check_queue(books, Phase.WAITING, books.queues.waiting)
    yield from _check_queue(books, Phase.RUNNING, books.queues.running)


def _check_queue(books: Books, phase: Phase, queue: Iterable[Request]) -> Iterator[Work]:
    """Live requests of a phase are those in its queue, each once."""
    queued: Counter[Rid] = Counter()
    due: Counter[Rid] = Counter()
    for request in queue:
        queued[request.rid] += 1
        yield LOOK_UNITS
    for request in books.queues.live.values():
        due[request.rid] += request.phase is phase
        yield LOOK_UNITS
    for rid in (*queued, *(rid for rid in due if rid not in queued)):
        if queued[rid] != due[rid]:
            told = f"rid {rid} is {queued[rid]} times in the {phase} queue, {due[rid]} times due there"
            yield Finding("session", told)
        yield LOOK_UNITS


def _holds(kv: Holding) -> bool:
    return kv.lock is not None or any(True for _ in own_units(kv))


LISTINGS: Mapping[PoolKind, Callable[[Books], Iterator[Listing]]] = {
    FULL: _list_pages,
    SWA: _list_windows,
    MAMBA: _list_states,
    PoolKind.ROWS: _list_rows,
}

FULL_CHECKS = (
    check_owners,
    check_tree,
    check_holdings,
    check_slots,
    check_reclaimable,
    check_sessions,
)
