"""Books in the middle of their work, and one way each to break a law of theirs."""

from collections.abc import Callable

from engine.core.events import SlotState
from engine.core.ids import TOKEN_BYTES, Rid, StepNo, TurnId
from engine.core.ownership import CACHE, FREE, Move, PoolKind
from engine.core.releases import write_table
from engine.core.request import Phase, Request
from engine.core.turn_tree import LiveTurn, Place
from tests.kit.core_parts import CoreParts, make_parts

Defect = Callable[[CoreParts, Request], None]


def running_parts() -> tuple[CoreParts, Request]:
    """One request that runs on a donated prompt of two pages and a page of its own, and a slot that holds nothing."""
    parts = make_parts()
    parts.open_session()
    request = parts.request(1, list(range(10)))
    parts.queues.run(request)
    request.go(Phase.RUNNING)
    granted = parts.pools.grant(request.owner, 3, rows=1)
    assert granted is not None
    kv = request.kv
    kv.pages, kv.req_pool_idx = granted.pages, granted.rows[0]
    kv.kv_committed_len = kv.kv_allocated_len = 10
    parts.table.write(kv.req_pool_idx, 0, kv.pages)
    parts.radix.cache_prompt(request)
    return parts, request


def hybrid_parts() -> tuple[CoreParts, Request]:
    """A request that computed its prompt of 22 tokens, of which 16 are the tree's: four pages under its lock with the
    windows of the last two and the state, two pages of its own, and its newest state."""
    parts = make_parts(window=6, swa_pages=17, state_slots=9)
    request = parts.request(1, list(range(22)))
    parts.slots.acquire(request, parts.slots.probe(request))
    parts.queues.run(request)
    request.go(Phase.RUNNING)
    kv = request.kv
    granted = parts.pools.grant(request.owner, 6, 1, kv.num_states_missing)
    assert granted is not None
    assert kv.states is not None
    kv.pages, kv.req_pool_idx, kv.swa = granted.pages, granted.rows[0], dict(enumerate(granted.swa_pages))
    kv.states.spare += granted.states
    for stop_len in (16, 22):
        kv.states.plan(stop_len)
        kv.kv_committed_len = kv.kv_allocated_len = kv.states.answer()
        if stop_len == 16:
            kv.states.keep_checkpoint(16)
    write_table(parts.table, kv)
    parts.slots.cache_prompt(request)
    return parts, request


def drop_page(parts: CoreParts, request: Request) -> None:
    request.kv.pages.pop()


def claim_page(parts: CoreParts, request: Request) -> None:
    request.kv.pages[0] = 9


def bypass_stack(parts: CoreParts, request: Request) -> None:
    parts.pools.ledger.move(Move.RELEASE, PoolKind.FULL, request.kv.pages, request.owner, FREE)


def lose_free_page(parts: CoreParts, request: Request) -> None:
    parts.pools.free_up(Move.RELEASE, PoolKind.FULL, [request.kv.pages.pop()], request.owner)
    request.kv.kv_allocated_len = request.kv.kv_committed_len = 8
    assert parts.pools.lose_free_unit(PoolKind.FULL) is not None


def stack_held_page(parts: CoreParts, request: Request) -> None:
    parts.pools.stack_held_unit(PoolKind.FULL, next(parts.tree.nodes()).pages[0])


def forget_request(parts: CoreParts, request: Request) -> None:
    """It ends without giving anything back; its lock is void, as if it had been given back."""
    parts.queues.leave(request)
    del parts.queues.live[request.rid]
    assert request.kv.lock is not None
    parts.tree.unlock(request.kv.lock, 0)


def orphan_draining(parts: CoreParts, request: Request) -> None:
    """Told as draining, and dropped by its holder at once."""
    parts.pools.drain(request.owner, request.kv.pages, StepNo(1))
    request.kv.pages = []
    request.kv.kv_allocated_len = request.kv.kv_committed_len = 8


def leak_lock(parts: CoreParts, request: Request) -> None:
    match = parts.tree.probe("", bytes(request.ids))
    assert match is not None
    parts.tree.lock(match)


def forget_protection(parts: CoreParts, request: Request) -> None:
    parts.pools.ledger.unprotect([1])


def overstate_commit(parts: CoreParts, request: Request) -> None:
    request.kv.kv_committed_len = 13


def shift_row(parts: CoreParts, request: Request) -> None:
    assert request.kv.req_pool_idx is not None
    parts.table.write(request.kv.req_pool_idx, 2, [9])


def cut_key(parts: CoreParts, request: Request) -> None:
    next(parts.tree.nodes()).key += b"four"


def mark_idle(parts: CoreParts, request: Request) -> None:
    next(parts.tree.nodes()).idle_count += 1


def unlock_past_the_heap(parts: CoreParts, request: Request) -> None:
    next(parts.tree.nodes()).lock_count = 0


def use_past_the_heap(parts: CoreParts, request: Request) -> None:
    forget_request(parts, request)
    next(parts.tree.nodes()).last_use += 1


def lend_to_nobody(parts: CoreParts, request: Request) -> None:
    parts.slots.slots()[0].lessee = request.rid


def leave_queue(parts: CoreParts, request: Request) -> None:
    parts.queues.running.remove(request)


def claim_twice(parts: CoreParts, request: Request) -> None:
    request.kv.pages.append(request.kv.pages[0])


def donate_past_the_tree(parts: CoreParts, request: Request) -> None:
    parts.pools.move(Move.DONATE, PoolKind.FULL, request.kv.pages, request.owner, CACHE)


def orphan_node(parts: CoreParts, request: Request) -> None:
    node = next(parts.tree.nodes())
    assert node.parent is not None
    node.parent.children[b"other"] = node
    del node.parent.children[node.key[: parts.page_size * TOKEN_BYTES]]


def overstate_protection(parts: CoreParts, request: Request) -> None:
    request.kv.cache_protected_len = 4


def overstate_allocation(parts: CoreParts, request: Request) -> None:
    request.kv.kv_allocated_len = 99


def slot_outgrows_history(parts: CoreParts, request: Request) -> None:
    slot = parts.slots.slots()[0]
    slot.state, slot.kv.kv_committed_len, slot.kv.kv_allocated_len = SlotState.HELD, 1, 2


def empty_slot_holds(parts: CoreParts, request: Request) -> None:
    parts.slots.slots()[0].kv.pages = [9]


def dead_turn_has_the_lease(parts: CoreParts, request: Request) -> None:
    turn = LiveTurn(Rid(99), Place(), b"")
    parts.slots.slots()[0].session.live[TurnId("gone")] = turn


def wait_with_pages(parts: CoreParts, request: Request) -> None:
    parts.request(2, [1]).kv.pages = [9]


def leave_waiting(parts: CoreParts, request: Request) -> None:
    parts.queues.leave(parts.request(2, [1]))


DEFECTS: list[tuple[Defect, str]] = [
    (drop_page, "holders"),
    (claim_page, "holders"),
    (bypass_stack, "holders"),
    (lose_free_page, "census"),
    (stack_held_page, "census"),
    (stack_held_page, "holders"),
    (forget_request, "holders"),
    (orphan_draining, "holders"),
    (leak_lock, "tree"),
    (forget_protection, "census"),
    (overstate_commit, "holding"),
    (shift_row, "holding"),
    (cut_key, "tree"),
    (mark_idle, "tree"),
    (unlock_past_the_heap, "reclaimable"),
    (use_past_the_heap, "reclaimable"),
    (lend_to_nobody, "slot"),
    (leave_queue, "session"),
    (claim_twice, "holders"),
    (donate_past_the_tree, "holders"),
    (orphan_node, "tree"),
    (overstate_protection, "holding"),
    (overstate_allocation, "holding"),
    (slot_outgrows_history, "slot"),
    (empty_slot_holds, "slot"),
    (dead_turn_has_the_lease, "session"),
    (wait_with_pages, "session"),
    (leave_waiting, "session"),
]
"""Each with a law that has to say so."""

LEAKS: list[Defect] = [lose_free_page, forget_request, orphan_draining]
"""Those after which nobody has a unit any more, and nothing else is wrong."""
