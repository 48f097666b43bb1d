"""The metadata of a step, against arrays worked out by hand."""

from array import array

import numpy as np
import pytest

from engine.core.ownership import PoolKind
from engine.core.plan import PageCopy, PlanRow
from engine.core.sampling import GREEDY, SEED_MAX, Sampling
from engine.core.window import window_start
from engine.executor.batch import PoolGeometry, build_batch
from tests.kit.paged_sequence import PagedSequence, make_plan

POOL = PoolGeometry(page_size=4, pool_pages=16, num_rows=8)
SWA_POOL = PoolGeometry(page_size=4, pool_pages=16, num_rows=8, swa_pages=10)
STATE_POOL = PoolGeometry(page_size=4, pool_pages=16, num_rows=8, state_slots=6)
WINDOW = 6


def sequence(row: int, pages: list[int], planned_len: int = 0, sampling: Sampling = GREEDY) -> PagedSequence:
    made = PagedSequence(row, pages, sampling)
    made.planned_len = planned_len
    return made


def windowed(row: int, pages: list[int], swa_pages: list[int], planned_len: int = 0) -> PagedSequence:
    made = PagedSequence(row, pages, swa_pages=swa_pages)
    made.planned_len = planned_len
    return made


def recurrent(row: int, *, read: int, write: int, start_len: int = 4) -> PlanRow:
    """One token in pages of its own."""
    made = sequence(row, [2 * row, 2 * row + 1], start_len)
    return made.chunk([5])._replace(state_read=read, state_write=write)


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
        (PageCopy(PoolKind.SWA, 1, 2), "copy from page 1 of 0"),
        (PageCopy(PoolKind.MAMBA, 1, 2), "copy in pool mamba"),
        (PageCopy(PoolKind.ROWS, 1, 2), "copy in pool rows"),
    ],
)
def test_plan_when_a_copy_is_out_of_the_pool_then_is_refused(copy: PageCopy, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        build_batch(make_plan(1, 4, [sequence(1, [3]).chunk([5])], [copy]), POOL)


def test_copies_when_in_the_swa_pool_then_held_to_its_own_bounds() -> None:
    row = windowed(1, [3], [3]).chunk([5])
    good = (PageCopy(PoolKind.SWA, 9, 2), PageCopy(PoolKind.FULL, 15, 2))
    assert build_batch(make_plan(1, 4, [row], good, window=WINDOW), SWA_POOL).copies == good
    with pytest.raises(AssertionError, match="copy to page 10 of 10"):
        build_batch(make_plan(1, 4, [row], [PageCopy(PoolKind.SWA, 1, 10)], window=WINDOW), SWA_POOL)


def test_geometry_when_asked_for_pages_then_those_of_each_paged_pool_and_of_no_other() -> None:
    pool = PoolGeometry(page_size=4, pool_pages=16, num_rows=8, swa_pages=10, state_slots=6)
    assert [pool.pages(kind) for kind in (PoolKind.FULL, PoolKind.SWA)] == [16, 10]
    assert POOL.pages(PoolKind.SWA) == 0
    for kind in (PoolKind.MAMBA, PoolKind.ROWS):
        with pytest.raises(AssertionError, match=f"pool {kind} has no pages"):
            pool.pages(kind)


def test_kinds_of_memory_when_a_plan_has_none_then_a_batch_has_none() -> None:
    batch = build_batch(make_plan(1, 4, [sequence(1, [1]).chunk([5])]), POOL)
    assert batch.swa is None
    assert batch.states is None


def test_swa_arrays_when_rows_are_mixed_then_lie_side_by_side_with_those_of_the_full_pool() -> None:
    rows = [
        windowed(3, [5, 9, 2, 99], [0, 3, 4, 99], 9).chunk([70, 71, 72], num_samples=0),
        windowed(1, [7, 8], [6, 5], 7).decode(),
        windowed(6, [4], [7]).chunk([80, 81, 82, 83]),
    ]
    batch = build_batch(make_plan(12, 4, rows, window=WINDOW), SWA_POOL)
    assert batch.kv_indptr.tolist() == [0, 3, 5, 6]
    assert batch.kv_indices.tolist() == [5, 9, 2, 7, 8, 4]
    assert batch.kv_write_idx.tolist() == [9, 10, 11, 35, 16, 17, 18, 19]
    assert batch.swa is not None
    assert batch.swa.kv_indices.tolist() == [0, 3, 4, 6, 5, 7]
    assert batch.swa.kv_write_idx.tolist() == [17, 18, 19, 23, 28, 29, 30, 31]
    assert batch.swa.kv_indices.dtype == np.int32


@pytest.mark.parametrize("start_len", [0, 1, 4, 5, 6, 9, 10, 11, 14, 19])
def test_swa_entries_when_before_the_window_then_read_as_padding_whatever_is_left_there(start_len: int) -> None:
    stale = [9, -1, 400, 3, 0]
    needed = window_start(start_len, WINDOW) // 4
    held = stale[:needed] + [5, 6, 7, 8, 2][needed:]
    batch = build_batch(
        make_plan(1, 4, [windowed(1, [1, 2, 3, 4, 5], held, start_len).chunk([5])], window=WINDOW), SWA_POOL
    )
    last = start_len // 4
    assert batch.swa is not None
    assert batch.swa.kv_indices.tolist() == [0] * needed + held[needed : last + 1]
    assert batch.swa.kv_write_idx.tolist() == [held[last] * 4 + start_len % 4]


@pytest.mark.parametrize("page_size", [1, 3, 16, 64])
def test_swa_write_places_when_pages_have_any_size_then_are_where_the_table_says(page_size: int) -> None:
    pages, swa_pages = list(range(90, 0, -1)), list(range(1, 91))
    batch = build_batch(
        make_plan(1, page_size, [windowed(1, pages, swa_pages, 5).chunk(list(range(60)))], window=WINDOW),
        PoolGeometry(page_size, pool_pages=91, num_rows=2, swa_pages=91),
    )
    expected = [swa_pages[position // page_size] * page_size + position % page_size for position in range(5, 65)]
    assert batch.swa is not None
    assert batch.swa.kv_write_idx.tolist() == expected


def test_swa_tables_when_changed_or_grown_afterwards_then_the_batch_keeps_its_copy_and_leaves_them_alone() -> None:
    held = windowed(1, [3, 4, 5], [9, 7, 8], 10)
    row = held.chunk([5])
    batch = build_batch(make_plan(1, 4, [row], window=WINDOW), SWA_POOL)
    assert row.swa_table is not None
    assert row.swa_table.tolist() == [9, 7, 8]
    row.swa_table[:] = array("i", [1, 1, 1])
    row.swa_table.append(1)
    assert batch.swa is not None
    assert batch.swa.kv_indices.tolist() == [0, 7, 8]


def test_swa_pages_when_two_rows_share_those_that_are_only_read_then_the_plan_is_good() -> None:
    rows = [windowed(1, [3, 4], [3, 4], 4).chunk([5]), windowed(2, [3, 5], [3, 5], 4).chunk([6])]
    batch = build_batch(make_plan(1, 4, rows, window=WINDOW), SWA_POOL)
    assert batch.swa is not None
    assert batch.swa.kv_indices.tolist() == [3, 4, 3, 5]


@pytest.mark.parametrize(
    ("swa_pages", "other_pages"), [([3, 4], [3, 4]), ([3, 4], [4, 5]), ([3, 3], [6, 5])], ids=["both", "reads", "self"]
)
def test_plan_when_a_written_swa_page_appears_twice_then_is_refused(
    swa_pages: list[int], other_pages: list[int]
) -> None:
    rows = [windowed(1, [1, 2], swa_pages, 4).chunk([5]), windowed(2, [3, 4], other_pages, 4).chunk([6])]
    with pytest.raises(AssertionError, match=r"swa pages .* are written and appear more than once"):
        build_batch(make_plan(1, 4, rows, window=WINDOW), SWA_POOL)


@pytest.mark.parametrize("page", [10, 15])
def test_plan_when_an_swa_page_is_past_its_own_pool_then_is_refused(page: int) -> None:
    row = windowed(1, [15], [page]).chunk([5])
    with pytest.raises(AssertionError, match=f"swa page {page} of 10"):
        build_batch(make_plan(1, 4, [row], window=WINDOW), SWA_POOL)


@pytest.mark.parametrize("swa_pages", [[0, 3, 4], [3, 0, 4], [3, 4, 0], [3, -1, 4]])
def test_plan_when_a_page_inside_the_window_is_padding_then_is_refused(swa_pages: list[int]) -> None:
    """The token at 8 sees 3 and all that follow: page 0 of its table, too."""
    row = windowed(1, [1, 2, 3], swa_pages, 8).chunk([5])
    with pytest.raises(AssertionError, match="padding in SWA pages 0 to 2"):
        build_batch(make_plan(1, 4, [row], window=WINDOW), SWA_POOL)


def test_plan_when_a_row_has_no_swa_pages_then_is_refused() -> None:
    rows = [windowed(1, [1], [1]).chunk([5]), sequence(2, [2]).chunk([5])]
    with pytest.raises(AssertionError, match="rid 102: no SWA pages"):
        build_batch(make_plan(1, 4, rows, window=WINDOW), SWA_POOL)


def test_plan_when_a_row_has_fewer_swa_pages_than_it_covers_then_is_refused() -> None:
    row = windowed(1, [1, 2], [1]).chunk([5] * 5)
    with pytest.raises(AssertionError, match=r"rid 101.* pages"):
        build_batch(make_plan(1, 4, [row], window=WINDOW), SWA_POOL)


def test_states_when_rows_are_mixed_then_are_one_slot_read_and_one_written_for_each() -> None:
    rows = [
        recurrent(1, read=0, write=3, start_len=0),
        recurrent(2, read=5, write=1),
        recurrent(3, read=5, write=4, start_len=7),
    ]
    batch = build_batch(make_plan(1, 4, rows, has_states=True), STATE_POOL)
    assert batch.states is not None
    assert batch.states.read.tolist() == [0, 5, 5]
    assert batch.states.write.tolist() == [3, 1, 4]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([recurrent(1, read=1, write=6)], "state slot 6 of 6"),
        ([recurrent(1, read=6, write=1)], "state slot 6 of 6"),
        ([recurrent(1, read=-1, write=1)], "state slot -1 of 6"),
        ([recurrent(1, read=1, write=0)], "writes the padding state"),
        ([recurrent(1, read=1, write=-2)], "writes the padding state"),
        ([recurrent(1, read=1, write=3), recurrent(2, read=2, write=3)], "are written twice"),
        ([recurrent(1, read=1, write=3), recurrent(2, read=3, write=4)], "are read, too"),
        ([recurrent(1, read=2, write=2)], "are read, too"),
        ([recurrent(1, read=2, write=3, start_len=0)], "state 2 at the start"),
        ([recurrent(1, read=0, write=3)], "rid 101: state 0"),
    ],
)
def test_plan_when_its_states_break_the_contract_then_is_refused(rows: list[PlanRow], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        build_batch(make_plan(1, 4, rows, has_states=True), STATE_POOL)


def test_plan_when_it_asks_for_a_pool_that_is_not_there_then_is_refused() -> None:
    with pytest.raises(AssertionError, match="swa page 1 of 0"):
        build_batch(make_plan(1, 4, [windowed(1, [1], [1]).chunk([5])], window=WINDOW), POOL)
    with pytest.raises(AssertionError, match="state slot 2 of 0"):
        build_batch(make_plan(1, 4, [recurrent(1, read=1, write=2)], has_states=True), POOL)
