"""From changes of the cache to events: hashes in chains, sizes, groups, and order."""

from collections.abc import Iterable

from engine.core.events import PrefixStored
from engine.core.ids import pack_ids
from engine.core.ownership import PoolKind
from telemetry.kv.announcer import HASHES_MAX, Announcer, groups_of
from telemetry.kv.prefix_index import Change, Emptied, Left, PrefixIndex, Stored
from telemetry.kv.wire_format import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    WireEvent,
    namespace_digest,
    page_digest,
    published_hash,
)

PAGE_SIZE = 2
FULL, SWA, MAMBA = PoolKind.FULL, PoolKind.SWA, PoolKind.MAMBA
PLAIN = groups_of({FULL: 9, PoolKind.ROWS: 3}, None)
HYBRID = groups_of({FULL: 9, SWA: 9, MAMBA: 4}, 6)


def chain(ids: Iterable[int], namespace: str = "") -> list[int]:
    """Published hashes of the whole pages of a prompt."""
    packed, hashes, before = pack_ids(ids), [], namespace_digest(namespace)
    for start in range(0, len(packed), 4 * PAGE_SIZE):
        before = page_digest(before, packed[start : start + 4 * PAGE_SIZE])
        hashes.append(published_hash(before))
    return hashes


def stored(units: Iterable[int], ids: Iterable[int], parent: int | None = None, namespace: str = "") -> Stored:
    pages = tuple(units)
    return Stored(FULL, pages, pages, parent, pack_ids(ids), namespace)


def told(announcer: Announcer, *changes: Change) -> list[WireEvent]:
    return [event for change in changes for event in announcer.events(change)]


def test_pages_when_stored_in_parts_then_hashes_of_one_chain() -> None:
    announcer = Announcer(PAGE_SIZE, PLAIN)
    first, second = told(announcer, stored([1, 2], [1, 2, 3, 4]), stored([3], [5, 6], parent=2))
    hashes = chain(range(1, 7))
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert (first.parent_block_hash, first.block_hashes, first.token_ids) == (None, hashes[:2], [1, 2, 3, 4])
    assert (second.parent_block_hash, second.block_hashes, second.token_ids) == (hashes[1], hashes[2:], [5, 6])
    assert (first.medium, first.block_size, first.group_idx, first.kv_cache_spec_kind) == ("GPU", PAGE_SIZE, None, None)


def test_prompt_when_longer_than_an_event_then_in_several_each_behind_the_one_before() -> None:
    num_pages = 2 * HASHES_MAX + 3
    events = told(Announcer(PAGE_SIZE, PLAIN), stored(range(1, num_pages + 1), range(num_pages * PAGE_SIZE)))
    hashes = chain(range(num_pages * PAGE_SIZE))
    parents, found, tokens = [], [], []
    for event in events:
        assert isinstance(event, BlockStored)
        assert len(event.block_hashes) <= HASHES_MAX
        parents.append(event.parent_block_hash)
        found += event.block_hashes
        tokens += event.token_ids
    assert found == hashes
    assert tokens == list(range(num_pages * PAGE_SIZE))
    assert parents == [None, hashes[HASHES_MAX - 1], hashes[2 * HASHES_MAX - 1]]


def test_page_when_it_leaves_and_another_takes_its_number_then_each_removal_names_what_was_there() -> None:
    announcer = Announcer(PAGE_SIZE, PLAIN)
    events = told(announcer, stored([1], [1, 2]), Left(FULL, (1,)), stored([1], [3, 4]), Left(FULL, (1,)))
    assert [event.block_hashes for event in events if isinstance(event, BlockRemoved)] == [chain([1, 2]), chain([3, 4])]


def test_pages_when_they_leave_together_then_the_last_first() -> None:
    announcer = Announcer(PAGE_SIZE, PLAIN)
    *_, removed = told(announcer, stored([1, 2], [1, 2, 3, 4]), Left(FULL, (1, 2)))
    assert removed == BlockRemoved(block_hashes=chain([1, 2, 3, 4])[::-1], medium="GPU")


def test_pages_when_salted_then_hashes_of_their_namespace_which_is_named() -> None:
    announcer = Announcer(PAGE_SIZE, PLAIN)
    first, second = told(announcer, stored([1, 2], range(4), namespace="n"), stored([3], [4, 5], 2, "n"))
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert first.block_hashes + second.block_hashes == chain(range(6), "n")
    assert first.parent_block_hash is None
    assert (first.cache_salt, first.extra_keys) == ("n", [["n"], None])
    assert (second.cache_salt, second.extra_keys) == ("n", None)


def test_windows_and_states_when_stored_and_gone_then_of_a_group_of_their_own_beside_the_main_one() -> None:
    announcer = Announcer(PAGE_SIZE, HYBRID)
    ids = pack_ids([3, 4])
    full, window, state, gone, gone_window = told(
        announcer,
        stored([1, 2], [1, 2, 3, 4]),
        Stored(SWA, (7,), (2,), 1, ids, ""),
        Stored(MAMBA, (3,), (2,), 1, ids, ""),
        Left(FULL, (2,)),
        Left(SWA, (7,)),
    )
    hashes = chain([1, 2, 3, 4])
    groups = [(0, "full_attention", None), (1, "sliding_window", 6), (2, "mamba", None)]
    for event, group in zip((full, window, state), groups, strict=True):
        assert isinstance(event, BlockStored)
        assert (event.group_idx, event.kv_cache_spec_kind, event.kv_cache_spec_sliding_window) == group
    assert isinstance(window, BlockStored)
    assert (window.block_hashes, window.parent_block_hash, window.token_ids) == (hashes[1:], hashes[0], [3, 4])
    assert gone == BlockRemoved(block_hashes=hashes[1:], medium="GPU", group_idx=0)
    assert gone_window == BlockRemoved(block_hashes=hashes[1:], medium="GPU", group_idx=1)


def test_cache_when_emptied_then_all_is_cleared() -> None:
    assert told(Announcer(PAGE_SIZE, PLAIN), Emptied()) == [AllBlocksCleared()]


def test_whole_when_told_then_cleared_first_and_what_comes_later_fits_to_it() -> None:
    index, announcer = PrefixIndex(PAGE_SIZE, [], has_salted=True), Announcer(PAGE_SIZE, PLAIN)
    index.store(PrefixStored(FULL, (1, 2), pack_ids([1, 2, 3, 4])))  # the announcer never heard of it
    *events, late = told(announcer, stored([9], [7, 7]), index.copy(), stored([3], [5, 6], parent=2))
    assert events[1] == AllBlocksCleared()
    assert isinstance(late, BlockStored)
    assert late.parent_block_hash == chain([1, 2, 3, 4])[1]
    assert told(announcer, Left(FULL, (9,))) == []


def test_pages_when_the_one_in_front_is_unknown_then_nothing_is_told() -> None:
    assert told(Announcer(PAGE_SIZE, PLAIN), stored([3], [5, 6], parent=2), Left(FULL, (3,))) == []
