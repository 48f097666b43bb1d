"""The metadata of a step, against arrays worked out by hand."""

from array import array

import numpy as np
import pytest

from engine.core.ownership import PoolKind
from engine.core.plan import PageCopy
from engine.core.sampling import GREEDY, SEED_MAX, Sampling
from engine.executor.batch import PoolGeometry, build_batch
from tests.kit.paged_sequence import PagedSequence, make_plan

POOL = PoolGeometry(page_size=4, pool_pages=16, num_rows=8)


def sequence(row: int, pages: list[int], planned_len: int = 0, sampling: Sampling = GREEDY) -> PagedSequence:
    made = PagedSequence(row, pages, sampling)
    made.planned_len = planned_len
    return made


def test_arrays_when_rows_are_mixed_then_are_ragged_and_paged_as_told() -> None:
    rows = [
        sequence(3, [5, 9, 2, 99], 3).chunk([70, 71, 72], num_samples=0),
        sequence(1, [7, 8], 7).decode(),
        sequence(6, [4]).chunk([80, 81, 82, 83]),
        sequence(2, [10, 11, 12], 6).verify(90, [91, 92]),
    ]
    batch = build_batch(make_plan(12, 4, rows, [PageCopy(PoolKind.FULL, 1, 3)]), POOL)
    assert batch.step == 12
    assert batch.token_ids.tolist() == [70, 71, 72, 0, 80, 81, 82, 83, 90, 91, 92]
    assert batch.positions.tolist() == [3, 4, 5, 7, 0, 1, 2, 3, 6, 7, 8]
    assert batch.qo_indptr.tolist() == [0, 3, 4, 8, 11]
    assert batch.kv_indptr.tolist() == [0, 2, 4, 5, 8]
    assert batch.kv_indices.tolist() == [5, 9, 7, 8, 4, 10, 11, 12]
    assert batch.last_page_len.tolist() == [2, 4, 4, 1]
    assert batch.kv_write_idx.tolist() == [23, 36, 37, 35, 16, 17, 18, 19, 46, 47, 48]
    assert batch.sample_indptr.tolist() == [0, 0, 1, 2, 5]
    assert batch.sample_idx.tolist() == [3, 7, 8, 9, 10]
    assert batch.sample_rows.tolist() == [1, 6, 2, 2, 2]
    assert batch.pending_idx.tolist() == [3]
    assert batch.pending_rows.tolist() == [1]
    assert batch.copies == (PageCopy(PoolKind.FULL, 1, 3),)
    assert (batch.num_tokens, batch.num_rows) == (11, 4)


def test_sample_idx_when_a_row_samples_its_last_tokens_only_then_are_those() -> None:
    rows = [sequence(1, [1, 2]).chunk([5, 6, 7, 8, 9], num_samples=2), sequence(2, [3]).chunk([5, 6], num_samples=2)]
    batch = build_batch(make_plan(1, 4, rows), POOL)
    assert batch.sample_indptr.tolist() == [0, 2, 4]
    assert batch.sample_idx.tolist() == [3, 4, 5, 6]
    assert batch.sample_rows.tolist() == [1, 1, 2, 2]


def test_arrays_when_nothing_samples_and_nothing_is_pending_then_those_are_empty() -> None:
    batch = build_batch(make_plan(1, 4, [sequence(1, [1]).chunk([5], num_samples=0)]), POOL)
    assert batch.sample_indptr.tolist() == [0, 0]
    assert batch.sample_idx.tolist() == batch.sample_rows.tolist() == batch.pending_idx.tolist() == []


def test_draws_when_rows_sample_in_different_ways_then_tell_those_that_are_not_greedy() -> None:
    drawn, other = Sampling(0.7, 40, 0.9, SEED_MAX), Sampling(1.5, seed=3)
    rows = [
        PagedSequence(1, [1], drawn).chunk([5, 6], num_samples=0),
        PagedSequence(2, [2]).chunk([5]),
        sequence(3, [3, 4], 6, drawn).decode(),
        PagedSequence(4, [5], other).chunk([7, 8, 9]),
        sequence(5, [6]).verify(7, [8]),
        sequence(6, [7, 8, 9], 6, drawn).verify(7, [8, 9]),
    ]
    batch = build_batch(make_plan(1, 4, rows), POOL)
    assert batch.sample_rows.tolist() == [2, 3, 4, 5, 5, 6, 6, 6]
    draws = batch.draws
    assert draws.places.tolist() == [1, 2, 5, 6, 7]
    assert draws.positions.tolist() == [7, 3, 7, 8, 9]
    assert draws.seeds.tolist() == [SEED_MAX, 3, SEED_MAX, SEED_MAX, SEED_MAX]
    assert draws.temperatures.tolist() == [0.7, 1.5, 0.7, 0.7, 0.7]
    assert draws.top_ks.tolist() == [40, 0, 40, 40, 40]
    assert draws.top_ps.tolist() == [0.9, 1.0, 0.9, 0.9, 0.9]


def test_draws_when_every_row_is_greedy_then_are_none() -> None:
    batch = build_batch(make_plan(1, 4, [sequence(1, [1]).chunk([5])]), POOL)
    assert len(batch.draws.places) == len(batch.draws.seeds) == 0


def test_index_arrays_when_built_then_are_int32_as_kernels_want_them() -> None:
    batch = build_batch(make_plan(1, 4, [sequence(1, [1, 2]).chunk([5] * 5)]), POOL)
    for indices in (batch.qo_indptr, batch.kv_indptr, batch.kv_indices, batch.last_page_len, batch.sample_indptr):
        assert indices.dtype == np.int32


@pytest.mark.parametrize("page_size", [1, 3, 16, 64])
def test_write_places_when_pages_have_any_size_then_are_where_the_page_table_says(page_size: int) -> None:
    pages = list(range(90, 0, -1))
    batch = build_batch(
        make_plan(1, page_size, [sequence(1, pages, 5).chunk(list(range(60)))]),
        PoolGeometry(page_size, pool_pages=91, num_rows=2),
    )
    expected = [pages[position // page_size] * page_size + position % page_size for position in range(5, 65)]
    assert batch.kv_write_idx.tolist() == expected
    assert batch.last_page_len.tolist() == [(65 - 1) % page_size + 1]


def test_page_tables_when_changed_or_grown_afterwards_then_the_batch_keeps_its_copy() -> None:
    held = sequence(1, [3, 4])
    batch = build_batch(make_plan(1, 4, [held.chunk([5] * 6)]), POOL)
    held.page_table[:] = array("i", [9, 9])
    held.page_table.append(9)
    assert batch.kv_indices.tolist() == [3, 4]


def test_page_tables_when_two_rows_share_read_only_pages_then_the_plan_is_good() -> None:
    rows = [sequence(1, [3, 4], 4).chunk([5]), sequence(2, [3, 5], 4).chunk([6])]
    assert build_batch(make_plan(1, 4, rows), POOL).kv_indices.tolist() == [3, 4, 3, 5]


@pytest.mark.parametrize(
    ("pages", "other_pages"), [([3, 4], [3, 4]), ([3, 4], [4, 5]), ([3, 3], [6, 5])], ids=["both", "reads", "self"]
)
def test_plan_when_a_written_page_appears_twice_then_is_refused(pages: list[int], other_pages: list[int]) -> None:
    rows = [sequence(1, pages, 4).chunk([5]), sequence(2, other_pages, 4).chunk([6])]
    with pytest.raises(AssertionError, match="written and appear more than once"):
        build_batch(make_plan(1, 4, rows), POOL)


@pytest.mark.parametrize("page", [16, 400])
def test_plan_when_a_page_is_past_the_pool_then_is_refused(page: int) -> None:
    with pytest.raises(AssertionError, match=f"page {page} of 16"):
        build_batch(make_plan(1, 4, [sequence(1, [page]).chunk([5])]), POOL)


@pytest.mark.parametrize("page", [0, -1])
def test_plan_when_a_page_is_padding_then_is_refused(page: int) -> None:
    with pytest.raises(AssertionError, match="padding"):
        build_batch(make_plan(1, 4, [sequence(1, [page]).chunk([5])]), POOL)


@pytest.mark.parametrize("row", [0, 8, -1])
def test_plan_when_a_row_is_past_the_rows_then_is_refused(row: int) -> None:
    with pytest.raises(AssertionError, match=f"row {row} of 8"):
        build_batch(make_plan(1, 4, [sequence(row, [1]).chunk([5])]), POOL)


def test_plan_when_its_page_size_is_another_then_is_refused() -> None:
    with pytest.raises(AssertionError, match="page size 8, the pool's 4"):
        build_batch(make_plan(1, 8, [sequence(1, [1]).chunk([5])]), POOL)


def test_plan_when_it_breaks_the_common_contract_then_is_refused() -> None:
    row = sequence(1, [1]).chunk([5])._replace(query_len=2)
    with pytest.raises(AssertionError, match="bytes of ids"):
        build_batch(make_plan(1, 4, [row]), POOL)


@pytest.mark.parametrize(
    ("copy", "told"),
    [
        (PageCopy(PoolKind.FULL, 16, 1), "copy from page 16"),
        (PageCopy(PoolKind.FULL, 1, 16), "copy to page 16"),
        (PageCopy(PoolKind.FULL, 1, 0), "copy to page 0"),
        (PageCopy(PoolKind.SWA, 1, 2), "copy in pool swa"),
    ],
)
def test_plan_when_a_copy_is_out_of_the_pool_then_is_refused(copy: PageCopy, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        build_batch(make_plan(1, 4, [sequence(1, [3]).chunk([5])], [copy]), POOL)
