"""The one builder of a step's metadata: a plan becomes ragged, paged arrays in FlashInfer's terms.

Torch-free, so that every backend, the shadow executor included, sees the same arrays.

    tokens:      | row 0 .......... | row 1 | row 2 .... |     qo_indptr  [num_rows + 1]
    pages:       | row 0 .. | row 1 ......... | row 2 .. |     kv_indptr  [num_rows + 1] into kv_indices

The arrays of a step are fresh, not a ring of staging buffers: on a CPU nothing reads them after the step, and a
buffer that is never reused can't be overwritten under a plan in flight.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.core.ids import StepNo, pages_for
from engine.core.ownership import PoolKind
from engine.core.plan import PageCopy, PlanRow, StepPlan, assert_well_formed

Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]
Float64Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PoolGeometry:
    """The bounds that a plan is held to. Page 0 and row 0 are padding and appear in no plan."""

    page_size: int
    """Tokens a page."""
    pool_pages: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class Draws:
    """The samples of a step that are not greedy; each array is [num_draws]."""

    places: Int64Array
    """Their places among the samples, in rising order."""
    positions: Int64Array
    """The position of the token to be chosen: one behind the row's last."""
    seeds: Int64Array
    temperatures: Float64Array
    """Above 0."""
    top_ks: Int64Array
    """0 for all tokens; may be above the vocabulary."""
    top_ps: Float64Array


@dataclass(frozen=True, slots=True)
class Batch:
    """A step's arrays. They own their memory: nothing of the plan's page tables is referenced."""

    step: StepNo
    page_size: int
    token_ids: Int64Array
    """[num_tokens] input ids; 0 at `pending_idx`."""
    positions: Int64Array
    """[num_tokens] position of each token in its sequence."""
    qo_indptr: Int32Array
    """[num_rows + 1] offsets of each row's tokens."""
    kv_indptr: Int32Array
    """[num_rows + 1] offsets of each row's pages in `kv_indices`."""
    kv_indices: Int32Array
    """[num_pages] page ids, row by row, in order of position."""
    last_page_len: Int32Array
    """[num_rows] tokens in each row's last page once this step has written, from 1 to `page_size`."""
    kv_write_idx: Int64Array
    """[num_tokens] where each token's KV goes: page · page_size + offset."""
    sample_idx: Int64Array
    """[num_samples] the tokens whose logits are wanted."""
    sample_rows: Int64Array
    """[num_samples] their req_pool_idx."""
    sample_plan_rows: Int64Array
    """[num_samples] their places in the plan."""
    draws: Draws
    """How tokens are chosen for those samples that are not greedy."""
    pending_idx: Int64Array
    """[num_pending] tokens whose id is the one that was last sampled for their row."""
    pending_rows: Int64Array
    """[num_pending] their req_pool_idx."""
    copies: tuple[PageCopy, ...]
    """To be done in order, before the forward."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_rows(self) -> int:
        return len(self.last_page_len)


def build_batch(plan: StepPlan, pool: PoolGeometry) -> Batch:
    """The arrays of `plan`. Copies what it needs of the page tables, so the core may change them once it returns.

    A plan that breaks its contract is a programmer error: AssertionError. Token ids are not looked at.
    """
    assert_well_formed(plan)
    assert plan.page_size == pool.page_size, (
        f"step {plan.step}: page size {plan.page_size}, the pool's {pool.page_size}"
    )
    rows = plan.rows
    tables = [_row_pages(row, pool) for row in rows]
    query_lens = np.array([row.query_len for row in rows], np.int64)
    end_lens = np.array([row.start_len + row.query_len for row in rows], np.int64)
    qo_indptr = _offsets(query_lens)
    kv_indptr = _offsets(np.array([len(table) for table in tables], np.int64))
    kv_indices = np.concatenate(tables)
    row_of_token = np.repeat(np.arange(len(rows)), query_lens)
    positions = np.arange(plan.num_tokens) + (end_lens - qo_indptr[1:])[row_of_token]
    written_pages = kv_indices[kv_indptr[:-1][row_of_token] + positions // pool.page_size].astype(np.int64)
    samples = np.array([place for place, row in enumerate(rows) if row.samples], np.int64)
    pending = np.array([place for place, row in enumerate(rows) if row.uses_sampled], np.int64)
    row_ids = np.array([row.req_pool_idx for row in rows], np.int64)
    batch = Batch(
        step=plan.step,
        page_size=pool.page_size,
        token_ids=_input_ids(plan),
        positions=positions,
        qo_indptr=qo_indptr,
        kv_indptr=kv_indptr,
        kv_indices=kv_indices,
        last_page_len=((end_lens - 1) % pool.page_size + 1).astype(np.int32),
        kv_write_idx=written_pages * pool.page_size + positions % pool.page_size,
        sample_idx=qo_indptr[1:][samples].astype(np.int64) - 1,
        sample_rows=row_ids[samples],
        sample_plan_rows=samples,
        draws=_draws(rows, samples),
        pending_idx=qo_indptr[:-1][pending].astype(np.int64),
        pending_rows=row_ids[pending],
        copies=plan.copies,
    )
    _assert_pages(plan, batch, pool)
    return batch


def _row_pages(row: PlanRow, pool: PoolGeometry) -> Int32Array:
    """A copy of the part of the row's page table that this step reads or writes."""
    num_pages = pages_for(row.start_len + row.query_len, pool.page_size)
    return np.frombuffer(row.page_table, np.int32)[:num_pages].copy()


def _input_ids(plan: StepPlan) -> Int64Array:
    """All rows' ids in order, with a placeholder where the id is still to be sampled."""
    placeholder = bytes(np.dtype(np.int32).itemsize)
    packed = b"".join(placeholder if row.uses_sampled else row.input_ids for row in plan.rows)
    return np.frombuffer(packed, np.int32).astype(np.int64)


def _draws(rows: tuple[PlanRow, ...], samples: Int64Array) -> Draws:
    sampled = [(place, rows[row]) for place, row in enumerate(samples)]
    drawn = [(place, row, row.sampling) for place, row in sampled if not row.sampling.is_greedy]
    return Draws(
        places=np.array([place for place, _, _ in drawn], np.int64),
        positions=np.array([row.start_len + row.query_len for _, row, _ in drawn], np.int64),
        seeds=np.array([sampling.seed for _, _, sampling in drawn], np.int64),
        temperatures=np.array([sampling.temperature for _, _, sampling in drawn], np.float64),
        top_ks=np.array([sampling.top_k for _, _, sampling in drawn], np.int64),
        top_ps=np.array([sampling.top_p for _, _, sampling in drawn], np.float64),
    )


def _offsets(lengths: Int64Array) -> Int32Array:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)


def _assert_pages(plan: StepPlan, batch: Batch, pool: PoolGeometry) -> None:
    """The pages are the pool's, and a page that is written appears in one row only."""
    step = plan.step
    for row in plan.rows:
        assert 0 < row.req_pool_idx < pool.num_rows, f"step {step}: row {row.req_pool_idx} of {pool.num_rows}"
    for copy in plan.copies:
        assert copy.pool is PoolKind.FULL, f"step {step}: copy in pool {copy.pool}, which this executor has not"
        assert 0 < copy.src < pool.pool_pages, f"step {step}: copy from page {copy.src} of {pool.pool_pages}"
        assert 0 < copy.dst < pool.pool_pages, f"step {step}: copy to page {copy.dst} of {pool.pool_pages}"
    highest = int(batch.kv_indices.max())
    assert highest < pool.pool_pages, f"step {step}: page {highest} of {pool.pool_pages}"
    lowest = int(batch.kv_indices.min())
    assert lowest > 0, f"step {step}: page {lowest} is padding"
    written = np.unique(batch.kv_write_idx // pool.page_size)
    shared = written[np.bincount(batch.kv_indices)[written] > 1]
    assert not len(shared), f"step {step}: pages {shared.tolist()} are written and appear more than once"
    assert batch.last_page_len.min() >= 1, f"step {step}: last_page_len {batch.last_page_len.min()}"
    assert batch.last_page_len.max() <= pool.page_size, f"step {step}: last_page_len {batch.last_page_len.max()}"
