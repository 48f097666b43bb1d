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


def make_row(
    pages: Sequence[int],
    start_len: int,
    ids: Sequence[int] | None,
    *,
    rid: int = 1,
    idx: int = 1,
    num_samples: int = 1,
) -> PlanRow:
    """A row that samples; `ids` None takes the sampled one."""
    return PlanRow(
        rid=Rid(rid),
        epoch=0,
        req_pool_idx=idx,
        start_len=start_len,
        query_len=1 if ids is None else len(ids),
        input_ids=b"" if ids is None else pack_ids(ids),
        uses_sampled=ids is None,
        num_samples=num_samples,
        page_table=array("i", pages),
    )


def make_plan(step: int, *rows: PlanRow) -> StepPlan:
    return StepPlan(StepNo(step), PAGE_SIZE, rows)


def moved(move: Move, source: Owner, target: Owner, units: tuple[int, ...], pool: PoolKind = PoolKind.FULL) -> KvMoved:
    return KvMoved(pool, move, source, target, units, StepNo(0), "trace")


def grant(book: Book, owner: Owner, pages: tuple[int, ...], row: int) -> None:
    book.replay(
        (moved(Move.GRANT, FREE, owner, pages), moved(Move.GRANT, FREE, owner, (row,), PoolKind.ROWS)),
    )


def cold(ids: Sequence[int]) -> int:
    return MODEL.next_id(MODEL.digest(ids))


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 8])
def test_run_when_prompt_is_chunked_then_next_id_is_that_of_one_shot(cut: int) -> None:
    ids = list(range(9))
    device = make_device()
    device.run(make_plan(1, make_row([3, 7, 5], 0, ids[:cut])))
    result = device.run(make_plan(2, make_row([3, 7, 5], cut, ids[cut:])))
    assert result.sampled == ((cold(ids),),)
    assert device.violations == []


def test_run_when_decoding_then_uses_its_own_sampled_id() -> None:
    device = make_device()
    device.submit(make_plan(1, make_row([3], 0, [1, 2])))
    device.submit(make_plan(2, make_row([3], 2, None)))
    ((first,),) = device.answer().sampled
    ((second,),) = device.answer().sampled
    assert (first, second) == (cold([1, 2]), cold([1, 2, first]))
    assert device.violations == []


@pytest.mark.parametrize("num_samples", [0, 1, 2, 4])
def test_run_when_a_row_samples_then_each_id_is_that_of_the_history_up_to_its_token(num_samples: int) -> None:
    device = make_device()
    result = device.run(make_plan(1, make_row([3], 0, [1, 2, 3, 4], num_samples=num_samples)))
    every = [cold([1]), cold([1, 2]), cold([1, 2, 3]), cold([1, 2, 3, 4])]
    assert result.sampled == (tuple(every[4 - num_samples :]),)
    assert device.violations == []


def test_run_when_decoding_behind_several_samples_then_takes_the_last() -> None:
    device = make_device()
    history = [1, 2, cold([1, 2])]
    device.submit(make_plan(1, make_row([3], 0, history, num_samples=2)))
    device.submit(make_plan(2, make_row([3], 3, None)))
    ((_, last),) = device.answer().sampled
    assert device.answer().sampled == ((cold([*history, last]),),)
    assert device.violations == []


def verify_with_one_right_draft(device: ShadowDevice) -> list[int]:
    """The known history of positions 0 to 3 on page 3; behind it lie two drafts that proved wrong."""
    history = [1, 2, 3, cold([1, 2, 3])]
    device.run(make_plan(1, make_row([3, 7], 0, [1, 2])))
    result = device.run(make_plan(2, make_row([3, 7], 2, [*history[2:], cold(history) + 1, 9], num_samples=4)))
    assert result.sampled[0][:2] == (history[3], cold(history))
    return history


@pytest.mark.parametrize("start_len", [5, 6])
def test_run_when_the_cell_of_a_wrong_draft_is_read_then_says_so_and_token_is_wrong(start_len: int) -> None:
    device = make_device()
    history = [*verify_with_one_right_draft(device), 0, 9]
    history[4] = cold(history[:4]) + 1
    result = device.run(make_plan(3, make_row([3, 7], start_len, [8])))
    assert any("position 4 on full page 7 is of another history" in violation for violation in device.violations)
    assert result.sampled != ((cold([*history[:start_len], 8]),),)


def test_run_when_wrong_drafts_are_written_over_then_nothing_is_left_of_them() -> None:
    device = make_device()
    history = verify_with_one_right_draft(device)
    for step in range(3, 7):
        token_id = cold(history)
        result = device.run(make_plan(step, make_row([3, 7], len(history), [token_id])))
        history.append(token_id)
        assert result.sampled == ((cold(history),),)
    assert device.violations == []


def test_fail_when_drafts_were_verified_then_their_cells_and_the_sampled_id_are_lost() -> None:
    device = make_device()
    device.run(make_plan(1, make_row([3], 0, [1])))
    device.submit(make_plan(2, make_row([3], 1, [2, 3], num_samples=2)))
    device.fail("broken")
    device.run(make_plan(3, make_row([3], 2, [3], num_samples=0)))
    device.run(make_plan(4, make_row([7], 0, [1], rid=2, idx=2), make_row([3], 1, None)))
    assert device.violations == [
        "rid 1: position 1 on full page 3 is poisoned",
        "rid 1: row 1 has the sampled id of None",
    ]


def test_submit_when_table_changes_afterwards_then_the_copy_is_used() -> None:
    device = make_device()
    table = array("i", [3])
    row = make_row([3], 0, [1, 2])
    plan = make_plan(1, PlanRow(row.rid, 0, 1, 0, 2, row.input_ids, False, 1, table))
    device.submit(plan)
    table[0] = 9
    device.answer()
    assert device.run(make_plan(2, make_row([3], 2, [5]))).sampled == ((cold([1, 2, 5]),),)


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
    assert result.sampled != ((cold([1, 2, 3, 4, 5]),),)


def test_run_when_page_was_freed_then_it_is_poisoned() -> None:
    device = make_device()
    device.run(make_plan(1, make_row([3], 0, [1, 2])))
    device.observe([moved(Move.RELEASE, ALICE, FREE, (3,))])
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
    assert device.answer().sampled[1] == (cold([7]),)
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
    assert any("writes rows 2" in violation for violation in device.violations)


def test_submit_when_page_is_cached_then_locked_may_be_read_and_none_written() -> None:
    book = Book(16, 4)
    device = make_device(book)
    grant(book, ALICE, (3, 4), row=1)
    device.run(make_plan(1, make_row([3], 0, [1, 2, 3, 4])))
    book.replay((moved(Move.DONATE, ALICE, CACHE, (3,)),))
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
    book.replay((moved(Move.RELEASE, ALICE, FREE, (3,)),))
    device.answer()
    assert any("forward" in violation for violation in device.violations)
