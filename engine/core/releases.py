"""What becomes of a holding's units when its holder changes, or needs less of it."""

from collections.abc import Iterator

from engine.core.holding import Holding
from engine.core.ids import pages_for
from engine.core.matcher import Matcher
from engine.core.ownership import Move, Owner, PoolKind
from engine.core.pools import Pools
from engine.core.rows import PageTable
from engine.core.window import first_kept_page, window_start

FULL, SWA, MAMBA, ROWS = PoolKind.FULL, PoolKind.SWA, PoolKind.MAMBA, PoolKind.ROWS
"""Looked up once: asking an enum for a member costs as much as a call."""


def own_units(kv: Holding) -> Iterator[tuple[PoolKind, list[int]]]:
    """All that is the holder's own, by pool; nothing of pools that it has nothing of."""
    if kv.pages:
        yield FULL, kv.pages
    if kv.swa:
        yield SWA, list(kv.swa.values())
    if kv.states is not None and kv.states.num_slots:
        yield MAMBA, kv.states.slots()
    if kv.req_pool_idx is not None:
        yield ROWS, [kv.req_pool_idx]


def hand_over(pools: Pools, move: Move, kv: Holding, source: Owner, target: Owner) -> None:
    """All of it goes from one holder to another."""
    for pool, units in own_units(kv):
        pools.move(move, pool, units, source, target)


def release_all(pools: Pools, table: PageTable, owner: Owner, kv: Holding) -> None:
    """All that is its own goes free; the lock is not its own."""
    pools.free_up(Move.RELEASE, FULL, kv.pages, owner)
    pools.free_up(Move.RELEASE, SWA, list(kv.swa.values()), owner)
    pools.free_up(Move.RELEASE, MAMBA, kv.state_slots(), owner)
    release_row(pools, table, owner, kv)


def release_row(pools: Pools, table: PageTable, owner: Owner, kv: Holding) -> None:
    """Gives a holding's row back, if it has one."""
    if kv.req_pool_idx is not None:
        table.clear(kv.req_pool_idx)
        pools.free_up(Move.RELEASE, ROWS, [kv.req_pool_idx], owner)
        kv.req_pool_idx = None


def release_behind(pools: Pools, owner: Owner, kv: Holding, length: int, page_size: int) -> None:
    """Cuts a holding to `length` tokens, which are not below what the cache protects; own pages behind go free."""
    reach = kv.own_reach(length, page_size)
    pools.free_up(Move.RELEASE, FULL, kv.pages[reach:], owner)
    del kv.pages[reach:]
    if kv.swa:
        stop = pages_for(length, page_size)
        over = [place for place in kv.swa if place >= stop]
        pools.free_up(Move.RELEASE, SWA, [kv.swa.pop(place) for place in over], owner)
    kv.kv_committed_len = min(kv.kv_committed_len, length)
    kv.kv_allocated_len = length


def release_states(pools: Pools, owner: Owner, kv: Holding, length: int) -> None:
    """Keeps the state behind `length` tokens, the cache's or its own, and the last checkpoint; the others go free."""
    if kv.states is None:
        return
    pools.free_up(Move.RELEASE, MAMBA, kv.states.cut(length), owner)
    if kv.states.base_len is None and kv.lock is not None:
        kv.states.read = kv.lock.node.state


def leave_windows(pools: Pools, owner: Owner, kv: Holding, length: int, matcher: Matcher) -> None:
    """Releases the SWA pages that no token behind the first `length` sees, nor one behind a place that is pinned."""
    if matcher.window is None:
        return
    first = first_kept_page(length, matcher.window, matcher.page_size)
    if kv.swa_from >= first:
        return
    pins = [
        range(first_kept_page(pin, matcher.window, matcher.page_size), pages_for(pin, matcher.page_size))
        for pin in pinned_lens(kv)
    ]
    left: list[int] = []
    for place in range(kv.swa_from, first):
        page = kv.swa.get(place)
        if page is not None and not any(place in pin for pin in pins):
            del kv.swa[place]
            left.append(page)
    kv.swa_from = first
    pools.free_up(Move.RELEASE, SWA, left, owner)


def unpin_windows(kv: Holding, page_size: int) -> None:
    """Places that were pinned are looked at again when windows are left next."""
    kv.swa_from = next(iter(kv.swa), pages_for(kv.kv_allocated_len, page_size))


def pinned_lens(kv: Holding) -> Iterator[int]:
    """Lengths whose window stays: of the last commit, and of the checkpoint, without which that is worth nothing."""
    if kv.pin_len:
        yield kv.pin_len
    if kv.states is not None and kv.states.checkpoint_len is not None:
        yield kv.states.checkpoint_len


def has_window(kv: Holding, length: int, matcher: Matcher) -> bool:
    """Whether all that the token behind the first `length` sees in windows is the holder's own or under its lock."""
    if matcher.window is None:
        return True
    page_size = matcher.page_size
    first, stop = window_start(length, matcher.window) // page_size, pages_for(length, page_size)
    own_from = kv.cache_protected_len // page_size
    locked_from = own_from
    if kv.lock is not None and kv.lock.window_from is not None:
        locked_from = kv.lock.window_from
    if first < min(locked_from, own_from) and first < stop:
        return False
    return all(place in kv.swa for place in range(max(first, own_from), stop))


def usable_lens(kv: Holding, limit: int, matcher: Matcher) -> Iterator[int]:
    """Lengths up to `limit`, falling, at which its own pages can be used; none that its lock covers."""
    for length in _candidate_lens(kv, limit, matcher):
        if length > kv.cache_protected_len and has_window(kv, length, matcher):
            yield length


def _candidate_lens(kv: Holding, limit: int, matcher: Matcher) -> list[int]:
    """Where its states are; without states the limit itself, and the last token of each unbroken run of windows."""
    if kv.states is not None:
        return sorted((length for length in kv.states.kept if length <= limit), reverse=True)
    lens = {limit}
    if matcher.window is not None:
        ends = [place + 1 for place in kv.swa if place + 1 not in kv.swa]
        lens |= {min(limit, end * matcher.page_size) for end in ends}
        lens.add(limit // matcher.page_size * matcher.page_size)  # all that a window of one token needs
    return sorted(lens, reverse=True)


def cacheable_len(kv: Holding, limit: int, matcher: Matcher) -> int:
    """Tokens, in whole pages and up to `limit`, that could be used from the cache; those that are there, if no more."""
    length = limit // matcher.page_size * matcher.page_size
    if kv.states is not None:
        checkpoint = kv.states.checkpoint_len
        length = checkpoint if checkpoint is not None and checkpoint <= length else 0
    if length > kv.cache_protected_len and has_window(kv, length, matcher):
        return length
    return kv.cache_protected_len


def write_table(table: PageTable, kv: Holding) -> None:
    """Writes all that the holding knows of into its row, which it has."""
    assert kv.req_pool_idx is not None, "no row to write to"
    table.write(kv.req_pool_idx, 0, kv.all_pages())
    places = dict(kv.swa_places())
    if places:
        first, last = min(places), max(places)
        table.write_swa(kv.req_pool_idx, first, [places.get(place, 0) for place in range(first, last + 1)])
