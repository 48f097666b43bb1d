"""Builds plans by hand: a sequence that owns pages and a row, as the core would hand them to an executor."""

from array import array
from collections.abc import Sequence

from engine.core.ids import Rid, StepNo, pack_ids
from engine.core.plan import PageCopy, PlanRow, StepPlan
from engine.core.sampling import GREEDY, Sampling


class PagedSequence:
    """A request's row: its pages, and how many of its tokens were planned."""

    def __init__(self, req_pool_idx: int, pages: Sequence[int], sampling: Sampling = GREEDY) -> None:
        self.req_pool_idx = req_pool_idx
        self.page_table = array("i", pages)
        self.planned_len = 0
        self.sampling = sampling

    def chunk(self, token_ids: Sequence[int], *, samples: bool = True) -> PlanRow:
        """The next `token_ids`."""
        return self._row(len(token_ids), pack_ids(token_ids), uses_sampled=False, samples=samples)

    def decode(self) -> PlanRow:
        """One token: the one that was last sampled for this row."""
        return self._row(1, b"", uses_sampled=True, samples=True)

    def _row(self, query_len: int, input_ids: bytes, *, uses_sampled: bool, samples: bool) -> PlanRow:
        row = PlanRow(
            rid=Rid(100 + self.req_pool_idx),
            epoch=0,
            req_pool_idx=self.req_pool_idx,
            start_len=self.planned_len,
            query_len=query_len,
            input_ids=input_ids,
            uses_sampled=uses_sampled,
            samples=samples,
            page_table=self.page_table,
            sampling=self.sampling,
        )
        self.planned_len += query_len
        return row


def make_plan(step: int, page_size: int, rows: Sequence[PlanRow], copies: Sequence[PageCopy] = ()) -> StepPlan:
    return StepPlan(StepNo(step), page_size, tuple(rows), tuple(copies))
