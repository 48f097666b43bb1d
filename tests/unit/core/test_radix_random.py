"""The tree of each kind of model under random use, against sets of paths that know of no nodes."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest

from engine.core.findings import CheckLevel, Finding
from engine.core.invariants import check_books
from engine.core.ownership import PoolKind
from engine.core.radix_node import Lock
from engine.core.request import Phase, Request
from tests.kit.hybrid_tree import PAGE_SIZE, Contents, HybridTree, Path, path_to

MODELS = [(None, False), (1, False), (5, False), (6, False), (13, False), (None, True), (6, True)]
STEPS = 120
PATH_PAGES_MAX = 6


def prefixes(path: Path, start: int = 0) -> set[Path]:
    """Those in whole pages that end in page `start` or behind it."""
    return {path[:end] for end in range(PAGE_SIZE * (start + 1), len(path) + 1, PAGE_SIZE)}


@dataclass(slots=True, eq=False)
class Held:
    """A lock, and what it says of itself."""

    lock: Lock
    path: Path
    request: Request
    is_idle: bool = False
    has_window: bool = True
    has_state: bool = True


class Life:
    """Random operations, each compared with what it has to do."""

    def __init__(self, seed: int, window: int | None, *, has_states: bool) -> None:
        self.rng = Random(seed)
        self.window = window
        self.has_states = has_states
        self.hybrid = HybridTree(window, has_states=has_states, pool_pages=81)
        self.tree = self.hybrid.tree
        self.known = Contents()
        self.held: list[Held] = []
        self.rids = 1

    def ids(self) -> Path:
        pages = [self.rng.randrange(2) for _ in range(self.rng.randint(1, PATH_PAGES_MAX))]
        return tuple(page for page in pages for _ in range(PAGE_SIZE))

    def window_start(self, num_pages: int) -> int:
        """The first page that the token behind so many sees, token by token."""
        if self.window is None:
            return num_pages
        at = num_pages * PAGE_SIZE
        return min(position for position in range(at + 1) if at - position < self.window) // PAGE_SIZE

    def usable_len(self, ids: Path) -> int:
        """Of all lengths in whole pages the longest that has everything."""
        for num_pages in range(len(ids) // PAGE_SIZE, 0, -1):
            path = ids[: num_pages * PAGE_SIZE]
            has_pages = prefixes(path) <= self.known.pages
            has_window = prefixes(path, self.window_start(num_pages)) <= self.known.windows
            if has_pages and has_window and (not self.has_states or path in self.known.states):
                return len(path)
        return 0

    # Operations

    def run(self) -> None:
        """One operation, then every law."""
        operations: list[Callable[[], None]] = [self.donate, self.donate, self.lock, self.unlock, self.evict, self.turn]
        self.rng.choice(operations)()
        assert self.hybrid.contents() == self.known
        assert self.hybrid.hit(ids := self.ids()) == self.usable_len(ids)
        self.check_counts()
        findings = [finding for finding in self.findings() if finding.law != "holding"]  # of no length nor row here
        assert findings == []

    def donate(self) -> None:
        ids, known = self.ids(), self.known
        num_pages = len(ids) // PAGE_SIZE
        if num_pages > min(self.hybrid.pools.free(pool) for pool in self.tree.evictable_kinds):
            return
        start = self.rng.randint(0, self.window_start(num_pages)) if self.window is not None else 0
        donated = self.hybrid.donate(ids, windows_from=start)
        new = Contents(prefixes(ids), prefixes(ids, start) if self.window is not None else set(), set())
        assert len(donated.duplicates) == len(new.pages & known.pages)
        assert len(donated.swa_duplicates) == len(new.windows & known.windows)
        assert donated.is_state_taken == (self.has_states and ids not in known.states)
        known.pages |= new.pages
        known.windows |= new.windows
        known.states |= {ids} if self.has_states else set()
        assert donated.lock is not None
        self.hold(donated.lock, ids)

    def lock(self) -> None:
        ids = self.ids()
        match = self.tree.probe_path(self.held[0].lock, 6) if self.held and self.rng.random() < 0.3 else None
        if match is None:
            length = self.usable_len(ids)
            if length == 0:
                return
            match, ids = self.hybrid.match(ids), ids[:length]
        else:
            ids = path_to(match.node)[: match.num_pages * PAGE_SIZE]
        pinned, before = self.tree.pinned_by(match), self.hybrid.reclaimable()
        lock = self.tree.lock(match)
        self.compare_pinned(pinned, before)
        self.hold(lock, ids)

    def compare_pinned(self, pinned: tuple[int, int, int], before: tuple[int, ...]) -> None:
        """What was told is just what is no longer reclaimable."""
        places = {PoolKind.FULL: 0, PoolKind.SWA: 1, PoolKind.MAMBA: 2}
        told = [pinned[places[pool]] for pool in self.tree.evictable_kinds]
        assert told == [was - now for was, now in zip(before, self.hybrid.reclaimable(), strict=True)]

    def hold(self, lock: Lock, path: Path) -> None:
        """By a request, so that the check finds who has it."""
        self.rids += 1
        request = self.hybrid.parts.request(self.rids, list(path))
        self.hybrid.parts.queues.run(request)
        request.go(Phase.RUNNING)
        request.kv.lock = lock
        self.held.append(Held(lock, path, request))

    def unlock(self) -> None:
        if self.held:
            held = self.held.pop(self.rng.randrange(len(self.held)))
            self.hybrid.parts.queues.leave(held.request)
            del self.hybrid.parts.queues.live[held.request.rid]
            self.lose(lambda: self.tree.unlock(held.lock, self.rng.randrange(99)))

    def lose(self, act: Callable[[], None]) -> None:
        """What goes with it nobody has locked, and nothing comes."""
        before, free = self.known, self.free()
        act()
        now = self.known = self.hybrid.contents()
        for kind in self.tree.evictable_kinds:
            lost = self.paths(kind, before) - self.paths(kind, now)
            assert self.free()[kind] - free[kind] == len(lost)
            assert not any(self.locks_on(kind, path) for path in lost)
            assert self.paths(kind, now) <= self.paths(kind, before)
            assert not lost or self.window is not None or self.has_states, "of a plain model nothing is useless"

    def turn(self) -> None:
        """A holder becomes idle or is so no longer, or leaves its window or its state."""
        if not self.held:
            return
        held = self.rng.choice(self.held)
        match self.rng.randrange(4):
            case 0:
                self.tree.leave_window(held.lock, held.lock.num_pages)
                held.has_window = False
            case 1:
                self.tree.leave_state(held.lock)
                held.has_state = False
            case _ if held.is_idle:
                pinned, before = self.tree.pinned_by_lock(held.lock), self.hybrid.reclaimable()
                self.tree.set_idle(held.lock, False)
                held.is_idle = False
                self.compare_pinned(pinned, before)
            case _:
                self.tree.set_idle(held.lock, True)
                held.is_idle = True

    def evict(self) -> None:
        """Takes of nobody, something where there is something, and then all that is of no use without it."""
        pool, before, free = self.rng.choice(self.tree.evictable_kinds), self.known, self.free()
        is_due = any(not self.locks_on(pool, path) for path in self.paths(pool))
        freed = self.tree.evict(self.rng.randint(1, 3), pool)
        assert (freed > 0) == is_due
        now = self.known = self.hybrid.contents()
        for kind in self.tree.evictable_kinds:
            lost = self.paths(kind, before) - self.paths(kind, now)
            assert self.free()[kind] - free[kind] == len(lost) >= (freed if kind is pool else 0)
            assert not any(self.locks_on(kind, path) for path in lost)
            assert self.paths(kind, now) <= self.paths(kind, before)

    # Laws

    def free(self) -> dict[PoolKind, int]:
        return {pool: self.hybrid.pools.free(pool) for pool in self.tree.evictable_kinds}

    def paths(self, pool: PoolKind, contents: Contents | None = None) -> set[Path]:
        contents = contents or self.known
        return {PoolKind.FULL: contents.pages, PoolKind.SWA: contents.windows, PoolKind.MAMBA: contents.states}[pool]

    def locks_on(self, pool: PoolKind, path: Path) -> list[Held]:
        """Holders that need what `path` has of a pool."""
        return [held for held in self.held if path in self.needs(pool, held)]

    def needs(self, pool: PoolKind, held: Held) -> set[Path]:
        match pool:
            case PoolKind.SWA:
                start = self.window_start(len(held.path) // PAGE_SIZE)
                return prefixes(held.path, start) if held.has_window else set()
            case PoolKind.MAMBA:
                return {held.path} if held.has_state else set()
            case _:
                return prefixes(held.path)

    def check_counts(self) -> None:
        """Protected is what some holder needs, idle what only those need that give way."""
        for pool in self.tree.evictable_kinds:
            needed = {path: self.locks_on(pool, path) for path in self.paths(pool)}
            assert self.tree.idle_units(pool) == sum(
                bool(locks) and all(held.is_idle for held in locks) for locks in needed.values()
            )
            assert self.hybrid.pools.ledger.protected(pool) == sum(bool(locks) for locks in needed.values())
            missing = {path for held in self.held for path in self.needs(pool, held)} - self.paths(pool)
            assert not missing, "what a holder needs is gone"

    def findings(self) -> tuple[Finding, ...]:
        return check_books(self.hybrid.parts.books, CheckLevel.FULL).findings


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("window", "has_states"), MODELS)
def test_tree_when_it_lives_through_random_use_then_it_agrees_with_sets_of_paths(
    window: int | None, seed: int, *, has_states: bool
) -> None:
    life = Life(seed, window, has_states=has_states)
    for _ in range(STEPS):
        life.run()
    while life.held:
        life.unlock()
    assert life.findings() == ()
    while any(life.tree.evict(99, pool) for pool in life.tree.evictable_kinds):
        assert life.findings() == ()
    assert set(life.free().values()) == {80}


@pytest.mark.parametrize(("window", "has_states"), [(5, False), (6, False), (13, False), (None, True), (6, True)])
def test_evict_when_one_pool_is_emptied_then_no_leaf_is_left_that_no_prefix_ends_in(
    window: int | None, *, has_states: bool
) -> None:
    life = Life(99, window, has_states=has_states)
    for pool in life.tree.evictable_kinds[1:]:
        for _ in range(12):
            life.donate()
        while life.held:
            life.unlock()
        while life.tree.evict(1, pool):
            pass
        assert life.hybrid.contents() == Contents(), f"nothing can be used without any of {pool}"
        life.known = Contents()
