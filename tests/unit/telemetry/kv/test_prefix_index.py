"""The index of what is in the prefix cache, and what is told of it in full."""

import pytest

from engine.core.events import PrefixStored
from engine.core.ids import pack_ids
from engine.core.ownership import PoolKind
from telemetry.kv.prefix_index import Left, PrefixIndex, Stored

PAGE_SIZE = 2
FULL, SWA, MAMBA = PoolKind.FULL, PoolKind.SWA, PoolKind.MAMBA


def make_index(*, has_salted: bool = True) -> PrefixIndex:
    return PrefixIndex(PAGE_SIZE, [SWA, MAMBA], has_salted=has_salted)


def pages(*numbers: int, parent: int | None = None, namespace: str = "") -> PrefixStored:
    """Page n holds the tokens 10 n and 10 n + 1."""
    ids = pack_ids(token for number in numbers for token in (10 * number, 10 * number + 1))
    return PrefixStored(FULL, numbers, ids, parent, namespace)


def test_pages_when_stored_then_told_with_what_is_in_front_and_their_namespace() -> None:
    index = make_index()
    assert index.store(pages(1, 2, namespace="n")) == Stored(
        FULL, (1, 2), (1, 2), None, pack_ids([10, 11, 20, 21]), "n"
    )
    behind = index.store(pages(3, parent=2))
    assert behind == Stored(FULL, (3,), (3,), 2, pack_ids([30, 31]), "n")
    assert index.num_units == 3


def test_other_units_when_stored_then_they_stand_for_the_tokens_of_the_pages_beside_them() -> None:
    index = make_index()
    index.store(pages(1, 2, 3))
    windows = index.store(PrefixStored(SWA, (8, 9), beside=(2, 3)))
    state = index.store(PrefixStored(MAMBA, (5,), beside=(3,)))
    assert windows == Stored(SWA, (8, 9), (2, 3), 1, pack_ids([20, 21, 30, 31]), "")
    assert state == Stored(MAMBA, (5,), (3,), 2, pack_ids([30, 31]), "")


def test_units_when_they_leave_then_told_once_and_only_those_that_were_known() -> None:
    index = make_index()
    index.store(pages(1, 2))
    index.store(PrefixStored(SWA, (1, 2), beside=(1, 2)))
    assert index.leave(FULL, (2, 7)) == Left(FULL, (2,))
    assert index.leave(FULL, (2,)) is None
    assert index.leave(SWA, (1, 2)) == Left(SWA, (1, 2))
    assert not index.is_empty
    assert index.leave(FULL, (1,)) == Left(FULL, (1,))
    assert index.is_empty


def test_namespace_when_it_is_not_published_then_nothing_of_it_is_known() -> None:
    index = make_index(has_salted=False)
    assert index.store(pages(1, namespace="tenant")) is None
    assert index.store(pages(2, parent=1)) is None
    assert index.store(PrefixStored(SWA, (4,), beside=(2,))) is None
    assert index.leave(FULL, (1, 2)) is None
    assert index.store(pages(3)) is not None


def test_copy_when_a_tree_has_branches_then_all_is_told_parents_first_in_runs() -> None:
    index = make_index()
    for event in (pages(1, 2, 3), pages(4, 5, parent=2), pages(6, namespace="n")):
        index.store(event)
    index.store(PrefixStored(SWA, (21, 22), beside=(2, 3)))
    told = list(index.copy().stored(pages_max=2))
    seen: set[int | None] = {None}
    for stored in told:
        assert len(stored.units) <= 2
        assert stored.parent in seen
        seen.update(stored.pages)
    assert sorted(unit for stored in told if stored.pool is FULL for unit in stored.units) == [1, 2, 3, 4, 5, 6]
    assert [stored.units for stored in told if stored.pool is SWA] == [(21, 22)]
    again = make_index()
    for stored in told:
        parent = stored.parent if stored.pool is FULL else None
        beside = () if stored.pool is FULL else stored.pages
        again.store(PrefixStored(stored.pool, stored.units, stored.ids, parent, stored.namespace, beside))
    assert again.copy() == index.copy()


def test_copy_when_the_page_in_front_was_lost_then_what_hangs_on_it_is_left_out() -> None:
    index = make_index()
    index.store(pages(1, 2, 3))
    index.leave(FULL, (2,))
    assert [stored.units for stored in index.copy().stored(pages_max=8)] == [(1,)]


def test_copy_when_the_index_goes_on_then_it_stays_as_it_was() -> None:
    index = make_index()
    index.store(pages(1))
    before = index.copy()
    index.store(pages(2, parent=1))
    assert list(before.pages) == [1]


def test_pages_when_their_ids_are_not_whole_pages_then_refused() -> None:
    with pytest.raises(AssertionError, match="bytes of ids"):
        make_index().store(PrefixStored(FULL, (1, 2), pack_ids([1, 2, 3])))
