"""The one builder of a step's metadata: a plan becomes ragged, paged arrays in FlashInfer's terms.

Torch-free, so that every backend, the shadow executor included, sees the same arrays.

    tokens:      | row 0 .......... | row 1 | row 2 .... |     qo_indptr  [num_rows + 1]
    pages:       | row 0 .. | row 1 ......... | row 2 .. |     kv_indptr  [num_rows + 1] into kv_indices

The arrays of a step are fresh, not a ring of staging buffers: on a CPU nothing reads them after the step, and a
buffer that is never reused can't be overwritten under a plan in flight.
"""

from __future__ import annotations  # `array[int]` exists at run time only from Python 3.12

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.core.ids import StepNo, pages_for
from engine.core.ownership import PoolKind
from engine.core.plan import PageCopy, PlanRow, StepPlan, assert_well_formed
from engine.core.window import window_start

Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]
Float64Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PoolGeometry:
    """The bounds that a plan is held to. Unit 0 of each pool is padding, and nothing is written there."""

    page_size: int
    """Tokens a page."""
    pool_pages: int
    num_rows: int
    swa_pages: int = 0
    """0: there is no such pool."""
    state_slots: int = 0
    """0: there is no such pool."""

    def pages(self, kind: PoolKind) -> int:
        """Pages of the full or the SWA pool, the padding page included."""
        assert kind in (PoolKind.FULL, PoolKind.SWA), f"pool {kind} has no pages"
        return self.swa_pages if kind is PoolKind.SWA else self.pool_pages


@dataclass(frozen=True, slots=True)
class Draws:
    """The samples of a step that are not greedy; each array is [num_draws]."""

    places: Int64Array
    """Their places among the samples, in rising order."""
    positions: Int64Array
    """The position of the token to be chosen: one behind the query token that yields it."""
    seeds: Int64Array
    temperatures: Float64Array
    """Above 0."""
    top_ks: Int64Array
    """0 for all tokens; may be above the vocabulary."""
    top_ps: Float64Array


@dataclass(frozen=True, slots=True)
class SwaIndices:
    """A step's pages of the SWA pool."""

    kv_indices: Int32Array
    """[num_pages] as `Batch.kv_indices`; 0 where a page lies before every window of the step."""
    kv_write_idx: Int64Array
    """[num_tokens] as `Batch.kv_write_idx`."""


@dataclass(frozen=True, slots=True)
class StateIndices:
    """A step's state slots."""

    read: Int64Array
    """[num_rows] the one behind each row's `start_len`; 0 at the start of a sequence."""
    write: Int64Array
    """[num_rows] the one that each row leaves its state in."""


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
    swa: SwaIndices | None
    """None: there is no such pool."""
    states: StateIndices | None
    """None: there is no such pool."""
    sample_indptr: Int32Array
    """[num_rows + 1] offsets of each row's samples: none, one, or one and one more for each draft."""
    sample_idx: Int64Array
    """[num_samples] the tokens whose logits are wanted: the last ones of each row that samples."""
    sample_rows: Int64Array
    """[num_samples] their req_pool_idx."""
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
    tables = [_row_pages(row.page_table, row, pool) for row in rows]
    query_lens = np.array([row.query_len for row in rows], np.int64)
    end_lens = np.array([row.start_len + row.query_len for row in rows], np.int64)
    qo_indptr = _offsets(query_lens)
    kv_indptr = _offsets(-(-end_lens // pool.page_size))
    kv_indices = np.concatenate(tables)
    row_of_token = np.repeat(np.arange(len(rows)), query_lens)
    positions = np.arange(plan.num_tokens) + (end_lens - qo_indptr[1:])[row_of_token]
    page_places = kv_indptr[:-1][row_of_token] + positions // pool.page_size
    num_samples = np.array([row.num_samples for row in rows], np.int64)
    sample_indptr = _offsets(num_samples)
    row_of_sample = np.repeat(np.arange(len(rows)), num_samples)
    sample_idx = np.arange(len(row_of_sample)) + (qo_indptr[1:] - sample_indptr[1:])[row_of_sample]
    pending = np.flatnonzero([row.uses_sampled for row in rows])
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
        kv_write_idx=_write_idx(kv_indices, page_places, positions, pool),
        swa=_swa_indices(plan, page_places, positions, pool),
        states=_state_indices(plan),
        sample_indptr=sample_indptr,
        sample_idx=sample_idx,
        sample_rows=row_ids[row_of_sample],
        draws=_draws(rows, row_of_sample, positions[sample_idx] + 1),
        pending_idx=qo_indptr[:-1][pending].astype(np.int64),
        pending_rows=row_ids[pending],
        copies=plan.copies,
    )
    _assert_pages(plan, batch, pool)
    return batch


def _row_pages(page_table: array[int], row: PlanRow, pool: PoolGeometry) -> Int32Array:
    """A copy of the part of one of the row's page tables that this step reads or writes."""
    num_pages = pages_for(row.start_len + row.query_len, pool.page_size)
    assert num_pages <= len(page_table), f"rid {row.rid}: {len(page_table)} pages of {num_pages}"
    return np.frombuffer(page_table, np.int32)[:num_pages].copy()


def _write_idx(
    kv_indices: Int32Array, page_places: Int64Array, positions: Int64Array, pool: PoolGeometry
) -> Int64Array:
    pages: Int64Array = kv_indices[page_places].astype(np.int64)
    return pages * pool.page_size + positions % pool.page_size


def _swa_indices(
    plan: StepPlan, page_places: Int64Array, positions: Int64Array, pool: PoolGeometry
) -> SwaIndices | None:
    if plan.window is None:
        return None
    tables: list[Int32Array] = []
    for row in plan.rows:
        assert row.swa_table is not None, f"step {plan.step} rid {row.rid}: no SWA pages"
        pages = _row_pages(row.swa_table, row, pool)
        first = window_start(row.start_len, plan.window) // pool.page_size
        has_pages = int(pages[first:].min()) > 0
        assert has_pages, f"step {plan.step} rid {row.rid}: padding in SWA pages {first} to {len(pages) - 1}"
        pages[:first] = 0  # whatever is left there is stale
        tables.append(pages)
    kv_indices = np.concatenate(tables)
    return SwaIndices(kv_indices, _write_idx(kv_indices, page_places, positions, pool))


def _state_indices(plan: StepPlan) -> StateIndices | None:
    if not plan.has_states:
        return None
    read = np.array([row.state_read for row in plan.rows], np.int64)
    return StateIndices(read, np.array([row.state_write for row in plan.rows], np.int64))


def _input_ids(plan: StepPlan) -> Int64Array:
    """All rows' ids in order, with a placeholder where the id is still to be sampled."""
    placeholder = bytes(np.dtype(np.int32).itemsize)
    packed = b"".join(placeholder if row.uses_sampled else row.input_ids for row in plan.rows)
    return np.frombuffer(packed, np.int32).astype(np.int64)


def _draws(rows: tuple[PlanRow, ...], row_of_sample: Int64Array, sample_positions: Int64Array) -> Draws:
    """Those of all samples, told by their row and the position of the token to be chosen, that are not greedy."""
    drawn_rows = [place for place, row in enumerate(rows) if not row.sampling.is_greedy]
    samplings = [rows[place].sampling for place in drawn_rows]
    sampling_of_row = np.full(len(rows), -1)
    sampling_of_row[drawn_rows] = np.arange(len(drawn_rows))
    sampling_of_sample = sampling_of_row[row_of_sample]
    places = np.flatnonzero(sampling_of_sample >= 0)
    sampling_of_draw = sampling_of_sample[places]
    return Draws(
        places=places,
        positions=sample_positions[places],
        seeds=np.array([sampling.seed for sampling in samplings], np.int64)[sampling_of_draw],
        temperatures=np.array([sampling.temperature for sampling in samplings], np.float64)[sampling_of_draw],
        top_ks=np.array([sampling.top_k for sampling in samplings], np.int64)[sampling_of_draw],
        top_ps=np.array([sampling.top_p for sampling in samplings], np.float64)[sampling_of_draw],
    )


def _offsets(lengths: Int64Array) -> Int32Array:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)


def _assert_pages(plan: StepPlan, batch: Batch, pool: PoolGeometry) -> None:
    """The pages are the pool's, and a page that is written appears in one row only."""
    step = plan.step
    for row in plan.rows:
        assert 0 < row.req_pool_idx < pool.num_rows, f"step {step}: row {row.req_pool_idx} of {pool.num_rows}"
    for copy in plan.copies:
        assert copy.pool in (PoolKind.FULL, PoolKind.SWA), f"step {step}: copy in pool {copy.pool}, which has no pages"
        num_pages = pool.pages(copy.pool)
        assert 0 < copy.src < num_pages, f"step {step}: copy from page {copy.src} of {num_pages}"
        assert 0 < copy.dst < num_pages, f"step {step}: copy to page {copy.dst} of {num_pages}"
    lowest = int(batch.kv_indices.min())
    assert lowest > 0, f"step {step}: page {lowest} is padding"
    _assert_written(step, PoolKind.FULL, batch.kv_indices, batch.kv_write_idx, pool)
    if batch.swa is not None:
        _assert_written(step, PoolKind.SWA, batch.swa.kv_indices, batch.swa.kv_write_idx, pool)
    if batch.states is not None:
        highest = int(max(batch.states.read.max(), batch.states.write.max()))
        assert highest < pool.state_slots, f"step {step}: state slot {highest} of {pool.state_slots}"
        lowest = int(batch.states.read.min())
        assert lowest >= 0, f"step {step}: state slot {lowest} of {pool.state_slots}"
    assert batch.last_page_len.min() >= 1, f"step {step}: last_page_len {batch.last_page_len.min()}"
    assert batch.last_page_len.max() <= pool.page_size, f"step {step}: last_page_len {batch.last_page_len.max()}"


def _assert_written(
    step: StepNo, kind: PoolKind, kv_indices: Int32Array, write_idx: Int64Array, pool: PoolGeometry
) -> None:
    """Pages are the pool's, and what is written appears in one row only and is no padding."""
    highest, num_pages = int(kv_indices.max()), pool.pages(kind)
    assert highest < num_pages, f"step {step}: {kind} page {highest} of {num_pages}"
    written = np.unique(write_idx // pool.page_size)
    assert written[0] > 0, f"step {step}: {kind} page {written[0]} is padding, and would be written"
    shared = written[np.bincount(kv_indices)[written] > 1]
    assert not len(shared), f"step {step}: {kind} pages {shared.tolist()} are written and appear more than once"
