"""The shadow device: right tokens from right pages, and a finding for each way to break the executor's contract."""

from array import array
from collections.abc import Sequence

import pytest

from engine.core.events import KvMoved
from engine.core.ids import Rid, StepNo, pack_ids
from engine.core.ownership import CACHE, FREE, Move, Owner, OwnerKind, PoolKind
from engine.core.plan import PlanRow, StepPlan
from tests.kit.book import Book
from tests.kit.shadow_device import ShadowDevice
from tests.kit.shadow_model import ShadowModel

MODEL = ShadowModel(vocab_size=1000)
PAGE_SIZE = 4
ALICE = Owner(OwnerKind.REQUEST, 1)
BOB = Owner(OwnerKind.REQUEST, 2)


def make_device(book: Book | None = None) -> ShadowDevice:
    return ShadowDevice(MODEL, page_size=PAGE_SIZE, pool_pages=16, num_rows=4, book=book)


def make_row(pages: Sequence[int], start_len: int, ids: Sequence[int] | None, *, rid: int = 1, idx: int = 1) -> PlanRow:
    """A row that samples; `ids` None takes the sampled one."""
    return PlanRow(
        rid=Rid(rid),
        epoch=0,
        req_pool_idx=idx,
        start_len=start_len,
        query_len=1 if ids is None else len(ids),
        input_ids=b"" if ids is None else pack_ids(ids),
        uses_sampled=ids is None,
        samples=True,
        page_table=array("i", pages),
    )


def make_plan(step: int, *rows: PlanRow) -> StepPlan:
    return StepPlan(StepNo(step), PAGE_SIZE, rows)


def grant(book: Book, owner: Owner, pages: tuple[int, ...], row: int) -> None:
    book.replay(
        (
            KvMoved(PoolKind.FULL, Move.GRANT, FREE, owner, pages),
            KvMoved(PoolKind.ROWS, Move.GRANT, FREE, owner, (row,)),
        )
    )


def cold(ids: Sequence[int]) -> int:
    return MODEL.next_id(MODEL.digest(ids))


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 8])
def test_run_when_prompt_is_chunked_then_next_id_is_that_of_one_shot(cut: int) -> None:
    ids = list(range(9))
    device = make_device()
    device.run(make_plan(1, make_row([3, 7, 5], 0, ids[:cut])))
    result = device.run(make_plan(2, make_row([3, 7, 5], cut, ids[cut:])))
    assert result.sampled == (cold(ids),)
    assert device.violations == []


def test_run_when_decoding_then_uses_its_own_sampled_id() -> None:
    device = make_device()
    device.submit(make_plan(1, make_row([3], 0, [1, 2])))
    device.submit(make_plan(2, make_row([3], 2, None)))
    (first,) = device.answer().sampled
    (second,) = device.answer().sampled
    assert first is not None
    assert (first, second) == (cold([1, 2]), cold([1, 2, first]))
    assert device.violations == []


def test_submit_when_table_changes_afterwards_then_the_copy_is_used() -> None:
    device = make_device()
    table = array("i", [3])
    row = make_row([3], 0, [1, 2])
    plan = make_plan(1, PlanRow(row.rid, 0, 1, 0, 2, row.input_ids, False, True, table))
    device.submit(plan)
    table[0] = 9
    device.answer()
    assert device.run(make_plan(2, make_row([3], 2, [5]))).sampled == (cold([1, 2, 5]),)


@pytest.mark.parametrize(
    ("pages", "start_len", "finding"),
    [
        ([4], 2, "poisoned"),
        ([3, 4], 5, "poisoned"),
        ([9, 3], 5, "another history"),
    ],
    ids=["never written", "behind what was written", "page of other positions"],
)
def test_run_when_cells_are_wrong_then_says_so_and_token_is_wrong(
    pages: list[int], start_len: int, finding: str
) -> None:
    device = make_device()
    device.run(make_plan(1, make_row([3], 0, [1, 2, 3, 4])))
    device.run(make_plan(2, make_row([9], 0, [8, 8, 8, 8], rid=2, idx=2)))
    device.run(make_plan(3, make_row([9, 2], 4, [8], rid=2, idx=2)))
    result = device.run(make_plan(4, make_row(pages, start_len, [5])))
    assert any(finding in violation for violation in device.violations)
    assert result.sampled != (cold([1, 2, 3, 4, 5]),)


def test_run_when_page_was_freed_then_it_is_poisoned() -> None:
    device = make_device()
    device.run(make_plan(1, make_row([3], 0, [1, 2])))
    device.observe([KvMoved(PoolKind.FULL, Move.RELEASE, ALICE, FREE, (3,))])
    device.run(make_plan(2, make_row([3], 2, [5])))
    assert any("poisoned" in violation for violation in device.violations)


def test_run_when_row_held_anothers_sampled_id_then_says_so() -> None:
    device = make_device()
    device.run(make_plan(1, make_row([3], 0, [1, 2], rid=2)))
    device.run(make_plan(2, make_row([3], 2, None, rid=1)))
    assert any("sampled id" in violation for violation in device.violations)


def test_fail_when_later_plan_is_queued_then_its_garbage_is_no_violation_but_written_cells_are_lost() -> None:
    device = make_device()
    device.run(make_plan(1, make_row([3], 0, [1, 2])))
    device.submit(make_plan(2, make_row([3], 2, None)))
    device.submit(make_plan(3, make_row([3], 3, None), make_row([6], 0, [7], rid=2, idx=2)))
    assert device.fail("broken").reason == "broken"
    assert device.answer().sampled[1] == cold([7])
    assert device.violations == []
    device.run(make_plan(4, make_row([3], 3, [5])))
    assert any("poisoned" in violation for violation in device.violations)


def test_submit_when_owned_pages_are_used_then_is_silent() -> None:
    book = Book(16, 4)
    device = make_device(book)
    grant(book, ALICE, (3,), row=1)
    device.run(make_plan(1, make_row([3], 0, [1, 2])))
    assert device.violations == []


def test_submit_when_page_belongs_to_another_then_says_reads_or_writes() -> None:
    book = Book(16, 4)
    device = make_device(book)
    grant(book, ALICE, (3, 4), row=1)
    grant(book, BOB, (5,), row=2)
    device.submit(make_plan(1, make_row([5, 4], 4, [1])))
    assert [violation for violation in device.violations if "reads full 5" in violation]
    device.submit(make_plan(2, make_row([3, 5], 4, [1])))
    assert [violation for violation in device.violations if "writes full 5" in violation]


def test_submit_when_row_belongs_to_another_then_says_so() -> None:
    book = Book(16, 4)
    device = make_device(book)
    grant(book, ALICE, (3,), row=1)
    grant(book, BOB, (5,), row=2)
    device.submit(make_plan(1, make_row([3], 0, [1], idx=2)))
    assert any("uses rows 2" in violation for violation in device.violations)


def test_submit_when_page_is_cached_then_locked_may_be_read_and_none_written() -> None:
    book = Book(16, 4)
    device = make_device(book)
    grant(book, ALICE, (3, 4), row=1)
    device.run(make_plan(1, make_row([3], 0, [1, 2, 3, 4])))
    book.replay((KvMoved(PoolKind.FULL, Move.DONATE, ALICE, CACHE, (3,)),))
    device.submit(make_plan(2, make_row([3, 4], 4, [1])))
    assert any("reads full 3" in violation for violation in device.violations)
    num_found = len(device.violations)
    device.submit(make_plan(3, make_row([3], 2, [1])))
    assert any("writes full 3" in violation for violation in device.violations[num_found:])


def test_submit_when_two_rows_write_one_page_then_says_so() -> None:
    device = make_device()
    device.submit(make_plan(1, make_row([3], 0, [1]), make_row([3], 0, [1], rid=2, idx=2)))
    assert any("written by another" in violation for violation in device.violations)


def test_answer_when_owner_changed_in_flight_then_says_so() -> None:
    book = Book(16, 4)
    device = make_device(book)
    grant(book, ALICE, (3,), row=1)
    device.submit(make_plan(1, make_row([3], 0, [1])))
    book.replay((KvMoved(PoolKind.FULL, Move.RELEASE, ALICE, FREE, (3,)),))
    device.answer()
    assert any("forward" in violation for violation in device.violations)
