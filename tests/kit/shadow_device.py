"""A device without numbers: pages hold token ids, and the next id is computed from what the page table gathers."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from engine.core.events import CoreEvent, KvMoved
from engine.core.ids import Rid, pages_for, unpack_ids
from engine.core.ownership import OwnerKind, PoolKind
from engine.core.plan import PlanRow, StepFailure, StepPlan, StepResult, assert_well_formed
from tests.kit.book import Book
from tests.kit.shadow_model import EMPTY_DIGEST, ShadowModel

POISON = -1
"""Token id of a cell that holds no KV: never written, freed, or written by a forward that failed."""
NO_DIGEST = -1
"""Digest of the cell of a draft that its own forward proved wrong: right for no history."""


@dataclass(frozen=True, slots=True)
class QueuedRow:
    """A row with its own copy of the page table, as a real backend keeps it after `submit`."""

    row: PlanRow
    pages: tuple[int, ...]
    read_pages: tuple[int, ...]
    """Pages with positions below `start_len`; the last one may be in `written_pages` too."""
    written_pages: tuple[int, ...]


@dataclass(slots=True)
class QueuedPlan:
    plan: StepPlan
    rows: tuple[QueuedRow, ...]
    lost_rids: tuple[Rid, ...] = ()
    """Requests whose earlier forward failed while this plan was queued: what they compute here means nothing."""


class ShadowDevice:
    """Runs plans in order. What breaks the executor's contract is collected in `violations`, never repaired.

    Each cell (page, offset) keeps its token id and a digest of the whole history up to it, the position included, so
    the KV of a cell is right for exactly one history. A cell that is not what its position needs makes the answer
    garbage; the cell of a draft that proved wrong is so for everyone, until it is written again. With a `book` the
    device also holds every access against the owners that the event stream tells: it reads only pages that the request
    owns or that are locked in the cache, and writes only pages that it owns.
    """

    def __init__(
        self, model: ShadowModel, *, page_size: int, pool_pages: int, num_rows: int, book: Book | None = None
    ) -> None:
        self.model = model
        self.page_size = page_size
        self.violations: list[str] = []
        self._num_rows = num_rows
        self._book = book
        self._tokens = [POISON] * (pool_pages * page_size)
        self._digests = [0] * (pool_pages * page_size)
        self._sampled: dict[int, tuple[Rid, int]] = {}
        self._queue: deque[QueuedPlan] = deque()

    @property
    def queued(self) -> tuple[QueuedPlan, ...]:
        """Plans submitted and not answered, oldest first."""
        return tuple(self._queue)

    def observe(self, events: Iterable[CoreEvent]) -> None:
        """Poisons pages that became free: whoever still reads them reads garbage, and is told on."""
        for event in events:
            if isinstance(event, KvMoved) and event.pool is PoolKind.FULL and event.target.kind is OwnerKind.FREE:
                self.poison(event.pages)

    def poison(self, pages: Iterable[int]) -> None:
        for page in pages:
            start = page * self.page_size
            self._tokens[start : start + self.page_size] = [POISON] * self.page_size

    def run(self, plan: StepPlan) -> StepResult:
        """Submits and answers a plan at once."""
        assert not self._queue, "plans in flight are answered in order"
        self.submit(plan)
        return self.answer()

    def submit(self, plan: StepPlan) -> None:
        """Queues a plan; page tables are copied here. Raises AssertionError for a plan that is not well formed."""
        assert_well_formed(plan)
        assert plan.page_size == self.page_size, f"page size {plan.page_size}, the device has {self.page_size}"
        queued = QueuedPlan(plan, tuple(self._copy_row(row) for row in plan.rows))
        self._check_access(queued, "submit")
        self._check_writers(queued)
        self._queue.append(queued)

    def answer(self) -> StepResult:
        """Runs the oldest queued plan."""
        queued = self._queue.popleft()
        self._check_access(queued, "forward")
        for copy in queued.plan.copies:
            self._copy_page(copy.src, copy.dst)
        return StepResult(queued.plan.step, tuple(self._run_row(row, queued) for row in queued.rows))

    def fail(self, reason: str) -> StepFailure:
        """The oldest queued plan fails: what it was to write is garbage, and so is what later plans make of it."""
        failed = self._queue.popleft()
        for queued_row in failed.rows:
            row = queued_row.row
            for position in range(row.start_len, row.start_len + row.query_len):
                self._tokens[self._cell(queued_row, position)] = POISON
            if row.num_samples:
                self._sampled.pop(row.req_pool_idx, None)
        lost = tuple(row.row.rid for row in failed.rows) + failed.lost_rids
        for later in self._queue:
            later.lost_rids += lost
        return StepFailure(failed.plan.step, reason)

    def _copy_row(self, row: PlanRow) -> QueuedRow:
        stop_len = row.start_len + row.query_len
        pages = tuple(row.page_table[: pages_for(stop_len, self.page_size)])
        first_written = row.start_len // self.page_size
        read = pages[: pages_for(row.start_len, self.page_size)]
        return QueuedRow(row, pages, read, pages[first_written:])

    def _cell(self, row: QueuedRow, position: int) -> int:
        return row.pages[position // self.page_size] * self.page_size + position % self.page_size

    def _copy_page(self, src: int, dst: int) -> None:
        size = self.page_size
        self._tokens[dst * size : (dst + 1) * size] = self._tokens[src * size : (src + 1) * size]
        self._digests[dst * size : (dst + 1) * size] = self._digests[src * size : (src + 1) * size]

    def _run_row(self, queued_row: QueuedRow, queued: QueuedPlan) -> tuple[int, ...]:
        """Writes the row's cells. One id for each of its last `num_samples` tokens, of the history up to that token."""
        row = queued_row.row
        is_lost = row.rid in queued.lost_rids
        digest = self._gather(queued_row, is_lost=is_lost)
        first_sampling = row.query_len - row.num_samples
        sampled: list[int] = []
        for offset, token_id in enumerate(self._inputs(row, is_lost=is_lost)):
            is_wrong_draft = bool(sampled) and token_id != sampled[-1]
            digest = self.model.extend(digest, token_id, row.start_len + offset)
            self._write(queued_row, row.start_len + offset, token_id, NO_DIGEST if is_wrong_draft else digest)
            if offset >= first_sampling:
                sampled.append(self.model.next_id(digest))
        if sampled:
            self._sampled[row.req_pool_idx] = (row.rid, sampled[-1])
        return tuple(sampled)

    def _write(self, queued_row: QueuedRow, position: int, token_id: int, digest: int) -> None:
        cell = self._cell(queued_row, position)
        self._tokens[cell] = token_id
        self._digests[cell] = digest

    def _gather(self, queued_row: QueuedRow, *, is_lost: bool) -> int:
        """Digest of the history that the page table shows. It is garbage from the first cell that is not right."""
        digest = EMPTY_DIGEST
        row = queued_row.row
        for position in range(row.start_len):
            cell = self._cell(queued_row, position)
            digest = self.model.extend(digest, self._tokens[cell], position)
            if (self._tokens[cell] == POISON or self._digests[cell] != digest) and not is_lost:
                kind = "poisoned" if self._tokens[cell] == POISON else "of another history"
                page = queued_row.pages[position // self.page_size]
                self._violate(f"rid {row.rid}: position {position} on page {page} is {kind}")
                return self.model.extend(digest, POISON, position)
        return digest

    def _inputs(self, row: PlanRow, *, is_lost: bool) -> list[int]:
        if not row.uses_sampled:
            return list(unpack_ids(row.input_ids))
        rid, token_id = self._sampled.get(row.req_pool_idx, (None, POISON))
        if rid != row.rid and not is_lost:
            self._violate(f"rid {row.rid}: row {row.req_pool_idx} has the sampled id of {rid}")
        return [token_id]

    def _check_access(self, queued: QueuedPlan, when: str) -> None:
        if self._book is None:
            return
        for queued_row in queued.rows:
            rid, row_idx = queued_row.row.rid, queued_row.row.req_pool_idx
            where = f"step {queued.plan.step} {when}, rid {rid}"
            self._check_owner(self._book, PoolKind.ROWS, row_idx, rid, f"{where} uses")
            for page in queued_row.written_pages:
                self._check_owner(self._book, PoolKind.FULL, page, rid, f"{where} writes")
            for page in queued_row.read_pages:
                if not self._book.is_protected(page):
                    self._check_owner(self._book, PoolKind.FULL, page, rid, f"{where} reads")

    def _check_owner(self, book: Book, pool: PoolKind, unit: int, rid: Rid, what: str) -> None:
        owner = book.owner(pool, unit)
        if owner.kind is not OwnerKind.REQUEST or owner.name != rid:
            self._violate(f"{what} {pool} {unit}, which belongs to {owner}")

    def _check_writers(self, queued: QueuedPlan) -> None:
        writer: dict[int, Rid] = {page: row.row.rid for row in queued.rows for page in row.written_pages}
        for row in queued.rows:
            for page in row.pages:
                if writer.get(page, row.row.rid) != row.row.rid:
                    self._violate(f"step {queued.plan.step}: rid {row.row.rid} touches page {page}, written by another")

    def _violate(self, message: str) -> None:
        self.violations.append(message)
