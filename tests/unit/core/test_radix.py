"""The radix tree against a model that is nothing but a set of page paths."""

import random

import pytest

from engine.core.errors import InvariantViolation
from engine.core.ids import pack_ids
from engine.core.ownership import Move, Owner, OwnerKind, PoolKind
from engine.core.radix_node import Donated, Gift, Lock, Pinned, shared_pages
from tests.kit.core_parts import CoreParts, make_parts

OWNER = Owner(OwnerKind.REQUEST, 1)


def insert(parts: CoreParts, ids: list[int], namespace: str = "", lock: Lock | None = None) -> tuple[Lock, list[int]]:
    """Donates granted pages for `ids`; returns the lock and the duplicates, which are released."""
    held = len(lock.pages()) if lock is not None else 0
    granted = parts.pools.grant(OWNER, pages=len(ids) // parts.page_size - held)
    assert granted is not None
    donated = parts.tree.donate(Move.DONATE, OWNER, namespace, lock, pack_ids(ids), Gift(granted.pages))
    parts.pools.free_up(Move.RELEASE, PoolKind.FULL, donated.duplicates, OWNER)
    assert donated.lock is not None
    assert (donated.swa_duplicates, donated.is_state_taken) == ([], False)
    return donated.lock, donated.duplicates


def hit(parts: CoreParts, ids: list[int], namespace: str = "") -> int:
    """Tokens that a probe finds."""
    match = parts.tree.probe(namespace, pack_ids(ids))
    return match.num_pages * parts.page_size if match is not None else 0


def test_donate_when_the_key_is_empty_then_there_is_nothing_to_lock() -> None:
    parts = make_parts()
    assert parts.tree.donate(Move.DONATE, OWNER, "", None, b"", Gift([])) == Donated(None, [], [], is_state_taken=False)
    assert list(parts.tree.nodes()) == []


def test_eviction_when_one_leaf_is_used_very_often_then_order_is_still_that_of_use() -> None:
    """The heap holds many stale entries by then, and is rebuilt."""
    parts = make_parts()
    busy, _ = insert(parts, [1, 2, 3, 4])
    parts.tree.unlock(busy, parts.tree.next_use())
    idle, _ = insert(parts, [9, 9, 9, 9])
    parts.tree.unlock(idle, parts.tree.next_use())
    for _ in range(200):
        match = parts.tree.probe("", pack_ids([1, 2, 3, 4]))
        assert match is not None
        parts.tree.unlock(parts.tree.lock(match), parts.tree.next_use())
    assert parts.tree.evict(1) == 1
    assert (hit(parts, [9, 9, 9, 9]), hit(parts, [1, 2, 3, 4])) == (0, 4)


@pytest.mark.parametrize(("length", "found"), [(3, 0), (4, 4), (5, 4), (7, 4), (8, 8), (9, 8), (12, 8)])
def test_probe_when_prompts_end_around_page_edges_then_whole_pages_match(length: int, found: int) -> None:
    parts = make_parts()
    insert(parts, list(range(8)))
    assert hit(parts, list(range(length))) == found


def test_probe_when_ids_part_inside_a_page_then_that_page_does_not_match() -> None:
    parts = make_parts()
    insert(parts, list(range(12)))
    assert hit(parts, [0, 1, 2, 3, 4, 5, 99, 7, 8, 9, 10, 11]) == 4


def test_probe_when_asked_then_nothing_changes() -> None:
    parts = make_parts()
    lock, _ = insert(parts, list(range(12)))
    parts.tree.unlock(lock, 1)
    parts.events()
    before = [(node.number, node.key, node.lock_count, node.last_use) for node in parts.tree.nodes()]
    assert hit(parts, [0, 1, 2, 3, 99, 99, 99, 99]) == 4
    assert [(node.number, node.key, node.lock_count, node.last_use) for node in parts.tree.nodes()] == before
    assert parts.events() == []


def test_probe_when_the_namespace_is_another_then_it_misses_and_in_its_own_it_hits() -> None:
    parts = make_parts()
    insert(parts, list(range(8)), namespace="a")
    assert hit(parts, list(range(8)), namespace="b") == 0
    assert hit(parts, list(range(8)), namespace="a") == 8


def test_donate_when_the_tree_has_a_part_then_those_pages_come_back_as_duplicates() -> None:
    parts = make_parts()
    first, _ = insert(parts, list(range(8)))
    second, duplicates = insert(parts, [0, 1, 2, 3, 9, 9, 9, 9])
    assert len(duplicates) == 1
    assert second.pages()[0] == first.pages()[0]
    assert second.pages()[1] != first.pages()[1]


def test_donate_when_it_goes_on_from_a_lock_then_the_old_lock_is_given_back() -> None:
    parts = make_parts()
    lock, _ = insert(parts, list(range(4)))
    other, _ = insert(parts, list(range(4)))
    longer, _ = insert(parts, list(range(12)), lock=lock)
    assert not lock.is_live
    assert [node.lock_count for node in parts.tree.nodes()] == [2, 1]
    parts.tree.unlock(longer, 1)
    parts.tree.unlock(other, 2)
    assert parts.pools.ledger.protected(PoolKind.FULL) == 0


def test_donate_when_it_goes_on_from_a_leaf_of_its_own_then_that_is_made_longer() -> None:
    parts = make_parts()
    lock, _ = insert(parts, list(range(4)))
    longer, _ = insert(parts, list(range(12)), lock=lock)
    assert longer is lock
    assert lock.is_live
    assert lock.num_pages == len(lock.pages()) == 3
    (node,) = parts.tree.nodes()
    assert (node.lock_count, len(node.pages), len(node.key)) == (1, 3, 12 * 4)
    assert parts.pools.ledger.protected(PoolKind.FULL) == 3
    parts.tree.unlock(longer, 1)
    assert parts.pools.ledger.protected(PoolKind.FULL) == 0


def test_unlock_when_given_back_twice_then_it_is_a_violation() -> None:
    parts = make_parts()
    lock, _ = insert(parts, list(range(4)))
    parts.tree.unlock(lock, 1)
    with pytest.raises(InvariantViolation, match="given back before"):
        parts.tree.unlock(lock, 1)


def test_lock_when_the_match_ends_inside_a_node_then_both_halves_keep_their_locks() -> None:
    parts = make_parts()
    whole, _ = insert(parts, list(range(12)))
    match = parts.tree.probe("", pack_ids(range(4)))
    assert match is not None
    half = parts.tree.lock(match)
    assert sorted(node.lock_count for node in parts.tree.nodes()) == [1, 2]
    assert whole.pages()[:1] == half.pages()
    assert parts.tree.pinned_by(match) == Pinned(0)
    parts.tree.unlock(whole, 1)
    assert parts.pools.ledger.protected(PoolKind.FULL) == 1


def test_evict_when_leaves_are_locked_then_only_others_go_least_recently_used_first() -> None:
    parts = make_parts()
    locks = [insert(parts, [base] * 4)[0] for base in (1, 2, 3)]
    parts.tree.unlock(locks[0], 20)
    parts.tree.unlock(locks[2], 10)
    assert parts.tree.lru_use() == 10
    assert parts.tree.evict(5) == 1
    assert hit(parts, [3] * 4) == 0
    assert parts.tree.evict(5) == 1
    assert hit(parts, [1] * 4) == 0
    assert parts.tree.evict(5) == 0
    assert hit(parts, [2] * 4) == 4


def test_evict_when_a_leaf_has_more_than_is_needed_then_its_last_pages_go() -> None:
    parts = make_parts()
    lock, _ = insert(parts, list(range(16)))
    parts.tree.unlock(lock, 1)
    assert parts.tree.evict(3) == 3
    assert hit(parts, list(range(16))) == 4
    assert parts.pools.free(PoolKind.FULL) == 15


def test_evict_when_the_last_child_is_gone_then_its_parent_can_go_too() -> None:
    parts = make_parts()
    for ids in ([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 9, 9, 9, 9]):
        parts.tree.unlock(insert(parts, ids)[0], 1)
    assert parts.tree.evict(1) == 1
    assert parts.tree.evict(1) == 1
    assert hit(parts, [0, 1, 2, 3]) == 4
    assert parts.tree.evict(1) == 1
    assert parts.tree.evict(1) == 0


def test_idle_units_when_a_lock_is_idle_then_they_count_until_another_holds_the_path() -> None:
    parts = make_parts()
    lock, _ = insert(parts, list(range(8)))
    assert parts.tree.idle_units(PoolKind.FULL) == 0
    parts.tree.set_idle(lock, True)
    assert parts.tree.idle_units(PoolKind.FULL) == 2
    match = parts.tree.probe("", pack_ids(range(4)))
    assert match is not None
    assert parts.tree.pinned_by(match) == Pinned(1)
    assert parts.tree.pinned_by_lock(lock) == Pinned(2)
    other = parts.tree.lock(match)
    assert parts.tree.idle_units(PoolKind.FULL) == 1
    parts.tree.unlock(other, 1)
    parts.tree.unlock(lock, 1)
    assert parts.tree.idle_units(PoolKind.FULL) == 0


@pytest.mark.parametrize("page_size", [1, 2, 5])
def test_shared_pages_when_keys_part_anywhere_then_the_whole_pages_before_it_are_counted(page_size: int) -> None:
    left = list(range(20))
    for parting in range(21):
        right = left[:parting] + [token + 100 for token in left[parting:]]
        assert shared_pages(pack_ids(left), pack_ids(right), page_size * 4) == parting // page_size


@pytest.mark.parametrize("seed", range(20))
def test_tree_when_it_lives_through_random_use_then_it_agrees_with_a_set_of_paths(seed: int) -> None:
    rng = random.Random(seed)
    parts = make_parts(page_size=2, pool_pages=65)
    known: set[tuple[int, ...]] = set()
    locks: list[Lock] = []
    for _ in range(300):
        ids = [rng.randrange(2) for _ in range(2 * rng.randint(1, 6))]
        expected = max((n for n in range(0, len(ids) + 1, 2) if n == 0 or tuple(ids[:n]) in known), default=0)
        assert hit(parts, ids) == expected
        action = rng.randrange(3)
        if action == 0 and parts.pools.free(PoolKind.FULL) >= len(ids) // 2:
            locks.append(insert(parts, ids)[0])
            known |= {tuple(ids[:n]) for n in range(2, len(ids) + 1, 2)}
        elif action == 1 and locks:
            parts.tree.unlock(locks.pop(rng.randrange(len(locks))), rng.randrange(9))
        elif action == 2:
            parts.tree.evict(rng.randint(1, 3))
            known = {path for path in known if hit(parts, list(path)) == len(path)}
        held = {page for lock in locks for page in lock.pages()}
        assert parts.pools.ledger.protected(PoolKind.FULL) == len(held)
    for lock in locks:
        parts.tree.unlock(lock, 1)
    while parts.tree.evict(64):
        pass
    assert parts.pools.free(PoolKind.FULL) == 64
