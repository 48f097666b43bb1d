"""All that crosses between the core and the executor: the plan of a step, and what became of it."""

from __future__ import annotations  # `array[int]` exists at run time only from Python 3.12

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.core.ids import TOKEN_BYTES, Rid, StepNo
from engine.core.ownership import PoolKind
from engine.core.sampling import GREEDY, Sampling
from engine.core.window import window_start

REASON_CHARS_MAX = 1000
"""Of why a forward failed: a compiler's complaint may have megabytes."""


class PlanRow(NamedTuple):
    """One request's share of a step: a chunk of its prompt, or one decode token.

    A named tuple, because one is made for each request in each step: a frozen dataclass takes four times as long.

    The KV of positions [0, start_len) is already in the pages; this row computes [start_len, start_len + query_len)
    and writes their KV.

        page_table:  | p0 | p1 | p2 | p3 |            one page id per page_size positions
        positions:   0 ........ start_len ... +query_len
                     read only  |  computed and written

    Two kinds of input, told apart by `uses_sampled`:
    - False: `input_ids` holds the `query_len` ids. With `num_samples` above 1 the last `num_samples - 1` of them are
      drafts: guesses, which the ids sampled before them confirm or not.
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
    num_samples: int
    """How many of the last query tokens yield a next token: none, except in the last chunk of a prompt or in a decode
    (1), and where drafts are verified (1 + number of drafts)."""
    page_table: array[int]
    """The request's live row of the page table, int32. To be copied inside `submit` and not read after it returns;
    only the first ceil((start_len + query_len) / page_size) entries are valid."""
    sampling: Sampling = GREEDY
    """How the next tokens are chosen where the row samples. The last one's position is start_len + query_len."""
    swa_table: array[int] | None = None
    """As `page_table`, of the SWA pool: valid from the page that the window of `start_len` begins in. None where the
    model has no such layers."""
    state_read: int = 0
    """The state slot that holds the state behind `start_len` tokens; 0 for that behind none."""
    state_write: int = 0
    """The state slot that the state behind start_len + query_len tokens is written to; 0 where the model has none."""


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
    window: int | None = None
    """Tokens of the window of the SWA layers; None where the model has none."""
    has_states: bool = False
    """Whether the model has recurrent layers."""

    @property
    def num_tokens(self) -> int:
        """Query tokens of all rows."""
        return sum(row.query_len for row in self.rows)


@dataclass(frozen=True, slots=True)
class StepResult:
    """A forward that ran. `sampled[i]` belongs to `plan.rows[i]`: its `num_samples` token ids, in order of position."""

    step: StepNo
    sampled: tuple[tuple[int, ...], ...]
    device_s: float | None = field(default=None, compare=False)
    """How long the device took, where the executor knows: no part of what the forward came to."""


@dataclass(frozen=True, slots=True)
class StepFailure:
    """A forward that did not run to its end. Nothing it wrote may be trusted."""

    step: StepNo
    reason: str
    """At most `REASON_CHARS_MAX` characters, all of which can be sent: clients, logs and spans get it."""

    def __post_init__(self) -> None:
        reason = self.reason.encode("utf-8", "backslashreplace").decode()
        if len(reason) > REASON_CHARS_MAX:
            reason = f"{reason[:REASON_CHARS_MAX]}..."
        object.__setattr__(self, "reason", reason)


StepOutcome = StepResult | StepFailure


def assert_well_formed(plan: StepPlan) -> None:
    """The contract of a plan. The core asserts it on what it emits, each executor on what it gets."""
    assert plan.rows, f"step {plan.step}: a plan has at least one row"
    page_size = plan.page_size
    for row in plan.rows:
        query_len, start_len, num_samples = row.query_len, row.start_len, row.num_samples
        assert query_len >= 1, f"step {plan.step} rid {row.rid}: query_len {query_len} < 1"
        assert start_len >= 0, f"step {plan.step} rid {row.rid}: start_len {start_len} < 0"
        expected = 0 if row.uses_sampled else query_len * TOKEN_BYTES
        assert len(row.input_ids) == expected, f"step {plan.step} rid {row.rid}: {len(row.input_ids)} bytes of ids"
        assert not row.uses_sampled or query_len == 1, f"step {plan.step} rid {row.rid}: sampled input of one"
        assert 0 <= num_samples <= query_len, f"step {plan.step} rid {row.rid}: {num_samples} samples"
        last_page = (start_len + query_len - 1) // page_size
        assert last_page < len(row.page_table), f"step {plan.step} rid {row.rid}: page {last_page} past the row"
        first_page = (
            (start_len - 1) // page_size if start_len else 0
        )  # those before were looked at in the plans that wrote them
        has_pages = row.page_table[last_page] > 0
        if first_page < last_page:
            has_pages = min(row.page_table[first_page : last_page + 1]) > 0
        assert has_pages, f"step {plan.step} rid {row.rid}: padding page"
        if plan.window is not None:
            _assert_window(plan, row, plan.window, first_page, last_page)
    if plan.has_states:
        _assert_states(plan)
    taken = [row.req_pool_idx for row in plan.rows]
    assert len(set(taken)) == len(taken), f"step {plan.step}: a row of {sorted(taken)} is planned twice"


def _assert_window(plan: StepPlan, row: PlanRow, window: int, first_page: int, last_page: int) -> None:
    """The page that the window of the row's first token begins in, and those that are written. Executors look at what
    lies between.
    """
    table = row.swa_table
    assert table is not None, f"step {plan.step} rid {row.rid}: no SWA pages"
    assert last_page < len(table), f"step {plan.step} rid {row.rid}: page {last_page} past the row of SWA pages"
    window_page = window_start(row.start_len, window) // plan.page_size
    first_page = max(first_page, window_page)
    has_pages = table[window_page] > 0 and min(table[first_page : last_page + 1]) > 0
    assert has_pages, f"step {plan.step} rid {row.rid}: padding in SWA pages {window_page} to {last_page}"


def _assert_states(plan: StepPlan) -> None:
    """What is written is written once and read by nobody: a step never harms a state that it starts from."""
    written = [row.state_write for row in plan.rows]
    read = [row.state_read for row in plan.rows]
    assert min(written) > 0, f"step {plan.step}: a row writes the padding state"
    assert len(set(written)) == len(written), f"step {plan.step}: states {sorted(written)} are written twice"
    assert not set(written) & set(read), f"step {plan.step}: states {sorted(set(written) & set(read))} are read, too"
    for row in plan.rows:
        is_start = row.start_len == 0
        assert is_start == (row.state_read == 0), f"step {plan.step} rid {row.rid}: state {row.state_read} at the start"
