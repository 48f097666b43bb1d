"""What units of the cache stand for, as told: replaying it gives the tree, page by page, whatever the tree did."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

import pytest

from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.events import CoreEvent, KvMoved, Numbered, PrefixStored
from engine.core.ids import TOKEN_BYTES, pack_ids, unpack_ids
from engine.core.ownership import CACHE, Move, OwnerKind, PoolKind
from engine.core.radix import RadixTree
from engine.core.radix_node import Gift
from tests.kit.core_parts import make_parts
from tests.kit.hybrid_tree import OWNER, HybridTree, path_to
from tests.sim.runner import run_seed

FULL, SWA, MAMBA = PoolKind.FULL, PoolKind.SWA, PoolKind.MAMBA
PAGE_SIZE = 4
Path = tuple[int, ...]


@dataclass(slots=True)
class Shelf:
    """The cache as told by PrefixStored and moves. Refuses what can not be."""

    page_size: int = PAGE_SIZE
    paths: dict[int, tuple[str, Path]] = field(default_factory=dict)
    """Full page → namespace, and all ids from the root to its end."""
    beside: dict[PoolKind, dict[int, int]] = field(default_factory=lambda: {SWA: {}, MAMBA: {}})
    """Unit of the other pools → the full page beside it."""
    arrived: set[tuple[PoolKind, int]] = field(default_factory=set)
    """Units that came to the cache and of which nothing was told yet."""

    def replay(self, events: Iterable[CoreEvent]) -> None:
        for event in events:
            if isinstance(event, KvMoved):
                self._move(event)
            elif isinstance(event, PrefixStored):
                self._store(event)
        assert not self.arrived, "what came to the cache is told before anything else can happen"

    def _move(self, event: KvMoved) -> None:
        units = {(event.pool, unit) for unit in event.pages}
        if event.target == CACHE:
            self.arrived |= units
        if event.source == CACHE:
            for unit in event.pages:
                del (self.paths if event.pool is FULL else self.beside[event.pool])[unit]

    def _store(self, event: PrefixStored) -> None:
        for unit in event.pages:
            assert (event.pool, unit) in self.arrived, f"{event.pool} {unit} did not come, or was told before"
            self.arrived.remove((event.pool, unit))
        if event.pool is FULL:
            self._store_pages(event)
            return
        assert (event.ids, event.parent, event.namespace) == (b"", None, "")
        for unit, page in zip(event.pages, event.beside, strict=True):
            assert page in self.paths, f"{event.pool} {unit} is beside page {page}, which is not there"
            self.beside[event.pool][unit] = page

    def _store_pages(self, event: PrefixStored) -> None:
        assert event.beside == ()
        assert len(event.ids) == len(event.pages) * self.page_size * TOKEN_BYTES
        namespace, path = event.namespace, Path()
        if event.parent is not None:
            assert event.namespace == "", "what follows a parent is in the parent's"
            namespace, path = self.paths[event.parent]
        ids = unpack_ids(event.ids)
        for number, page in enumerate(event.pages):
            path += tuple(ids[number * self.page_size : (number + 1) * self.page_size])
            self.paths[page] = namespace, path


def shelf_of(tree: RadixTree, namespace: str = "", page_size: int = PAGE_SIZE) -> Shelf:
    """The tree itself, told the same way."""
    shelf = Shelf(page_size)
    for node in tree.nodes():
        path = path_to(node)
        for place, page in enumerate(node.pages):
            left = (len(node.pages) - 1 - place) * page_size
            shelf.paths[page] = namespace, path[: len(path) - left]
        shelf.beside[SWA] |= dict(zip(node.swa, node.pages, strict=False))
        shelf.beside[MAMBA] |= {node.state: node.pages[-1]} if node.state else {}
    return shelf


class Watched:
    """A hybrid tree whose events are replayed and compared after each step."""

    def __init__(self, window: int | None = 6, *, has_states: bool = False) -> None:
        self.hybrid = HybridTree(window, has_states=has_states)
        self.shelf = Shelf()

    def compare(self) -> list[PrefixStored]:
        """Returns what was told to be stored since the last call."""
        events = self.hybrid.parts.events()
        self.shelf.replay(events)
        told = shelf_of(self.hybrid.tree)
        assert (self.shelf.paths, self.shelf.beside) == (told.paths, told.beside)
        return [event for event in events if isinstance(event, PrefixStored)]


def test_stored_when_a_first_prompt_is_donated_then_all_its_pages_in_order_without_a_parent() -> None:
    watched = Watched(window=None)
    donated = watched.hybrid.donate(range(12))
    assert donated.lock is not None
    assert watched.compare() == [PrefixStored(FULL, tuple(donated.lock.pages()), pack_ids(range(12)))]


def test_stored_when_a_prompt_comes_chunk_by_chunk_then_each_chunk_follows_the_page_before() -> None:
    watched = Watched(window=None)
    first = watched.hybrid.donate(range(8))
    watched.compare()
    second = watched.hybrid.donate(range(16), lock=first.lock)
    assert second.lock is not None
    pages = second.lock.pages()
    assert watched.compare() == [PrefixStored(FULL, tuple(pages[2:]), pack_ids(range(8, 16)), pages[1])]
    assert watched.hybrid.shape() == [(4, 0, False)], "one node, that was lengthened"


def test_stored_when_a_branch_splits_a_node_then_only_what_is_new_is_told() -> None:
    watched = Watched(window=None)
    watched.hybrid.insert(range(12))
    watched.compare()
    branch = [*range(4), *range(100, 108)]
    donated = watched.hybrid.donate(branch)
    assert donated.lock is not None
    pages = donated.lock.pages()
    assert watched.compare() == [PrefixStored(FULL, tuple(pages[1:]), pack_ids(branch[4:]), pages[0])]


def test_stored_when_all_of_a_gift_is_there_already_then_nothing_is_told() -> None:
    watched = Watched(window=None)
    watched.hybrid.insert(range(12))
    watched.compare()
    assert watched.hybrid.donate(range(8)).duplicates
    assert watched.compare() == []


def test_stored_when_in_a_namespace_then_it_is_named_where_the_path_begins_alone() -> None:
    parts = make_parts()
    granted = parts.pools.grant(OWNER, 4)
    assert granted is not None
    key = pack_ids(range(16))
    first = parts.tree.donate(Move.DONATE, OWNER, "tenant", None, key[:32], Gift(granted.pages[:2], {}, 0))
    parts.tree.donate(Move.DONATE, OWNER, "tenant", first.lock, key, Gift(granted.pages[2:], {}, 0))
    events = parts.events()
    stored = [event for event in events if isinstance(event, PrefixStored)]
    assert [(event.namespace, event.parent) for event in stored] == [("tenant", None), ("", granted.pages[1])]
    shelf = Shelf()
    shelf.replay(events)
    assert shelf.paths == shelf_of(parts.tree, "tenant").paths


def test_stored_when_there_are_windows_then_each_is_beside_the_page_of_the_same_tokens() -> None:
    watched = Watched()
    watched.hybrid.donate(range(20), windows_from=2)
    stored = watched.compare()
    assert stored[0].pool is FULL
    swa = [event for event in stored if event.pool is SWA]
    assert sum(len(event.pages) for event in swa) == 3
    assert [page for event in swa for page in event.beside] == list(stored[0].pages[2:])


def test_stored_when_all_windows_were_evicted_then_the_pages_go_with_them_and_are_told_anew_when_they_come() -> None:
    watched = Watched()
    watched.hybrid.insert(range(20))
    before = watched.compare()
    while watched.hybrid.tree.evict(9, SWA):
        pass
    assert watched.compare() == []
    assert watched.shelf.paths == {}, "without windows a path can not be used"
    watched.hybrid.insert(range(20))
    assert [(event.pool, event.ids) for event in watched.compare()] == [(event.pool, event.ids) for event in before]


def test_stored_when_windows_left_by_a_lock_are_revived_then_told_beside_pages_that_stayed() -> None:
    watched = Watched()
    watched.hybrid.insert(range(20))
    lock = watched.hybrid.lock(range(20))
    watched.compare()
    freed = watched.hybrid.tree.evict(9, SWA)
    assert freed == 3, "those before the lock's window"
    watched.compare()
    watched.hybrid.donate(range(12))
    stored = watched.compare()
    assert {event.pool for event in stored} == {SWA}, "the pages had stayed"
    assert [page for event in stored for page in event.beside] == lock.pages()[:3]


def test_stored_when_there_are_states_then_each_is_beside_the_last_page_of_its_tokens() -> None:
    watched = Watched(window=None, has_states=True)
    watched.hybrid.insert(range(8))
    watched.hybrid.insert(range(16))
    stored = [event for event in watched.compare() if event.pool is MAMBA]
    ends = [watched.shelf.paths[event.beside[0]] for event in stored]
    assert ends == [("", tuple(range(8))), ("", tuple(range(16)))]


@pytest.mark.parametrize(("window", "has_states"), [(None, False), (6, False), (None, True), (6, True)])
@pytest.mark.parametrize("seed", range(4))
def test_stored_when_a_tree_grows_splits_and_shrinks_at_random_then_the_shelf_is_the_tree(
    seed: int, window: int | None, has_states: bool
) -> None:
    watched, draw = Watched(window, has_states=has_states), Random(seed)
    hybrid = watched.hybrid
    for use in range(120):
        stem = draw.randrange(3) * 1000
        num_pages = draw.randint(1, 5)
        turn = draw.randrange(1, num_pages + 1)
        ids = [stem + place if place < turn * PAGE_SIZE else stem + 500 + place for place in range(4 * num_pages)]
        if draw.random() < 0.6:
            hybrid.insert(ids, last_use=use)
        else:
            pool = draw.choice(hybrid.tree.evictable_kinds)
            hybrid.tree.evict(draw.randint(1, 8), pool)
        watched.compare()


class ShelvedCore(Core):
    """Replays all that it tells, and compares whose units are the cache's with what was told of them."""

    def __init__(self, config: CoreConfig) -> None:
        super().__init__(config)
        self.shelf = Shelf(config.page_size)
        self.stored: set[PoolKind] = set()

    def take_events(self) -> tuple[Numbered, ...]:
        events = super().take_events()
        self.shelf.replay(numbered.event for numbered in events)
        self.stored |= {each.event.pool for each in events if isinstance(each.event, PrefixStored)}
        for pool in self.image().pools:
            cached = {unit for unit, owner in enumerate(pool.owners) if owner.kind is OwnerKind.CACHE}
            if pool.pool in (FULL, *self.shelf.beside):
                told = self.shelf.paths if pool.pool is FULL else self.shelf.beside[pool.pool]
                assert cached == set(told)
        return events


def test_stored_when_worlds_are_busy_then_of_every_unit_of_the_cache_and_parents_come_first() -> None:
    cores: list[ShelvedCore] = []

    def make(config: CoreConfig) -> Core:
        cores.append(ShelvedCore(config))
        return cores[-1]

    for seed in range(16):
        assert run_seed(seed, make).failure is None
    told = {pool for core in cores for pool in core.stored}
    assert told == {FULL, SWA, MAMBA}, "the worlds have to show every pool"
