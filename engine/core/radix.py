"""The radix prefix tree over pages: `probe` (read-only), `lock`, `donate`, `evict`."""

from collections.abc import Iterator, Mapping
from itertools import groupby

from engine.core.errors import require
from engine.core.events import PrefixStored
from engine.core.eviction import EvictionHeap, has_free_state, has_free_windows, is_free_leaf
from engine.core.ids import TOKEN_BYTES
from engine.core.matcher import Matcher, pinned_by, pinned_by_lock, steps_along, steps_down
from engine.core.ownership import CACHE, Move, Owner, PoolKind
from engine.core.path_locks import PathLocks
from engine.core.pools import Pools
from engine.core.radix_node import Donated, Gift, Lock, Match, Node, Pinned, path_up, shared_pages, walk_down
from engine.core.window import leave_pages

FULL, SWA, MAMBA = PoolKind.FULL, PoolKind.SWA, PoolKind.MAMBA
"""Looked up once: asking an enum for a member costs as much as a call."""


class RadixTree:
    """One tree a namespace, sharing the pools. Every unit in it belongs to CACHE in the ledger.

    A prefix can be used where it has all that its model's layers look back to; see `engine.core.matcher`.

    Eviction takes unlocked leaves, or of a node the windows or the state that nobody has locked, least recently used
    first.
    """

    def __init__(self, page_size: int, pools: Pools, window: int | None = None) -> None:
        """`window`: tokens of the windows that the SWA pool is for, where there is one."""
        assert pools.has_swa == (window is not None), f"window {window} with an SWA pool: {pools.has_swa}"
        self._page_bytes = page_size * TOKEN_BYTES
        self._page_size = page_size
        self._pools = pools
        self.matcher = Matcher(page_size, window, pools.has_states)
        self._is_plain = self.matcher.is_plain
        self._leave_pages = leave_pages(window or 1, page_size)
        self._full_heap = EvictionHeap(is_free_leaf)
        self._locks = PathLocks(pools.ledger, self._offer)
        self._roots: dict[str, Node] = {}
        self._numbers = 0
        self._num_nodes = 0
        self._heaps = {FULL: self._full_heap}
        if pools.has_swa:
            self._heaps[SWA] = EvictionHeap(has_free_windows)
        if pools.has_states:
            self._heaps[MAMBA] = EvictionHeap(has_free_state)
        self._uses = 0

    def idle_units(self, pool: PoolKind) -> int:
        """Protected units that only slots between turns lock: they become evictable when these are demoted."""
        return self._locks.idle_units(pool)

    def next_use(self) -> int:
        """The tree's own clock of uses: grows by one with each call."""
        self._uses += 1
        return self._uses

    def nodes(self) -> Iterator[Node]:
        """Every node, parents first, roots left out. For checks. O(1) a node, none looked at before it is asked for."""
        return walk_down(reversed(self._roots.values()))

    def roots(self) -> tuple[Node, ...]:
        """One a namespace, without pages. For checks."""
        return tuple(self._roots.values())

    def offered(self, pool: PoolKind) -> Iterator[int | None]:
        """Numbers of the nodes in line to give up their units of a pool, None for stale places. For checks."""
        return self._heaps[pool].offered()

    @property
    def evictable_kinds(self) -> tuple[PoolKind, ...]:
        """Pools that it has a line of nodes for."""
        return tuple(self._heaps)

    # Reading

    def probe(self, namespace: str, key: bytes) -> Match | None:
        """The longest usable path whose ids equal the first whole pages of `key`; None when there is none.

        Changes nothing. O(len(key)) in memcmp, O(depth) in steps.
        """
        return self.matcher.longest_usable(steps_along(self._roots.get(namespace), key, self._page_bytes))

    def probe_path(self, lock: Lock, num_pages: int) -> Match | None:
        """The longest usable prefix of a lock's path within its first `num_pages`. Changes nothing. O(depth)."""
        return self.matcher.longest_usable(steps_down(lock, num_pages))

    def pinned_by(self, match: Match) -> Pinned:
        """What would stop being reclaimable if `match` were locked. Changes nothing. O(depth)."""
        return pinned_by(match, self.matcher)

    def pinned_by_lock(self, lock: Lock) -> Pinned:
        """What would stop being reclaimable if an idle lock were not idle. O(depth)."""
        return pinned_by_lock(lock, self.matcher)

    def lru_use(self, pool: PoolKind = FULL) -> int | None:
        """Last use of the node that `evict` would take units of next; None when there is none."""
        node = self._heaps[pool].first()
        return None if node is None else node.last_use

    # Locks

    def lock(self, match: Match) -> Lock:
        """Locks the path of a match, with its last window and its state."""
        node = match.node
        if match.used_pages < len(node.pages):
            node = self._split(node, match.used_pages)
        return self._lock_at(node, match.num_pages)

    def _lock_at(self, node: Node, num_pages: int) -> Lock:
        self._locks.add(node, locks=1)
        lock = Lock(node, num_pages)
        if self._is_plain:
            return lock
        if self.matcher.window is not None:
            first = lock.window_from = self.matcher.window_from(num_pages)
            for step, start in tuple(lock.window_nodes()):
                if start < first:
                    self._split(step, first - start)  # what is left of it begins where the window does
                assert step.swa, f"node {step.number}: locked as a window, has no SWA pages"
                self._locks.use(SWA, step, locks=1)
        if self.matcher.has_states:
            assert node.state, f"node {node.number}: locked with its state, has none"
            lock.has_state = True
            self._locks.use(MAMBA, node, locks=1)
        return lock

    def unlock(self, lock: Lock, last_use: int) -> None:
        """Gives a path back; what becomes unlocked counts as used at `last_use`, or later where it already was."""
        require(lock.is_live, f"node {lock.node.number}: its lock was given back before")
        self.set_idle(lock, False)
        lock.is_live = False
        is_plain = self._is_plain
        for node in path_up(lock.node):
            if last_use > node.last_use:
                node.last_use = last_use
                if not is_plain:
                    self._offer_extras(node)
        if not is_plain:
            self.leave_window(lock, lock.num_pages)
            self.leave_state(lock)
        self._locks.add(lock.node, locks=-1)
        self._full_heap.offer(lock.node, self._num_nodes)
        self._drop_useless(lock.node)  # its windows or its state may have gone meanwhile

    def leave_window(self, lock: Lock, first: int) -> None:
        """The holder needs no windows of its path before page `first` any more. Given up a good part at a time, so that
        nodes are not cut into pages."""
        if lock.window_from is None or first <= lock.window_from:
            return
        if first < lock.num_pages and first - lock.window_from < self._leave_pages:
            return
        for node, start in tuple(lock.window_nodes()):
            if start < first:
                left = node if start + len(node.pages) <= first else self._split(node, first - start)
                self._locks.use(SWA, left, locks=-1, idles=-1 if lock.is_idle else 0)
        lock.window_from = first if first < lock.num_pages else None

    def leave_state(self, lock: Lock) -> None:
        """The holder needs the state of its path no more. Idempotent."""
        if lock.has_state:
            lock.has_state = False
            self._locks.use(MAMBA, lock.node, locks=-1, idles=-1 if lock.is_idle else 0)

    def shorten(self, lock: Lock, match: Match, last_use: int) -> Lock:
        """Trades a lock for one of a usable part of its path."""
        shorter = self.lock(match)
        self.unlock(lock, last_use)
        return shorter

    def set_idle(self, lock: Lock, is_idle: bool) -> None:
        """Says whether the holder of the lock gives way under pressure."""
        if lock.is_idle == is_idle:
            return
        lock.is_idle = is_idle
        change = 1 if is_idle else -1
        self._locks.add(lock.node, idles=change)
        for node, _ in lock.window_nodes():
            self._locks.use(SWA, node, idles=change)
        if lock.has_state:
            self._locks.use(MAMBA, lock.node, idles=change)

    # Growing

    def donate(self, move: Move, owner: Owner, namespace: str, lock: Lock | None, key: bytes, gift: Gift) -> Donated:
        """Takes `owner`'s gift for `key`, whose first tokens `lock` covers. The whole key is usable with it.

        What the tree already has for these ids are duplicates: they stay `owner`'s, who releases them and uses the
        tree's instead. Windows that had been evicted are taken up again. The lock of the whole key comes in place of
        the given one. Moves the others from `owner` to CACHE by `move`.
        """
        assert len(key) % self._page_bytes == 0, f"{len(key)} bytes of key are not whole pages"
        num_pages = len(key) // self._page_bytes
        at = num_pages - len(gift.pages)
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(0, b"", [], None, namespace=namespace)
        node = lock.node if lock is not None else root
        if lock is not None and self._is_plain and not node.children and node.lock_count == 1:
            self._lengthen(move, owner, lock, key[at * self._page_bytes :], gift.pages)
            return Donated(lock, [], [], is_state_taken=False)
        duplicates: list[int] = []
        taken: dict[int, None] = {}
        while at < num_pages:
            start = at * self._page_bytes
            child = node.children.get(key[start : start + self._page_bytes])
            if child is None:
                node = self._grow(move, owner, node, key[start:], at, gift)
                if gift.swa:
                    taken.update(dict.fromkeys(place for place in gift.swa if place >= at))
                break
            used = shared_pages(child.key, key[start : start + len(child.key)], self._page_bytes)
            node = child if used == len(child.pages) else self._split(child, used)
            duplicates.extend(gift.pages[len(duplicates) : len(duplicates) + used])
            if gift.swa:
                taken.update(dict.fromkeys(self._revive(move, owner, node, at, gift.swa)))
            at += used
        if node is root:
            return Donated(None, duplicates, [], is_state_taken=False)
        is_state_taken = gift.state > 0 and self._take_state(move, owner, node, gift.state)
        fresh = self._lock_at(node, num_pages)
        if lock is not None:
            self.unlock(lock, 0)
        swa_duplicates = [page for place, page in gift.swa.items() if place not in taken] if gift.swa else []
        return Donated(fresh, duplicates, swa_duplicates, is_state_taken)

    def _lengthen(self, move: Move, owner: Owner, lock: Lock, key: bytes, pages: list[int]) -> None:
        """Puts pages behind a leaf that the giver alone has locked: so a prompt of many chunks becomes one node."""
        self._pools.move(move, FULL, pages, owner, CACHE)
        self._pools.ledger.tell_stored(PrefixStored(FULL, tuple(pages), key, lock.node.pages[-1]))
        self._pools.ledger.protect(pages)
        lock.node.key += key
        lock.node.pages += pages
        lock.num_pages += len(pages)

    def _grow(self, move: Move, owner: Owner, parent: Node, key: bytes, start: int, gift: Gift) -> Node:
        """Attaches all of `key`, in nodes that have SWA pages throughout or not at all. Returns the last one."""
        pages = gift.pages[len(gift.pages) - len(key) // self._page_bytes :]
        self._pools.move(move, FULL, pages, owner, CACHE)
        before = parent.pages[-1] if parent.pages else None
        self._pools.ledger.tell_stored(PrefixStored(FULL, tuple(pages), key, before, parent.namespace or ""))
        if self._is_plain:
            return self._attach(parent, key, pages)
        if self.matcher.window is not None:
            windows = [page for place, page in gift.swa.items() if place >= start]
            self._pools.move(move, SWA, windows, owner, CACHE)
        node, use = parent, self.next_use()  # what of it nobody locks is not older than all the rest
        for _, run in groupby(range(len(pages)), key=lambda at: start + at in gift.swa):
            places = list(run)
            first, stop = places[0], places[-1] + 1
            node = self._attach(node, key[first * self._page_bytes : stop * self._page_bytes], pages[first:stop])
            node.swa = [gift.swa[start + place] for place in places if start + place in gift.swa]
            node.last_use = use
            self._tell_windows(node)
            self._offer_extras(node)
        return node

    def _revive(self, move: Move, owner: Owner, node: Node, start: int, swa: Mapping[int, int]) -> tuple[int, ...]:
        """Gives a node that lost its windows those of a gift, as far back from its end as there are. Their places."""
        if self.matcher.window is None or node.swa:
            return ()
        stop = start + len(node.pages)
        first = stop
        while first > start and first - 1 in swa:
            first -= 1
        if first == stop:
            return ()
        if first > start:
            self._split(node, first - start)
        node.swa = [swa[place] for place in range(first, stop)]
        self._pools.move(move, SWA, node.swa, owner, CACHE)
        self._tell_windows(node)
        node.last_use = max(node.last_use, self.next_use())
        self._offer_extras(node)
        return tuple(range(first, stop))

    def _tell_windows(self, node: Node) -> None:
        if node.swa:
            self._pools.ledger.tell_stored(PrefixStored(SWA, tuple(node.swa), beside=tuple(node.pages)))

    def _take_state(self, move: Move, owner: Owner, node: Node, state: int) -> bool:
        if not state or node.state:
            return False
        self._pools.move(move, MAMBA, [state], owner, CACHE)
        self._pools.ledger.tell_stored(PrefixStored(MAMBA, (state,), beside=(node.pages[-1],)))
        node.state = state
        node.last_use = max(node.last_use, self._uses)
        self._offer_extras(node)
        return True

    def _attach(self, parent: Node, key: bytes, pages: list[int]) -> Node:
        self._numbers += 1
        self._num_nodes += 1
        node = Node(self._numbers, key, list(pages), parent)
        parent.children[key[: self._page_bytes]] = node
        return node

    def _split(self, node: Node, used: int) -> Node:
        """Cuts a node after `used` pages. The lower part keeps its identity, so locks that end there stay right, and
        its state. Returns the upper part.
        """
        assert 0 < used < len(node.pages), f"node {node.number}: split at {used} of {len(node.pages)}"
        assert node.parent is not None, "the root has no pages"
        cut = used * self._page_bytes
        upper = self._attach(node.parent, node.key[:cut], node.pages[:used])
        upper.lock_count, upper.idle_count, upper.last_use = node.lock_count, node.idle_count, node.last_use
        if node.swa:
            upper.swa, node.swa = node.swa[:used], node.swa[used:]
            upper.swa_uses = node.swa_uses.copy()
        node.key, node.pages, node.parent = node.key[cut:], node.pages[used:], upper
        upper.children[node.key[: self._page_bytes]] = node
        if not self._is_plain:
            # Of equal uses the lower number goes first, and that is to be what lies in front.
            upper.number, node.number = node.number, upper.number
            for part in (upper, node):
                self._offer_extras(part)
            self._full_heap.offer(node, self._num_nodes)
        return upper

    # Shrinking

    def evict(self, num_units: int, pool: PoolKind = FULL) -> int:
        """Frees units of a pool, of the least recently used node that can give some. Returns how many of its own; 0:
        there are none.

        Where pages are all that a prefix needs, at most `num_units` from the end of a leaf. Else all of the node's:
        what would be left could not be used.
        """
        node = (self._full_heap if pool is FULL else self._heaps[pool]).first()
        if node is None:
            return 0
        taken = node.pages if pool is FULL else node.units(pool)
        if pool is not FULL:
            self._free(node, pool)
            self._drop_useless(node)
        elif self._is_plain and num_units < len(taken):
            taken = node.pages[-num_units:]
            del node.pages[-num_units:]
            node.key = node.key[: len(node.pages) * self._page_bytes]
            self._pools.free_up(Move.EVICT, FULL, taken, CACHE)
        else:
            self._drop_useless(self._remove(node))
        return len(taken)

    def _free(self, node: Node, pool: PoolKind) -> None:
        """Takes a node's windows or its state from it."""
        units = node.units(pool)
        if pool is SWA:
            node.swa = []
        else:
            node.state = 0
        self._pools.free_up(Move.EVICT, pool, units, CACHE)

    def _remove(self, node: Node) -> Node:
        """Frees all that an unlocked leaf has. Returns its parent."""
        parent = node.parent
        assert parent is not None, "the root is never evicted"
        del parent.children[node.key[: self._page_bytes]]
        node.parent = None
        self._num_nodes -= 1
        if parent.namespace is not None and not parent.children:
            del self._roots[parent.namespace]
        self._pools.free_up(Move.EVICT, FULL, node.pages, CACHE)
        for pool in () if self._is_plain else (SWA, MAMBA):
            if node.units(pool):
                self._free(node, pool)
        self._full_heap.offer(parent, self._num_nodes)
        return parent

    def _drop_useless(self, node: Node) -> None:
        """Frees unlocked leaves from a node upwards that no prefix can end in any more, nor lead through."""
        while not self._is_plain and is_free_leaf(node) and not self._is_usable_leaf(node):
            node = self._remove(node)

    def _is_usable_leaf(self, node: Node) -> bool:
        has_window = bool(node.swa) or self.matcher.window in (None, 1)  # a window of one looks back to nothing
        return has_window and (not self.matcher.has_states or node.state > 0)

    def _offer(self, pool: PoolKind, node: Node) -> None:
        self._heaps[pool].offer(node, self._num_nodes)

    def _offer_extras(self, node: Node) -> None:
        """Puts a node in line for what it has besides pages, as far as nobody has locked that."""
        for pool in self._heaps:
            if pool is not FULL:
                self._offer(pool, node)
