"""What a plan must be where a model has windows or states, whoever made it."""

import pytest

from engine.core.ids import Rid
from engine.core.plan import PlanRow, assert_well_formed
from engine.core.window import window_start
from tests.kit.paged_sequence import PagedSequence, make_plan

PAGE_SIZE = 4


def windowed(swa_pages: list[int] | None, *, start_len: int, query_len: int = 1) -> PlanRow:
    made = PagedSequence(1, [1, 2, 3, 4, 5], swa_pages=swa_pages)
    made.planned_len = start_len
    return made.chunk([5] * query_len)


def recurrent(number: int, *, read: int, write: int, start_len: int = 3) -> PlanRow:
    made = PagedSequence(number, [number])
    made.planned_len = start_len
    return made.chunk([5])._replace(state_read=read, state_write=write)


def check_window(row: PlanRow, window: int) -> None:
    assert_well_formed(make_plan(1, PAGE_SIZE, [row], window=window))


def check_states(*rows: PlanRow) -> None:
    assert_well_formed(make_plan(1, PAGE_SIZE, rows, has_states=True))


@pytest.mark.parametrize(
    ("position", "window", "start"), [(0, 1, 0), (7, 1, 7), (2, 4, 0), (3, 4, 0), (4, 4, 1), (100, 4, 97)]
)
def test_window_when_asked_where_it_starts_then_covers_so_many_positions_with_its_own(
    position: int, window: int, start: int
) -> None:
    assert window_start(position, window) == start


@pytest.mark.parametrize("window", [1, 2, 5, 6, 100])
@pytest.mark.parametrize("start_len", [0, 3, 4, 5, 9, 16])
def test_swa_table_when_it_is_padding_where_the_window_begins_or_the_step_writes_then_refused(
    start_len: int, window: int
) -> None:
    """Each place by itself: those before the window, and those behind what is written, may be anything."""
    query_len = min(3, 20 - start_len)
    window_page = max(0, start_len - window + 1) // PAGE_SIZE
    written = range(max(0, start_len - 1), start_len + query_len)
    needed = {window_page} | {page for position in written if (page := position // PAGE_SIZE) >= window_page}
    check_window(windowed([6, 7, 8, 9, 10], start_len=start_len, query_len=query_len), window)
    for place in range(5):
        for padding in (0, -1):
            table = [6, 7, 8, 9, 10]
            table[place] = padding
            row = windowed(table, start_len=start_len, query_len=query_len)
            if place not in needed:
                check_window(row, window)
                continue
            with pytest.raises(AssertionError, match="padding in SWA pages"):
                check_window(row, window)


def test_swa_table_when_there_is_none_then_refused_where_the_model_has_windows_only() -> None:
    assert_well_formed(make_plan(1, PAGE_SIZE, [windowed(None, start_len=0)]))
    with pytest.raises(AssertionError, match="rid 101: no SWA pages"):
        check_window(windowed(None, start_len=0), 4)


def test_states_when_each_row_reads_what_nobody_writes_and_writes_its_own_then_the_plan_is_good() -> None:
    shared = (recurrent(1, read=7, write=1), recurrent(2, read=7, write=2))
    check_states(*shared, recurrent(3, read=0, write=3, start_len=0), recurrent(4, read=0, write=4, start_len=0))


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ((recurrent(1, read=1, write=0),), "writes the padding state"),
        ((recurrent(1, read=1, write=-1),), "writes the padding state"),
        ((recurrent(1, read=1, write=3), recurrent(2, read=2, write=3)), r"states \[3, 3\] are written twice"),
        ((recurrent(1, read=1, write=3), recurrent(2, read=3, write=4)), r"states \[3\] are read, too"),
        ((recurrent(1, read=2, write=2),), r"states \[2\] are read, too"),
        ((recurrent(1, read=2, write=3, start_len=0),), "rid 101: state 2"),
        ((recurrent(1, read=0, write=3),), "rid 101: state 0"),
    ],
)
def test_states_when_a_step_could_harm_one_or_starts_from_the_wrong_one_then_refused(
    rows: tuple[PlanRow, ...], told: str
) -> None:
    with pytest.raises(AssertionError, match=told):
        check_states(*rows)


def test_states_when_the_model_has_none_then_slots_are_not_looked_at() -> None:
    row = recurrent(1, read=0, write=0)
    assert_well_formed(make_plan(1, PAGE_SIZE, [row, recurrent(2, read=0, write=0)._replace(rid=Rid(9))]))
