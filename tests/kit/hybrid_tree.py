"""A prefix tree of a model with windows and states, and what is in it told without its nodes."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.core.ids import pack_ids, unpack_ids
from engine.core.ownership import Move, Owner, OwnerKind, PoolKind
from engine.core.radix_node import Donated, Gift, Lock, Match, Node, path_up
from tests.kit.core_parts import CoreParts, make_parts

OWNER = Owner(OwnerKind.REQUEST, 1)
PAGE_SIZE = 4
Path = tuple[int, ...]


@dataclass(slots=True)
class Contents:
    """Each path of whole pages by its ids: those that have a page, an SWA page at their end, a state behind them."""

    pages: set[Path] = field(default_factory=set)
    windows: set[Path] = field(default_factory=set)
    states: set[Path] = field(default_factory=set)


class HybridTree:
    """Namespace "" of a tree with plenty of units, page size 4."""

    def __init__(self, window: int | None = 6, *, has_states: bool = False, pool_pages: int = 65) -> None:
        self.parts: CoreParts = make_parts(
            PAGE_SIZE,
            pool_pages,
            window=window,
            swa_pages=pool_pages if window is not None else 0,
            state_slots=pool_pages if has_states else 0,
        )
        self.tree = self.parts.tree
        self.pools = self.parts.pools

    def donate(
        self, ids: Iterable[int], *, windows_from: int = 0, has_state: bool = True, lock: Lock | None = None
    ) -> Donated:
        """Gives pages for `ids` behind `lock`, SWA pages from that place on, and a state. Duplicates are released."""
        key = pack_ids(ids)
        start = lock.num_pages if lock is not None else 0
        num_pages = len(key) // (4 * PAGE_SIZE)
        granted = self.pools.grant(OWNER, num_pages - start, states=int(self.pools.has_states and has_state))
        assert granted is not None, "the pools are empty"
        swa = {place: page for place, page in enumerate(granted.swa_pages, start) if place >= windows_from}
        over = [page for place, page in enumerate(granted.swa_pages, start) if place < windows_from]
        gift = Gift(granted.pages, swa, granted.states[0] if granted.states else 0)
        donated = self.tree.donate(Move.DONATE, OWNER, "", lock, key, gift)
        self._release(PoolKind.FULL, donated.duplicates)
        self._release(PoolKind.SWA, over + donated.swa_duplicates)
        self._release(PoolKind.MAMBA, [] if donated.is_state_taken else granted.states)
        return donated

    def insert(self, ids: Iterable[int], *, windows_from: int = 0, has_state: bool = True, last_use: int = 1) -> None:
        """The same, unlocked again."""
        donated = self.donate(ids, windows_from=windows_from, has_state=has_state)
        assert donated.lock is not None
        self.tree.unlock(donated.lock, last_use)

    def _release(self, pool: PoolKind, units: list[int]) -> None:
        if units:
            self.pools.free_up(Move.RELEASE, pool, units, OWNER)

    def match(self, ids: Iterable[int]) -> Match:
        match = self.tree.probe("", pack_ids(ids))
        assert match is not None, "nothing usable is there"
        return match

    def lock(self, ids: Iterable[int]) -> Lock:
        return self.tree.lock(self.match(ids))

    def hit(self, ids: Iterable[int]) -> int:
        """Tokens that a probe finds."""
        match = self.tree.probe("", pack_ids(ids))
        return match.num_pages * PAGE_SIZE if match is not None else 0

    def shape(self) -> list[tuple[int, int, bool]]:
        """(pages, SWA pages, whether it has a state) of each node, parents first."""
        return [(len(node.pages), len(node.swa), node.state > 0) for node in self.tree.nodes()]

    def protected(self) -> tuple[int, ...]:
        """Of full pages, and of SWA pages and states where there are such."""
        ledger = self.pools.ledger
        return tuple(ledger.protected(pool) for pool in self.tree.evictable_kinds)

    def idle(self) -> tuple[int, ...]:
        return tuple(self.tree.idle_units(pool) for pool in self.tree.evictable_kinds)

    def reclaimable(self) -> tuple[int, ...]:
        return tuple(self.parts.radix.reclaimable(pool) for pool in self.tree.evictable_kinds)

    def cached(self) -> tuple[int, ...]:
        ledger = self.pools.ledger
        return tuple(ledger.count(pool, OwnerKind.CACHE) for pool in self.tree.evictable_kinds)

    def contents(self) -> Contents:
        contents = Contents()
        for node in self.tree.nodes():
            path = path_to(node)
            ends = range(len(path) - PAGE_SIZE * (len(node.pages) - 1), len(path) + 1, PAGE_SIZE)
            contents.pages |= {path[:end] for end in ends}
            if node.swa:
                contents.windows |= {path[:end] for end in ends}
            if node.state:
                contents.states.add(path)
        return contents


def path_to(node: Node) -> Path:
    """All ids from the root to its end."""
    return tuple(unpack_ids(b"".join(reversed([step.key for step in path_up(node)]))))
