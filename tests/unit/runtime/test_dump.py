"""What is left to read when the engine halts."""

import re

from engine.core.core import Core
from engine.core.faults import Fault
from engine.core.findings import CheckLevel, Finding, FindingKind, Report
from engine.core.ownership import PoolKind
from engine.core.snapshot import Snapshot
from engine.runtime.dump import UNITS_MAX, dump_core
from engine.runtime.housekeeping import BooksDisagree
from tests.kit.busy_core import CONFIG, SAMPLED, make_busy_core


def test_dump_core_when_the_books_balance_then_the_first_line_says_so_and_every_record_has_a_line() -> None:
    lines = dump_core(make_busy_core()).splitlines()
    assert lines[0].startswith("books: balance broken_laws=none leaks=0 conflicts=0 steps=6 in_flight=1")
    assert [line.split(":")[0] for line in lines[1:]] == ["pool", "pool", "plan in flight", "turn", "session"]
    assert re.match(r"pool: full total=32 available=\d+ evictable=\d+ protected=\d+ session_held=\d+", lines[1])
    assert "step=6 rid=3/0:row=" in lines[3]
    assert "rid=3 turn_id='t3' session=None phase=running" in lines[4]
    assert "session: 's' streaming=True" in lines[5]


def test_dump_core_when_books_conflict_then_laws_units_owners_steps_and_traces_are_told() -> None:
    core = make_busy_core()
    planted = core.plant(Fault.DOUBLE_OWNER)
    text = dump_core(core)
    lines = text.splitlines()
    assert lines[0].startswith("books: DO NOT BALANCE broken_laws=census,")
    assert "finding: conflict census: the free stack lists 1 of pool full, as free, that" in text
    (unit,) = (line for line in lines if line.startswith("unit: "))
    assert unit == f"unit: {planted}"
    assert re.search(r"grant free→request:1 step=\d+ trace_id=trace-1", unit)


def test_dump_core_when_the_halt_found_something_else_then_that_is_told_too() -> None:
    found = Finding("holders", "as it was then", FindingKind.CONFLICT, PoolKind.ROWS, (1,))
    text = dump_core(make_busy_core(), BooksDisagree(Report(CheckLevel.FULL, (found,))))
    assert text.startswith("books: balance")
    assert "finding: conflict holders: as it was then" in text
    assert "unit: rows 1 belongs to session:" in text


def test_dump_core_when_a_finding_names_many_units_then_the_rest_is_counted() -> None:
    found = Finding("holders", "all", FindingKind.CONFLICT, PoolKind.FULL, tuple(range(1, 33)) * 3)
    lines = dump_core(make_busy_core(), BooksDisagree(Report(CheckLevel.FULL, (found,)))).splitlines()
    assert lines[-1] == f"unit: {96 - UNITS_MAX} more are not told of"


def test_dump_core_when_told_then_no_token_id_is_in_it() -> None:
    core = make_busy_core()
    core.plant(Fault.DOUBLE_OWNER)
    numbers = {int(number) for number in re.findall(r"\d+", dump_core(core))}
    assert not numbers & {SAMPLED, *range(100, 115), *range(200, 210)}


class Unreadable(Core):
    def snapshot(self) -> Snapshot:
        raise AssertionError("its records contradict each other")


def test_dump_core_when_a_part_can_not_be_read_then_it_is_named_and_the_others_are_told() -> None:
    found = Finding("holders", "all", FindingKind.CONFLICT, PoolKind.FULL, (1,))
    lines = dump_core(Unreadable(CONFIG), BooksDisagree(Report(CheckLevel.FULL, (found,)))).splitlines()
    assert lines == [
        "books: CAN NOT BE TOLD: AssertionError: its records contradict each other",
        "batch: CAN NOT BE TOLD: AssertionError: its records contradict each other",
        "unit: full 1 belongs to free: never moved",
    ]
