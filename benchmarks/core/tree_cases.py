"""The prefix tree and the pools: evict, allocate and free, match, insert."""

from collections.abc import Iterator
from itertools import count

from benchmarks.core.parts import Parts, grant_pages, make_ids, make_parts, make_request, request_owner
from benchmarks.core.results import Result
from benchmarks.core.timing import measure
from engine.core.ids import pack_ids, pages_for, slice_ids
from engine.core.ownership import Move, PoolKind
from engine.core.radix_node import Gift, Lock

PAGE_SIZE = 16
OWNER = request_owner(1)

EVICT_PEER_US = {1_000: 380.0, 5_000: 1_800.0, 20_000: 23_600.0, 50_000: 77_000.0}
EVICT_TARGET_US = 10.0
EVICT_TOKENS = 64

ALLOCATE_PEER_US = {1 << 16: 50.0, 1 << 20: 1_900.0, 1 << 22: 6_100.0}
ALLOCATE_TARGET_US = {16: 20.0, 1: 100.0}
ALLOCATE_TOKENS = 256

MATCH_PEER_US = {1 << 10: 34.0, 1 << 13: 40.0, 1 << 16: 158.0}
MATCH_TARGET_US = {1 << 10: 10.0, 1 << 13: 20.0, 1 << 16: 80.0}
MATCH_NODE_TOKENS = 512
"""Tokens a node where the path is cut into many, as turns of a session or partial hits leave it."""

INSERT_PEER_US = 67.0
INSERT_TARGET_US = 60.0
INSERT_SHARED = 2048
INSERT_NEW = 128


def donate(parts: Parts, key: bytes, lock: Lock | None = None, known_pages: int = 0) -> Lock:
    """Puts `key` into the tree with fresh pages for all but the first `known_pages`, and locks it."""
    gift = Gift(grant_pages(parts, OWNER, len(key) // 4 // PAGE_SIZE - known_pages))
    donated = parts.tree.donate(Move.DONATE, OWNER, "", lock, key, gift)
    assert donated.lock is not None, "an empty key has no lock"
    parts.pools.free_up(Move.RELEASE, PoolKind.FULL, donated.duplicates, OWNER)
    return donated.lock


def add_leaf(parts: Parts, number: int) -> None:
    """One evictable leaf right under the root, of exactly the tokens that are evicted at once."""
    lock = donate(parts, pack_ids((number, *range(EVICT_TOKENS - 1))))
    parts.tree.unlock(lock, parts.tree.next_use())
    parts.log.take()


def evict(leaves: int, repetitions: int) -> Result:
    """Evicts one leaf of 64 tokens; a new one takes its place before the next time."""
    num_pages = EVICT_TOKENS // PAGE_SIZE
    parts = make_parts(PAGE_SIZE, leaves * num_pages)
    numbers = count()
    for _ in range(leaves):
        add_leaf(parts, next(numbers))
    timing = measure(lambda: parts.tree.evict(num_pages), repetitions, after=lambda: add_leaf(parts, next(numbers)))
    return Result("evict 64 tokens", "", leaves, "leaves", timing, EVICT_TARGET_US, EVICT_PEER_US.get(leaves))


def allocate(page_size: int, pool_tokens: int, repetitions: int) -> Result:
    """Grants 256 tokens' pages to a request and releases them, with both events."""
    parts = make_parts(page_size, pool_tokens // page_size)
    num_pages = pages_for(ALLOCATE_TOKENS, page_size)

    def run() -> None:
        granted = parts.pools.grant(OWNER, num_pages)
        assert granted is not None, "the pool is empty"
        parts.pools.free_up(Move.RELEASE, PoolKind.FULL, granted.pages, OWNER)

    timing = measure(run, repetitions, after=parts.log.take)
    target_us, peer_us = ALLOCATE_TARGET_US[page_size], ALLOCATE_PEER_US.get(pool_tokens)
    name = "allocate and free 256 token slots"
    return Result(name, f"page {page_size}", pool_tokens, "slots", timing, target_us, peer_us)


def match(num_tokens: int, node_tokens: int, repetitions: int) -> Result:
    """Probes the cache with a request whose whole pages but the last are all in the tree, in nodes of `node_tokens`."""
    parts = make_parts(PAGE_SIZE, num_tokens // PAGE_SIZE)
    ids = make_ids(num_tokens)
    lock: Lock | None = None
    for stop in range(node_tokens, num_tokens + 1, node_tokens):
        lock = donate(parts, slice_ids(ids, 0, stop), lock, (stop - node_tokens) // PAGE_SIZE)
    request = make_request(2, ids + pack_ids([1]))
    found = parts.radix.probe(request).tokens_from_tree
    assert found == num_tokens, f"a hit of {found} tokens where {num_tokens} were put"
    timing = measure(lambda: parts.radix.probe(request), repetitions, calls=5)
    target_us, peer_us = MATCH_TARGET_US.get(num_tokens), MATCH_PEER_US.get(num_tokens)
    variant = "one node" if node_tokens == num_tokens else f"{node_tokens} tokens a node"
    return Result("match, full hit", variant, num_tokens, "tokens", timing, target_us, peer_us)


def insert(is_matched: bool, repetitions: int) -> Result:
    """Gives 128 new tokens behind 2,048 shared ones to the tree.

    Matched: the holder has locked the shared path, as after a hit. Else it computed all of it, and every shared page is
    a duplicate.
    """
    parts = make_parts(PAGE_SIZE, 4 * (INSERT_SHARED + INSERT_NEW) // PAGE_SIZE)
    shared = make_ids(INSERT_SHARED)
    key = shared + make_ids(INSERT_NEW, seed=1)
    donate(parts, shared)  # stays locked: only the new tokens are evicted between repetitions
    locks: list[Lock] = []
    known_pages = INSERT_SHARED // PAGE_SIZE if is_matched else 0

    def before() -> None:
        if is_matched:
            found = parts.tree.probe("", shared)
            assert found is not None, "the shared tokens are gone"
            locks.append(parts.tree.lock(found))
        pages.extend(grant_pages(parts, OWNER, len(key) // 4 // PAGE_SIZE - known_pages))

    def run() -> None:
        lock = locks.pop() if locks else None
        donated = parts.tree.donate(Move.DONATE, OWNER, "", lock, key, Gift(pages))
        parts.pools.free_up(Move.RELEASE, PoolKind.FULL, donated.duplicates, OWNER)
        assert donated.lock is not None, "an empty key has no lock"
        parts.tree.unlock(donated.lock, parts.tree.next_use())

    def after() -> None:
        freed = parts.tree.evict(INSERT_NEW // PAGE_SIZE)
        assert freed == INSERT_NEW // PAGE_SIZE, f"{freed} pages were inserted"
        pages.clear()
        parts.log.take()

    pages: list[int] = []
    timing = measure(run, repetitions, before, after)
    variant = "shared part matched before" if is_matched else "shared part computed again"
    return Result(
        "insert 2,048 shared + 128 new",
        variant,
        INSERT_SHARED + INSERT_NEW,
        "tokens",
        timing,
        INSERT_TARGET_US,
        INSERT_PEER_US,
    )


def tree_results(is_quick: bool) -> Iterator[Result]:
    repetitions = 20 if is_quick else 2000
    for leaves in (1_000,) if is_quick else (1_000, 5_000, 20_000, 50_000, 200_000):
        yield evict(leaves, repetitions)
    for page_size in (16, 1):
        for pool_tokens in (1 << 16,) if is_quick else (1 << 16, 1 << 20, 1 << 22):
            yield allocate(page_size, pool_tokens, repetitions)
    sizes = (1 << 10,) if is_quick else (1 << 10, 1 << 13, 1 << 16)
    for num_tokens in sizes:
        yield match(num_tokens, num_tokens, repetitions)
    for num_tokens in sizes:
        yield match(num_tokens, MATCH_NODE_TOKENS, repetitions)
    for is_matched in (True, False):
        yield insert(is_matched, repetitions)
