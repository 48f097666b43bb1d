"""The full check in slices: it finds what the whole one finds, of one instant only, a bounded piece at a time."""

import sys
from collections.abc import Callable, Iterable
from random import Random
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

import pytest

from engine.core.commands import Abort, Close
from engine.core.core import Core
from engine.core.faults import Fault
from engine.core.findings import PIECE_UNITS, CheckLevel, Report
from engine.core.ids import Rid, SessionId, StepNo
from engine.core.invariants import check_books
from engine.core.ledger import Claim, Ledger
from engine.core.ownership import Move, Owner, PoolKind
from engine.core.plan import StepResult
from engine.core.request import Phase
from engine.core.sliced_check import SLICE_UNITS, SlicedCheck
from tests.kit.broken_books import DEFECTS, Defect, running_parts
from tests.kit.busy_core import SAMPLED, make_busy_core
from tests.kit.core_parts import CoreParts, make_parts
from tests.kit.random_traffic import RandomTraffic

if TYPE_CHECKING:
    from _typeshed import TraceFunction

Result = TypeVar("Result")

OPCODES_PER_UNIT_MAX = 30
"""Of the interpreter, however much there is to check: some tens of nanoseconds each."""


def run_all(check: SlicedCheck, units: int) -> tuple[Report, int]:
    """The report, and how many slices it took."""
    slices = 1
    while (report := check.run_slice(0, units)) is None:
        slices += 1
    return report, slices


def finish(core: Core, units: int = 1) -> tuple[Report, int]:
    slices = 1
    while (report := core.check_slice(units)) is None:
        slices += 1
    return report, slices


@pytest.mark.parametrize("units", [1, 30, 10_000])
def test_check_slice_when_the_books_are_right_then_it_finds_nothing_and_says_so_once_it_is_through(units: int) -> None:
    parts, _ = running_parts()
    report, slices = run_all(SlicedCheck(parts.books), units)
    assert report == check_books(parts.books, CheckLevel.FULL)
    assert report.is_clean
    assert (slices > 1) == (units < report.units)
    assert slices <= 1 + report.units // units


@pytest.mark.parametrize("defect", dict(DEFECTS), ids=lambda defect: defect.__name__)
def test_check_slice_when_a_defect_is_planted_then_it_finds_what_the_whole_check_finds(defect: Defect) -> None:
    parts, request = running_parts()
    defect(parts, request)
    report, slices = run_all(SlicedCheck(parts.books), units=1)
    assert slices > 1
    assert report == check_books(parts.books, CheckLevel.FULL)
    assert not report.is_clean


def test_check_slice_when_it_is_through_then_the_next_one_sees_what_is_there_by_then() -> None:
    parts, request = running_parts()
    check = SlicedCheck(parts.books)
    assert run_all(check, 20)[0].is_clean
    request.kv.pages.pop()
    assert not run_all(check, 20)[0].is_clean


def test_check_slice_when_a_unit_moves_between_two_slices_then_it_begins_anew_though_nothing_else_was_told() -> None:
    parts, request = running_parts()
    check = SlicedCheck(parts.books)
    _, slices = run_all(check, 1)
    for _ in range(slices - 1):
        assert check.run_slice(0, 1) is None
    parts.pools.free_up(Move.RELEASE, PoolKind.FULL, [request.kv.pages.pop()], request.owner)
    request.kv.kv_allocated_len = request.kv.kv_committed_len = 8
    report, again = run_all(check, 1)
    assert report.is_clean
    assert again == run_all(check, 1)[1], "as many slices as from the beginning"


def do_nothing(core: Core) -> None:
    """Asks and looks, as anybody may between two slices."""
    core.check(CheckLevel.BUSY)
    core.check_owners_slice()
    core.explain(PoolKind.FULL, 1)
    core.snapshot()
    core.take_events()
    core.expire(0.0)


def answer(core: Core) -> None:
    """The one row of the plan in flight."""
    core.advance(StepResult(StepNo(core.snapshot().steps), ((SAMPLED,),)), 0.0)


def quarantine(core: Core) -> None:
    core.quarantine(core.check(CheckLevel.FULL))


CHANGES: dict[str, Callable[[Core], object]] = {
    "abort": lambda core: core.apply(Abort(Rid(3)), 0.0),
    "close": lambda core: core.apply(Close(SessionId("s")), 0.0),
    "answer": answer,
    "plan": lambda core: core.next_plan(0.0),
    "expire": lambda core: core.expire(10_000.0),
    "plant": lambda core: core.plant(Fault.DOUBLE_OWNER),
    "leak": lambda core: core.plant(Fault.LEAK),
    "quarantine": quarantine,
}


@pytest.mark.parametrize("name", CHANGES)
def test_check_slice_when_something_was_done_since_the_last_one_then_it_begins_anew(name: str) -> None:
    core = make_busy_core()
    _, slices = finish(core)
    for _ in range(slices - 1):
        assert core.check_slice(1) is None
    CHANGES[name](core)
    report, again = finish(core)
    assert report.findings == core.check(CheckLevel.FULL).findings
    assert again == finish(core)[1], "as many slices as from the beginning"


def test_check_slice_when_somebody_only_looked_since_the_last_one_then_it_goes_on() -> None:
    core = make_busy_core()
    report, slices = finish(core)
    assert report.is_clean
    for _ in range(slices - 1):
        assert core.check_slice(1) is None
        do_nothing(core)
    assert core.check_slice(1) is not None


def test_check_slice_when_it_is_through_then_it_counts_as_one_check() -> None:
    core = make_busy_core()
    before = core.snapshot().checks_run
    finish(core)
    assert core.snapshot().checks_run == before + 1


def fingerprint(core: Core) -> object:
    """All that can be seen of a core from outside, but how often it was checked."""
    snapshot = core.snapshot()
    return (
        snapshot.pools,
        snapshot.turns,
        snapshot.sessions,
        snapshot.plans,
        [core.owners(pool) for pool in (PoolKind.FULL, PoolKind.ROWS)],
    )


@pytest.mark.parametrize("seed", range(12))
def test_num_changes_when_anything_visible_changed_then_it_counted(seed: int) -> None:
    traffic = RandomTraffic(seed)
    core, seen = traffic.core, 0
    before, counted = fingerprint(core), core.num_changes
    for operation in traffic.run(150):
        after = fingerprint(core)
        if after != before:
            assert core.num_changes > counted, operation
            seen += 1
        before, counted = after, core.num_changes
    assert seen > 20


@pytest.mark.parametrize("seed", range(12))
def test_check_slice_when_a_core_is_busy_between_slices_then_it_never_finds_what_is_not_there(seed: int) -> None:
    traffic, draw = RandomTraffic(seed), Random(seed)
    finished = 0
    for operation in traffic.run(200):
        report = traffic.core.check_slice(draw.choice((1, 40, 300)))
        if report is not None:
            assert report.is_clean, (operation, report.findings)
            finished += 1
    assert finished > 0
    assert finish(traffic.core, 40)[0].is_clean


def make_large_parts(num_holders: int) -> CoreParts:
    """Each holder a request of 40 pages, 30 of them in a node of its own, and a session that has nothing."""
    parts = make_parts(page_size=1, pool_pages=80 * num_holders + 1, num_rows=num_holders + 1)
    for number in range(1, num_holders + 1):
        parts.open_session(f"s{number}")
        request = parts.request(number, [number, *range(29)])
        parts.queues.run(request)
        request.go(Phase.RUNNING)
        granted = parts.pools.grant(request.owner, 40, rows=1)
        assert granted is not None
        kv = request.kv
        kv.pages, kv.req_pool_idx = granted.pages, granted.rows[0]
        kv.kv_committed_len = kv.kv_allocated_len = 30
        parts.table.write(kv.req_pool_idx, 0, kv.pages)
        parts.radix.cache_prompt(request)
    return parts


def count_opcodes(run: Callable[[], Result]) -> tuple[Result, int]:
    """Instructions of the interpreter: the same on every machine."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: object) -> "TraceFunction":
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        result = run()
    finally:
        sys.settrace(before)
    return result, count


def longest_slice(parts: CoreParts) -> tuple[int, int]:
    """Opcodes of the longest slice, and how many slices there were."""
    check, longest, slices = SlicedCheck(parts.books), 0, 0
    report = None
    while report is None:
        report, opcodes = count_opcodes(lambda: check.run_slice(0, SLICE_UNITS))
        longest, slices = max(longest, opcodes), slices + 1
    assert report.is_clean
    return longest, slices


def test_check_slice_when_there_is_more_to_check_then_there_are_more_slices_and_none_is_longer() -> None:
    longest, slices = longest_slice(make_large_parts(100))
    longest_of_large, slices_of_large = longest_slice(make_large_parts(400))
    assert slices_of_large > 3 * slices > 20
    assert max(longest, longest_of_large) < OPCODES_PER_UNIT_MAX * SLICE_UNITS


class CountingLedger(Ledger):
    """How many of its units it was asked for at most in one call."""

    units_max = 0

    def owners(self, pool: PoolKind) -> tuple[Owner, ...]:
        raise AssertionError("all of a pool at once")

    def claims_in(self, pool: PoolKind, start: int, stop: int) -> list[Claim]:
        self.units_max = max(self.units_max, stop - start)
        return super().claims_in(pool, start, stop)

    def claims_on(self, pool: PoolKind, units: Iterable[int]) -> list[Claim]:
        asked = list(units)
        self.units_max = max(self.units_max, len(asked))
        return super().claims_on(pool, asked)


def test_check_slice_when_the_pool_is_large_then_the_ledger_is_asked_for_small_pieces_of_it() -> None:
    parts = make_parts(pool_pages=50_000)
    ledger = parts.pools.ledger = CountingLedger({PoolKind.FULL: 50_000, PoolKind.ROWS: 5}, parts.log)
    assert run_all(SlicedCheck(parts.books), SLICE_UNITS)[0].is_clean
    assert 0 < ledger.units_max <= 2 * PIECE_UNITS
