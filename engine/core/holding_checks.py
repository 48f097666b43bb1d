"""Checks of one holding: lengths, page tables, windows and states say the same, and enough."""

from collections.abc import Iterator

from engine.core.books import Books
from engine.core.claims import cut
from engine.core.findings import Finding, Work
from engine.core.holding import Holding
from engine.core.ids import pages_for
from engine.core.radix_node import path_up
from engine.core.states import States
from engine.core.window import window_start


def check_holding(books: Books, name: str, kv: Holding) -> Iterator[Work]:
    """Protected ≤ committed ≤ allocated, the pages for that, and a row that says the same."""
    lengths = (kv.cache_protected_len, kv.kv_committed_len, kv.kv_allocated_len)
    if kv.cache_protected_len % books.page_size or not lengths[0] <= lengths[1] <= lengths[2]:
        yield Finding("holding", f"{name}: protected, committed, allocated = {lengths}")
    path: list[list[int]] = []
    for node in path_up(kv.lock.node) if kv.lock is not None else ():
        path.append(node.pages)
        yield 1
    locked = sum(map(len, path))
    if locked * books.page_size != kv.cache_protected_len:
        yield Finding("holding", f"{name}: locks {locked} pages for {kv.cache_protected_len} protected tokens")
    if kv.lock is not None and kv.lock.num_pages != locked:
        yield Finding("holding", f"{name}: locks {locked} pages, its lock says {kv.lock.num_pages}")
    if kv.num_pages(books.page_size) < pages_for(kv.kv_allocated_len, books.page_size):
        yield Finding("holding", f"{name}: {kv.num_pages(books.page_size)} pages for {kv.kv_allocated_len} tokens")
    yield from _check_windows(books, name, kv)
    yield from _check_states(books, name, kv)
    if kv.req_pool_idx is not None:
        row, at = books.table.row(kv.req_pool_idx), 0
        for piece, cost in cut((*reversed(path), kv.pages)):
            if row[at : at + len(piece)].tolist() != piece:
                yield Finding("holding", f"{name}: row {kv.req_pool_idx} does not say what it holds")
                return
            at += len(piece)
            yield cost


def _check_windows(books: Books, name: str, kv: Holding) -> Iterator[Work]:
    """What the token behind the committed ones sees is there, and that behind the last commit's; in the row, too."""
    window = books.matcher.window
    if window is None:
        if kv.swa or (kv.lock is not None and kv.lock.window_from is not None):
            yield Finding("holding", f"{name}: windows in a model without")
        return
    page_size = books.page_size
    places = dict(kv.swa_places())
    reach = kv.num_pages(page_size)
    own_from = kv.cache_protected_len // page_size
    if any(not own_from <= place < reach for place in kv.swa) or list(kv.swa) != sorted(kv.swa):
        yield Finding("holding", f"{name}: SWA pages at {list(kv.swa)}, its own pages are {own_from} to {reach}")
    spans = [(kv.kv_committed_len, reach)]
    if kv.pin_len:
        spans.append((kv.pin_len, pages_for(kv.pin_len, page_size)))
    for length, stop in spans:
        first = window_start(length, window) // page_size
        missing = [place for place in range(first, stop) if place not in places]
        if missing:
            yield Finding("holding", f"{name}: no SWA pages at {missing}, which token {length} sees or writes")
    yield len(places)
    row = books.table.swa_row(kv.req_pool_idx) if kv.req_pool_idx is not None else None
    if row is not None and any(row[place] != page for place, page in places.items()):
        yield Finding("holding", f"{name}: row {kv.req_pool_idx} does not say what SWA pages it holds")
    yield len(places)


def _check_states(books: Books, name: str, kv: Holding) -> Iterator[Work]:
    """Each state has a slot of its own; and there is one, own or the cache's, behind the committed tokens."""
    states = kv.states
    if not books.matcher.has_states:
        if states is not None or (kv.lock is not None and kv.lock.has_state):
            yield Finding("holding", f"{name}: states in a model without")
        return
    if states is None:
        if kv.kv_allocated_len:
            yield Finding("holding", f"{name}: {kv.kv_allocated_len} tokens and no states")
        return
    slots = states.slots()
    if len(set(slots)) != len(slots) or 0 in slots:
        yield Finding("holding", f"{name}: states in slots {slots}")
    for what, length in (("last commit", states.base_len), ("checkpoint", states.checkpoint_len)):
        if length is not None and length not in states.kept:
            yield Finding("holding", f"{name}: the state of its {what}, behind {length} tokens, is not kept")
    if max(states.kept, default=0) > kv.kv_allocated_len:
        yield Finding("holding", f"{name}: states behind {sorted(states.kept)} of {kv.kv_allocated_len} tokens")
    if not states.writing:  # while plans are in flight the newest state is one that is still to be written
        yield from _check_newest(name, kv, states)
    yield len(slots)


def _check_newest(name: str, kv: Holding, states: States) -> Iterator[Finding]:
    """The next step starts from the state behind what is committed."""
    due = states.kept.get(kv.kv_committed_len)
    if due is None and kv.kv_committed_len == kv.cache_protected_len:
        has_right = kv.lock is None or kv.lock.has_state
        due = kv.lock.node.state if kv.lock is not None else 0
        if not has_right or (kv.lock is not None and not due):
            yield Finding("holding", f"{name}: starts from a state of the cache that it has no right to")
    if states.read != due:
        yield Finding("holding", f"{name}: starts from state {states.read}, {due} is behind {kv.kv_committed_len}")
