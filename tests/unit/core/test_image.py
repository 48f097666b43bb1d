"""The books unit by unit: owners by the ledger, locks by the tree, what drains; and of which events they are."""

from collections import Counter

import pytest

from engine.core.ids import StepNo
from engine.core.image import BooksImage, PoolImage, take_image
from engine.core.ownership import CACHE, FREE, OwnerKind, PoolKind
from engine.core.snapshot import PoolBooks
from tests.kit.busy_core import make_busy_core
from tests.kit.core_parts import make_parts
from tests.kit.hybrid_tree import OWNER, HybridTree
from tests.kit.random_traffic import RandomTraffic

FULL, SWA, MAMBA, ROWS = PoolKind.FULL, PoolKind.SWA, PoolKind.MAMBA, PoolKind.ROWS


def find(image: BooksImage, pool: PoolKind) -> PoolImage:
    return next(each for each in image.pools if each.pool is pool)


def units_of(image: PoolImage, kind: OwnerKind) -> set[int]:
    return {unit for unit, owner in enumerate(image.owners) if unit and owner.kind is kind}


def count_terms(image: PoolImage) -> PoolBooks:
    """The equation of a pool, counted from its units."""
    counts = Counter(owner.kind for owner in image.owners[1:])
    return PoolBooks(
        pool=image.pool,
        total=len(image.owners) - 1 - counts[OwnerKind.QUARANTINED],
        available=counts[OwnerKind.FREE],
        evictable=counts[OwnerKind.CACHE] - len(image.protected),
        protected=len(image.protected),
        session_held=counts[OwnerKind.SESSION],
        uncached=counts[OwnerKind.REQUEST],
        draining=len(image.draining),
        quarantined=counts[OwnerKind.QUARANTINED],
    )


def test_image_when_nothing_was_given_then_all_is_free_and_padding_reads_free() -> None:
    image = take_image(make_parts(pool_pages=5, num_rows=3).books, 7)
    assert image.seq == 7
    assert image.pools == (
        PoolImage(FULL, (FREE,) * 5, frozenset(), frozenset()),
        PoolImage(ROWS, (FREE,) * 3, frozenset(), frozenset()),
    )


def test_image_when_units_are_owned_and_drain_then_each_is_told_with_its_owner() -> None:
    parts = make_parts(pool_pages=6, num_rows=3)
    granted = parts.pools.grant(OWNER, 3, rows=1)
    assert granted is not None
    parts.pools.drain(OWNER, granted.pages[:2], StepNo(4))
    full, rows = take_image(parts.books, 0).pools
    assert {unit: full.owners[unit] for unit in granted.pages} == dict.fromkeys(granted.pages, OWNER)
    assert units_of(full, OwnerKind.FREE) == set(range(1, 6)) - set(granted.pages)
    assert (full.protected, full.draining) == (frozenset(), frozenset(granted.pages[:2]))
    assert units_of(rows, OwnerKind.REQUEST) == set(granted.rows)
    assert not rows.draining


def test_image_when_pages_are_cached_then_protected_are_those_that_a_lock_needs_in_each_pool() -> None:
    hybrid = HybridTree(has_states=True)  # a window of 6 sees the last two pages
    hybrid.insert(range(20))
    lock = hybrid.lock(range(20))
    image = take_image(hybrid.parts.books, 0)
    for pool in (FULL, SWA, MAMBA):
        assert {find(image, pool).owners[unit] for unit in units_of(find(image, pool), OwnerKind.CACHE)} == {CACHE}
    assert find(image, FULL).protected == set(lock.pages())
    assert find(image, SWA).protected == {page for _, page in lock.swa_places()}
    assert len(find(image, SWA).protected) == 2
    assert len(units_of(find(image, SWA), OwnerKind.CACHE)) == 5
    assert find(image, MAMBA).protected == units_of(find(image, MAMBA), OwnerKind.CACHE)
    hybrid.tree.unlock(lock, 2)
    assert all(pool.protected == frozenset() for pool in take_image(hybrid.parts.books, 0).pools)


def test_image_when_a_core_is_busy_then_it_counts_as_the_snapshot_does() -> None:
    core = make_busy_core()
    snapshot, image = core.snapshot(), core.image()
    assert tuple(map(count_terms, image.pools)) == snapshot.pools
    (full, _rows) = image.pools
    assert all((full.protected, units_of(full, OwnerKind.SESSION), units_of(full, OwnerKind.REQUEST)))


@pytest.mark.parametrize("seed", range(4))
def test_image_when_traffic_is_random_then_of_all_events_so_far_and_it_counts_as_the_snapshot_does(seed: int) -> None:
    traffic = RandomTraffic(seed)
    drained = protected = 0
    for _ in traffic.run(300):
        image = traffic.core.image()
        assert tuple(map(count_terms, image.pools)) == traffic.core.snapshot().pools
        drained += len(image.pools[0].draining)
        protected += len(image.pools[0].protected)
    assert min(drained, protected) > 0, "traffic has to show them"


def test_image_when_events_wait_to_be_taken_then_its_number_is_that_of_the_last_of_them() -> None:
    core = make_busy_core()
    before = core.image().seq
    assert core.take_events() == ()
    core.expire(1e9)
    waiting = core.image().seq
    taken = core.take_events()
    assert waiting > before
    assert waiting == taken[-1].seq == core.image().seq
