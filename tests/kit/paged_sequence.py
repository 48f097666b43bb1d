"""Builds plans by hand: a sequence that owns pages and a row, as the core would hand them to an executor."""

from array import array
from collections.abc import Sequence

from engine.core.ids import Rid, StepNo, pack_ids
from engine.core.plan import PageCopy, PlanRow, StepPlan
from engine.core.sampling import GREEDY, Sampling


class PagedSequence:
    """A request's row: its pages and state slots, and how many of its tokens were planned."""

    def __init__(
        self,
        req_pool_idx: int,
        pages: Sequence[int],
        sampling: Sampling = GREEDY,
        *,
        swa_pages: Sequence[int] | None = None,
        states: Sequence[int] = (),
    ) -> None:
        """`swa_pages`: one for each of `pages`, where the model has windows. `states`: two slots or more that its steps
        write in turn, where it has recurrent layers."""
        self.req_pool_idx = req_pool_idx
        self.page_table = array("i", pages)
        self.swa_table = None if swa_pages is None else array("i", swa_pages)
        self.planned_len = 0
        self.sampling = sampling
        self._states = list(states)
        self._state = 0

    def chunk(self, token_ids: Sequence[int], *, num_samples: int = 1) -> PlanRow:
        """The next `token_ids`, of which the last `num_samples` yield an id."""
        return self._row(len(token_ids), pack_ids(token_ids), uses_sampled=False, num_samples=num_samples)

    def verify(self, token_id: int, drafts: Sequence[int]) -> PlanRow:
        """The next `token_id` with `drafts` behind it; all of them yield an id. See `rewind` where drafts are wrong."""
        return self.chunk([token_id, *drafts], num_samples=1 + len(drafts))

    def rewind(self, kv_len: int) -> None:
        """The next row starts at position `kv_len`: what was planned behind it counts for nothing."""
        assert kv_len <= self.planned_len, f"rewind to {kv_len} of {self.planned_len}"
        self.planned_len = kv_len

    def decode(self) -> PlanRow:
        """One token: the one that was last sampled for this row."""
        return self._row(1, b"", uses_sampled=True, num_samples=1)

    def _row(self, query_len: int, input_ids: bytes, *, uses_sampled: bool, num_samples: int) -> PlanRow:
        row = PlanRow(
            rid=Rid(100 + self.req_pool_idx),
            epoch=0,
            req_pool_idx=self.req_pool_idx,
            start_len=self.planned_len,
            query_len=query_len,
            input_ids=input_ids,
            uses_sampled=uses_sampled,
            num_samples=num_samples,
            page_table=self.page_table,
            sampling=self.sampling,
            swa_table=self.swa_table,
            state_read=self._state,
            state_write=self._next_state(),
        )
        self.planned_len += query_len
        self._state = row.state_write
        return row

    def _next_state(self) -> int:
        if not self._states:
            return 0
        self._states.append(self._states.pop(0))
        return self._states[-1]


def make_plan(
    step: int,
    page_size: int,
    rows: Sequence[PlanRow],
    copies: Sequence[PageCopy] = (),
    *,
    window: int | None = None,
    has_states: bool = False,
) -> StepPlan:
    return StepPlan(StepNo(step), page_size, tuple(rows), tuple(copies), window, has_states)
