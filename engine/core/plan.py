"""All that crosses between the core and the executor: the plan of a step, and what became of it."""

from __future__ import annotations  # `array[int]` exists at run time only from Python 3.12

from array import array
from dataclasses import dataclass

from engine.core.ids import TOKEN_BYTES, Rid, StepNo, pages_for
from engine.core.ownership import PoolKind
from engine.core.sampling import GREEDY, Sampling


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One request's share of a step: a chunk of its prompt, or one decode token.

    The KV of positions [0, start_len) is already in the pages; this row computes [start_len, start_len + query_len)
    and writes their KV.

        page_table:  | p0 | p1 | p2 | p3 |            one page id per page_size positions
        positions:   0 ........ start_len ... +query_len
                     read only  |  computed and written

    Two kinds of input, told apart by `uses_sampled`:
    - False: `input_ids` holds the `query_len` ids.
    - True: `input_ids` is empty, `query_len` is 1, and the input is the id that the executor sampled for this
      `req_pool_idx` in the last plan that sampled for it (that plan may still be in flight).
    """

    rid: Rid
    epoch: int
    """Grows when the request is retracted; answers of an older epoch count for nothing."""
    req_pool_idx: int
    start_len: int
    query_len: int
    input_ids: bytes
    uses_sampled: bool
    samples: bool
    """Whether the last query token yields a next token: only the last chunk of a prompt does."""
    page_table: array[int]
    """The request's live row of the page table, int32. To be copied inside `submit` and not read after it returns;
    only the first ceil((start_len + query_len) / page_size) entries are valid."""
    sampling: Sampling = GREEDY
    """How the next token is chosen where the row samples; its position is start_len + query_len."""


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy page `src` to page `dst` of one pool before the forward."""

    pool: PoolKind
    src: int
    dst: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward: ordered copies, then a ragged batch of rows."""

    step: StepNo
    page_size: int
    rows: tuple[PlanRow, ...]
    copies: tuple[PageCopy, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Query tokens of all rows."""
        return sum(row.query_len for row in self.rows)


@dataclass(frozen=True, slots=True)
class StepResult:
    """A forward that ran. `sampled[i]` belongs to `plan.rows[i]`: a token id where that row samples, else None."""

    step: StepNo
    sampled: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class StepFailure:
    """A forward that did not run to its end. Nothing it wrote may be trusted."""

    step: StepNo
    reason: str


StepOutcome = StepResult | StepFailure


def assert_well_formed(plan: StepPlan) -> None:
    """The contract of a plan. The core asserts it on what it emits, each executor on what it gets."""
    assert plan.rows, f"step {plan.step}: a plan has at least one row"
    seen: set[int] = set()
    for row in plan.rows:
        assert row.query_len >= 1, f"step {plan.step} rid {row.rid}: query_len {row.query_len} < 1"
        assert row.start_len >= 0, f"step {plan.step} rid {row.rid}: start_len {row.start_len} < 0"
        assert row.req_pool_idx not in seen, f"step {plan.step}: row {row.req_pool_idx} planned twice"
        seen.add(row.req_pool_idx)
        expected = 0 if row.uses_sampled else row.query_len * TOKEN_BYTES
        assert len(row.input_ids) == expected, f"step {plan.step} rid {row.rid}: {len(row.input_ids)} bytes of ids"
        assert not row.uses_sampled or row.query_len == 1, f"step {plan.step} rid {row.rid}: sampled input of one"
        num_pages = pages_for(row.start_len + row.query_len, plan.page_size)
        assert num_pages <= len(row.page_table), f"step {plan.step} rid {row.rid}: {num_pages} pages past the row"
        first = max(0, row.start_len - 1) // plan.page_size  # those before were looked at in the plans that wrote them
        assert min(row.page_table[first:num_pages]) > 0, f"step {plan.step} rid {row.rid}: padding page"
