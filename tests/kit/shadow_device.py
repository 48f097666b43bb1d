"""A device without numbers: pages hold token ids, and the next id is computed from what the page table gathers."""

from collections import deque
from collections.abc import Iterable, Iterator
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
    touched: dict[PoolKind, tuple[tuple[int, ...], tuple[int, ...]]]
    """Of each pool the units that it writes and those that it reads; a page may be among both."""
    swa_pages: tuple[int, ...] = ()
    """As `pages`, of the SWA pool; what lies before the window of `start_len` is padding."""


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
    garbage; the cell of a draft that proved wrong is so for everyone, until it is written again. Pages of windows have
    cells of their own, and what a row sees of them has to be right as well. A state is the digest of the history that
    it is behind, with its length, so that a state of any other history or length shows.

    With a `book` the device also holds every access against the owners that the event stream tells: it reads only units
    that the request owns or that are locked in the cache, and writes only units that it owns.
    """

    def __init__(
        self,
        model: ShadowModel,
        *,
        page_size: int,
        pool_pages: int,
        num_rows: int,
        swa_pages: int = 0,
        state_slots: int = 0,
        book: Book | None = None,
    ) -> None:
        self.model = model
        self.page_size = page_size
        self.violations: list[str] = []
        self._num_rows = num_rows
        self._book = book
        sizes = {PoolKind.FULL: pool_pages * page_size, PoolKind.SWA: swa_pages * page_size}
        self._tokens = {pool: [POISON] * size for pool, size in sizes.items()}
        self._digests = {pool: [0] * size for pool, size in sizes.items()}
        self._states: list[tuple[int, int] | None] = [None] * state_slots
        """(length, digest) of each slot; None where it holds no state."""
        self._sampled: dict[int, tuple[Rid, int]] = {}
        self._queue: deque[QueuedPlan] = deque()

    @property
    def queued(self) -> tuple[QueuedPlan, ...]:
        """Plans submitted and not answered, oldest first."""
        return tuple(self._queue)

    def observe(self, events: Iterable[CoreEvent]) -> None:
        """Poisons units that became free: whoever still reads them reads garbage, and is told on."""
        for event in events:
            if isinstance(event, KvMoved) and event.target.kind is OwnerKind.FREE:
                self.poison(event.pages, event.pool)

    def poison(self, units: Iterable[int], pool: PoolKind = PoolKind.FULL) -> None:
        for unit in units:
            if pool is PoolKind.MAMBA:
                self._states[unit] = None
            elif pool in self._tokens:
                start = unit * self.page_size
                self._tokens[pool][start : start + self.page_size] = [POISON] * self.page_size

    def digest_behind(self, pool: PoolKind, unit: int) -> int:
        """Of the history up to the end of a page, or up to a state; what a poisoned one held before, NO_DIGEST of a
        state that is none."""
        if pool is PoolKind.MAMBA:
            state = self._states[unit]
            return NO_DIGEST if state is None else state[1]
        return self._digests[pool][(unit + 1) * self.page_size - 1]

    def state_len(self, slot: int) -> int | None:
        """How many tokens a state is behind; None where there is none."""
        state = self._states[slot]
        return None if state is None else state[0]

    def digests(self, pool: PoolKind, units: Iterable[int]) -> Iterator[int]:
        """Of every cell of some pages that holds KV, or of some states."""
        for unit in units:
            if pool is PoolKind.MAMBA:
                yield self.digest_behind(pool, unit)
                continue
            for cell in range(unit * self.page_size, (unit + 1) * self.page_size):
                if self._tokens[pool][cell] != POISON:
                    yield self._digests[pool][cell]

    def run(self, plan: StepPlan) -> StepResult:
        """Submits and answers a plan at once."""
        assert not self._queue, "plans in flight are answered in order"
        self.submit(plan)
        return self.answer()

    def submit(self, plan: StepPlan) -> None:
        """Queues a plan; page tables are copied here. Raises AssertionError for a plan that is not well formed."""
        assert_well_formed(plan)
        assert plan.page_size == self.page_size, f"page size {plan.page_size}, the device has {self.page_size}"
        queued = QueuedPlan(plan, tuple(self._copy_row(row, plan) for row in plan.rows))
        self._check_access(queued, "submit")
        self._check_writers(queued)
        self._queue.append(queued)

    def answer(self) -> StepResult:
        """Runs the oldest queued plan."""
        queued = self._queue.popleft()
        self._check_access(queued, "forward")
        for copy in queued.plan.copies:
            self._copy_page(copy.pool, copy.src, copy.dst)
        return StepResult(queued.plan.step, tuple(self._run_row(row, queued) for row in queued.rows))

    def fail(self, reason: str) -> StepFailure:
        """The oldest queued plan fails: what it was to write is garbage, and so is what later plans make of it."""
        failed = self._queue.popleft()
        for queued_row in failed.rows:
            row = queued_row.row
            for position in range(row.start_len, row.start_len + row.query_len):
                for pool, cell in self._cells(queued_row, position):
                    self._tokens[pool][cell] = POISON
            if row.state_write:
                self._states[row.state_write] = None
            if row.num_samples:
                self._sampled.pop(row.req_pool_idx, None)
        lost = tuple(row.row.rid for row in failed.rows) + failed.lost_rids
        for later in self._queue:
            later.lost_rids += lost
        return StepFailure(failed.plan.step, reason)

    def _copy_row(self, row: PlanRow, plan: StepPlan) -> QueuedRow:
        stop_len = row.start_len + row.query_len
        pages = tuple(row.page_table[: pages_for(stop_len, self.page_size)])
        first_written = row.start_len // self.page_size
        swa_pages = self._swa_pages(row, plan.window, len(pages))
        num_read = pages_for(row.start_len, self.page_size)
        touched = {
            PoolKind.FULL: (pages[first_written:], pages[:num_read]),
            PoolKind.SWA: (swa_pages[first_written:], tuple(page for page in swa_pages[:num_read] if page)),
            PoolKind.MAMBA: (_slots(row.state_write), _slots(row.state_read)),
            PoolKind.ROWS: ((row.req_pool_idx,), ()),
        }
        return QueuedRow(row, pages, touched, swa_pages)

    def _swa_pages(self, row: PlanRow, window: int | None, num_pages: int) -> tuple[int, ...]:
        if window is None or row.swa_table is None:
            return ()
        first = max(0, row.start_len - window + 1) // self.page_size
        return (0,) * first + tuple(row.swa_table[first:num_pages])

    def _cell(self, pages: tuple[int, ...], position: int) -> int:
        return pages[position // self.page_size] * self.page_size + position % self.page_size

    def _cells(self, row: QueuedRow, position: int) -> list[tuple[PoolKind, int]]:
        """Where the KV of a position goes."""
        cells = [(PoolKind.FULL, self._cell(row.pages, position))]
        if row.swa_pages:
            cells.append((PoolKind.SWA, self._cell(row.swa_pages, position)))
        return cells

    def _copy_page(self, pool: PoolKind, src: int, dst: int) -> None:
        size = self.page_size
        for cells in (self._tokens[pool], self._digests[pool]):
            cells[dst * size : (dst + 1) * size] = cells[src * size : (src + 1) * size]

    def _run_row(self, queued_row: QueuedRow, queued: QueuedPlan) -> tuple[int, ...]:
        """Writes the row's cells. One id for each of its last `num_samples` tokens, of the history up to that token."""
        row = queued_row.row
        is_lost = row.rid in queued.lost_rids
        digest = self._gather(queued_row, queued.plan, is_lost=is_lost)
        first_sampling = row.query_len - row.num_samples
        sampled: list[int] = []
        for offset, token_id in enumerate(self._inputs(row, is_lost=is_lost)):
            is_wrong_draft = bool(sampled) and token_id != sampled[-1]
            digest = self.model.extend(digest, token_id, row.start_len + offset)
            self._write(queued_row, row.start_len + offset, token_id, NO_DIGEST if is_wrong_draft else digest)
            if offset >= first_sampling:
                sampled.append(self.model.next_id(digest))
        if row.state_write:
            self._states[row.state_write] = (row.start_len + row.query_len, digest)
        if sampled:
            self._sampled[row.req_pool_idx] = (row.rid, sampled[-1])
        return tuple(sampled)

    def _write(self, queued_row: QueuedRow, position: int, token_id: int, digest: int) -> None:
        for pool, cell in self._cells(queued_row, position):
            self._tokens[pool][cell] = token_id
            self._digests[pool][cell] = digest

    def _gather(self, queued_row: QueuedRow, plan: StepPlan, *, is_lost: bool) -> int:
        """Digest of the history that the page table shows. It is garbage from the first cell that is not right."""
        digest = EMPTY_DIGEST
        row = queued_row.row
        seen_from = row.start_len if plan.window is None else max(0, row.start_len - plan.window + 1)
        for position in range(row.start_len):
            cell = self._cell(queued_row.pages, position)
            digest = self.model.extend(digest, self._tokens[PoolKind.FULL][cell], position)
            wrong = self._find_wrong(PoolKind.FULL, cell, digest)
            if wrong is None and position >= seen_from:
                wrong = self._find_wrong(PoolKind.SWA, self._cell(queued_row.swa_pages, position), digest)
            if wrong is not None and not is_lost:
                self._violate(f"rid {row.rid}: position {position} on {wrong}")
                return self.model.extend(digest, POISON, position)
        state = self._states[row.state_read] if row.state_read else (0, EMPTY_DIGEST)
        if plan.has_states and state != (row.start_len, digest) and not is_lost:
            held = "none" if state is None else f"one behind {state[0]} tokens"
            self._violate(f"rid {row.rid}: starts at {row.start_len} from state {row.state_read}, which is {held}")
            return self.model.extend(digest, POISON, row.start_len)
        return digest

    def _find_wrong(self, pool: PoolKind, cell: int, digest: int) -> str | None:
        """What is wrong with a cell that ought to be of the history of `digest`."""
        if self._tokens[pool][cell] == POISON:
            return f"{pool} page {cell // self.page_size} is poisoned"
        if self._digests[pool][cell] != digest:
            return f"{pool} page {cell // self.page_size} is of another history"
        return None

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
            rid = queued_row.row.rid
            where = f"step {queued.plan.step} {when}, rid {rid}"
            for pool, (written, read) in queued_row.touched.items():
                for unit in written:
                    self._check_owner(self._book, pool, unit, rid, f"{where} writes")
                for unit in read:
                    if not self._book.is_protected(unit, pool):
                        self._check_owner(self._book, pool, unit, rid, f"{where} reads")

    def _check_owner(self, book: Book, pool: PoolKind, unit: int, rid: Rid, what: str) -> None:
        owner = book.owner(pool, unit)
        if owner.kind is not OwnerKind.REQUEST or owner.name != rid:
            self._violate(f"{what} {pool} {unit}, which belongs to {owner}")

    def _check_writers(self, queued: QueuedPlan) -> None:
        writer: dict[tuple[PoolKind, int], Rid] = {
            (pool, unit): row.row.rid
            for row in queued.rows
            for pool, (written, _) in row.touched.items()
            for unit in written
        }
        for row in queued.rows:
            rid = row.row.rid
            for pool, (written, read) in row.touched.items():
                for unit in (*written, *read):
                    if writer.get((pool, unit), rid) != rid:
                        self._violate(
                            f"step {queued.plan.step}: rid {rid} touches {pool} page {unit}, written by another"
                        )

    def _violate(self, message: str) -> None:
        self.violations.append(message)


def _slots(slot: int) -> tuple[int, ...]:
    return (slot,) if slot else ()
