"""What is left to read when something is wrong."""

import asyncio
import re
import threading
from dataclasses import replace

import pytest

from engine.core.commands import Open, Submit
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.faults import Fault
from engine.core.findings import CheckLevel, Finding, FindingKind, Report
from engine.core.ids import Rid, SessionId, TurnId, pack_ids
from engine.core.ownership import PoolKind
from engine.core.snapshot import Snapshot
from engine.runtime.dump import BOOKS_CHARS_MAX, STACKS_CHARS_MAX, DumpHead, dump_core, dump_engine
from engine.runtime.dump_books import OWNERS_MAX, SESSIONS_MAX, TURNS_MAX, UNITS_MAX
from engine.runtime.housekeeping import BooksDisagree
from engine.runtime.incidents import IncidentKind
from engine.runtime.lifecycle import EngineState
from engine.runtime.vitals import Phase
from tests.kit.busy_core import CONFIG, SAMPLED, make_busy_core

STUCK = DumpHead(
    message="the forward of step 6 (decode) has not ended for 31.0 s; its limit is 30 s",
    state=EngineState.SERVING,
    phase=Phase.DECODE,
    kind=IncidentKind.FORWARD_STUCK,
    incident_id="a1b2c3",
    age_s=31.0,
    limit_s=30.0,
    beat=812,
    taken_by="tenure-watchdog",
)
ASKED = DumpHead("asked for", EngineState.SERVING, Phase.IDLE)


def heads(lines: list[str]) -> list[str]:
    """The heading words, each once for a run of lines."""
    words = [line.split(":")[0] for line in lines if not line.startswith("  ")]
    return [word for place, word in enumerate(words) if place == 0 or words[place - 1] != word]


def lines_of(text: str, head: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"{head}:")]


def test_dump_core_when_the_books_balance_then_the_first_line_says_so_and_every_record_has_a_line() -> None:
    text = dump_core(make_busy_core())
    lines = text.splitlines()
    assert lines[0].startswith("books: balance broken_laws=none leaks=0 conflicts=0 steps=6 in_flight=1")
    assert heads(lines) == ["books", "pool", "plan", "turn", "session", "owner"]
    plan, row = lines_of(text, "plan")
    assert plan == "plan: step 6 is in flight: 1 rows, 1 tokens"
    assert re.fullmatch(r"plan:   step=6 rid=3/0 row=\d start=10 len=1 samples=1", row)
    (turn,) = lines_of(text, "turn")
    assert turn.startswith("turn: rid=3 phase=running in_flight=1 prompt=10 output=1 kv=10 pages=1 ")
    assert turn.endswith("turn_id='t3' session=None")
    (session,) = lines_of(text, "session")
    assert re.fullmatch(r"session: number=1 streaming slot=held history=14 kv=\d+ pages=\d+ live_turns=0 's'", session)


def test_dump_core_when_told_then_pools_are_a_table_of_all_terms_that_add_up() -> None:
    names, full, rows = (line.split() for line in lines_of(dump_core(make_busy_core()), "pool"))
    assert (full[1], rows[1]) == ("full", "rows")
    for cells in (full, rows):
        books = dict(zip(names[2:], map(int, cells[2:10]), strict=False))
        terms = ("available", "evictable", "protected", "session_held", "uncached")
        assert sum(books[term] for term in terms) == books["total"]
        assert {"draining", "quarantined"} < set(books)
        assert cells[10:] == ["=", "total"]


def test_dump_core_when_the_model_has_windows_and_states_then_holders_tell_of_them_and_pools_line_up() -> None:
    core = Core(replace(CONFIG, window=4, swa_pages=65, state_slots=20))
    core.apply(Open(SessionId("s"), streaming=True, trace_id=""), 0.0)
    core.apply(Submit(Rid(1), TurnId("t"), pack_ids(range(9)), session_id=SessionId("s"), max_tokens=4), 0.0)
    assert core.next_plan(0.0) is not None
    text = dump_core(core)
    for heading in ("turn", "session"):
        (line,) = lines_of(text, heading)
        assert re.search(r" pages=[1-9]\d* swa=[1-9]\d* states=3 ", line)
    assert [line.split()[1] for line in lines_of(text, "pool")] == ["kind", "full", "swa", "mamba", "rows"]
    assert all(re.match(r"owner: (full |swa  |mamba|rows ) +\d+  ", line) for line in lines_of(text, "owner"))


def test_dump_core_when_told_then_the_largest_owners_come_first_with_the_names_of_turns() -> None:
    core = make_busy_core()
    owners = lines_of(dump_core(core), "owner")
    full = [int(line.split()[2]) for line in owners if line.startswith("owner: full")]
    assert full == sorted(full, reverse=True)
    assert sum(full) == 32
    for named in (r"request:3  turn_id='t3'", r"session:1  's'"):
        assert re.search(rf"^owner: full +\d+  {named}$", "\n".join(owners), re.MULTILINE)


def test_dump_core_when_books_conflict_then_laws_units_owners_steps_and_traces_are_told() -> None:
    core = make_busy_core()
    planted = core.plant(Fault.DOUBLE_OWNER)
    text = dump_core(core)
    assert text.startswith("books: DO NOT BALANCE broken_laws=census,")
    assert "finding: conflict census: the free stack lists 1 of pool full, as free, that" in text
    (unit,) = lines_of(text, "unit")
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
    assert lines[-1] == f"unit: {96 - UNITS_MAX} more units are not told of"


def test_dump_core_when_told_then_no_token_id_is_in_it() -> None:
    core = make_busy_core()
    core.plant(Fault.DOUBLE_OWNER)
    numbers = {int(number) for number in re.findall(r"\d+", dump_core(core))}
    assert not numbers & {SAMPLED, *range(100, 115), *range(200, 210)}


def test_dump_core_when_many_turns_and_sessions_live_then_those_in_flight_are_told_and_the_rest_counted() -> None:
    core = Core(replace(CONFIG, running_max=4, waiting_max=200, sessions_max=200))
    for number in range(SESSIONS_MAX + 5):
        core.apply(Open(SessionId(f"s{number}"), streaming=True, trace_id=""), 0.0)
    for number in range(1, TURNS_MAX + 8):
        core.apply(Submit(Rid(number), TurnId(f"t{number}"), pack_ids([1, 2]), max_tokens=4), 0.0)
    assert core.next_plan(0.0) is not None
    text = dump_core(core)
    turns, sessions = lines_of(text, "turn"), lines_of(text, "session")
    assert (len(turns), turns[-1]) == (TURNS_MAX + 1, "turn: 7 more turns are not told of")
    in_flight = ["in_flight=1" in line for line in turns]
    assert any(in_flight)
    assert in_flight == sorted(in_flight, reverse=True)
    assert (len(sessions), sessions[-1]) == (SESSIONS_MAX + 1, "session: 5 more sessions are not told of")


def test_dump_core_when_a_pool_has_many_owners_then_the_rest_is_counted() -> None:
    core = Core(CoreConfig(page_size=4, pool_pages=65, num_rows=33, context_len=64, vocab_size=1000, running_max=32))
    for number in range(1, 21):
        core.apply(Submit(Rid(number), TurnId(f"t{number}"), pack_ids([1, 2]), max_tokens=4), 0.0)
    while core.next_plan(0.0) is not None and core.num_in_flight < core.config.in_flight_max:
        pass
    rows = [line for line in lines_of(dump_core(core), "owner") if " rows " in line]
    assert len(rows) == OWNERS_MAX + 1
    assert rows[-1] == "owner: rows 11 more owners, with 11 units, are not told of"


class Unreadable(Core):
    def snapshot(self) -> Snapshot:
        raise AssertionError("its records contradict each other")


def test_dump_core_when_a_part_can_not_be_read_then_it_is_named_and_the_others_are_told() -> None:
    found = Finding("holders", "all", FindingKind.CONFLICT, PoolKind.FULL, (1,))
    lines = dump_core(Unreadable(CONFIG), BooksDisagree(Report(CheckLevel.FULL, (found,)))).splitlines()
    broken = ("books", "pools", "plans", "turns", "sessions", "owners")
    assert lines == [
        *(f"{part}: CAN NOT BE TOLD: AssertionError: its records contradict each other" for part in broken),
        "finding: conflict holders: all",
        "unit: full 1 belongs to free: never moved",
    ]


class Moving(Core):
    """Its records change while they are read, so many times."""

    times = 0

    def snapshot(self) -> Snapshot:
        if self.times > 0:
            self.times -= 1
            raise RuntimeError("dictionary changed size during iteration")
        return super().snapshot()


def test_dump_core_when_records_change_while_they_are_read_then_they_are_read_again() -> None:
    core = Moving(CONFIG)
    core.times = 2
    text = dump_core(core)
    assert text.startswith("books: balance")
    assert "CAN NOT" not in text
    core.times = 10**6
    assert "books: CAN NOT BE TOLD: RuntimeError: dictionary changed size during iteration" in dump_core(core)


def test_dump_engine_when_a_forward_is_stuck_then_the_model_and_not_the_books_is_named() -> None:
    text = dump_engine(make_busy_core(), STUCK)
    lines = text.splitlines()
    assert heads(lines) == ["books", "why", "pool", "plan", "turn", "session", "owner", "thread"]
    assert lines[1:3] == [
        "why: the forward of step 6 (decode) has not ended for 31.0 s; its limit is 30 s",
        "why: the books balance: the model or its device is at fault, not the books",
    ]
    facts = " ".join(line.removeprefix("why:").strip() for line in lines_of(text, "why")[2:])
    assert facts == (
        "at=1970-01-01T00:00:00Z incident=a1b2c3 kind=forward_stuck state=serving phase=decode age=31.0s limit=30s "
        "beat=812 paused=0.0s taken_by='tenure-watchdog'"
    )
    assert "which tells this" in text


def test_dump_engine_when_the_books_do_not_balance_then_no_model_is_blamed() -> None:
    core = make_busy_core()
    core.plant(Fault.DOUBLE_OWNER)
    text = dump_engine(core, STUCK)
    assert text.startswith("books: DO NOT BALANCE")
    assert "why: THE BOOKS DO NOT BALANCE: the findings below come before all else" in text
    assert "the model or its device" not in text
    assert lines_of(text, "finding")


@pytest.mark.parametrize("kind", IncidentKind)
def test_dump_engine_when_made_for_any_incident_then_a_line_says_what_that_means(kind: IncidentKind) -> None:
    why = lines_of(dump_engine(make_busy_core(), replace(STUCK, kind=kind)), "why")
    assert re.fullmatch(r"why: the books balance: .{20,}", why[1])


def test_dump_engine_when_it_was_asked_for_then_nothing_is_at_fault() -> None:
    why = lines_of(dump_engine(make_busy_core(), ASKED), "why")
    assert why[:2] == ["why: asked for", "why: the books balance"]
    assert why[2].startswith("why: at=1970-01-01T00:00:00Z incident=none kind=asked_for state=serving phase=idle")


class Torn(Core):
    """Is in the middle of a change the first time that it is checked."""

    num_checks = 0

    def check(self, level: CheckLevel) -> Report:
        self.num_checks += 1
        found = Finding("census", "half way", FindingKind.CONFLICT) if self.num_checks == 1 else None
        return Report(level, () if found is None else (found,))


def test_dump_engine_when_the_loop_runs_meanwhile_then_it_is_said_and_a_half_made_change_is_read_again() -> None:
    text = dump_engine(Torn(CONFIG), replace(ASKED, is_torn=True))
    assert text.startswith("books: balance")
    assert "why: read while the loop ran: what is told below may not fit together" in text
    assert dump_engine(Torn(CONFIG), ASKED).startswith("books: DO NOT BALANCE"), "a loop that stands is believed"


def test_dump_engine_when_nothing_is_loaded_yet_then_why_and_stacks_are_told() -> None:
    head = DumpHead("loading has not come further", EngineState.LOADING, Phase.LOADING, IncidentKind.SLOW_START)
    lines = dump_engine(None, head).splitlines()
    assert lines[:2] == [
        "books: there are none yet: the model is not loaded",
        "why: loading has not come further",
    ]
    assert heads(lines) == ["books", "why", "thread"]


async def test_dump_engine_when_taken_by_another_thread_then_the_loops_tasks_are_told_too() -> None:
    loop, told = asyncio.get_running_loop(), list[str]()
    waiter = asyncio.create_task(asyncio.Event().wait(), name="a-waiting-task")
    await asyncio.sleep(0)
    core = make_busy_core()
    thread = threading.Thread(target=lambda: told.append(dump_engine(core, STUCK, loop=loop)), name="from-outside")
    thread.start()
    thread.join()
    waiter.cancel()
    (text,) = told
    assert "thread: from-outside, which tells this" in text
    assert "task: a-waiting-task" in text
    assert heads(text.splitlines())[-2:] == ["thread", "task"]


def test_dump_engine_when_there_is_too_much_then_it_is_cut_and_the_stacks_still_have_their_place() -> None:
    found = tuple(
        Finding("holders", f"{number} " + "x" * 200, FindingKind.CONFLICT, PoolKind.FULL, (1,)) for number in range(999)
    )
    text = dump_engine(make_busy_core(), STUCK, BooksDisagree(Report(CheckLevel.FULL, found)))
    assert len(text) < BOOKS_CHARS_MAX + STACKS_CHARS_MAX + 200
    (cut,) = lines_of(text, "cut")
    assert re.fullmatch(r"cut: \d+ more lines here would make this longer than it may be", cut)
    assert text.index(cut) < text.index("\nthread: ")


def test_dump_engine_when_told_then_lines_fit_a_terminal() -> None:
    text = dump_engine(make_busy_core(), replace(STUCK, message="word " * 60))
    assert max(map(len, text[: text.index("\nthread: ")].splitlines())) <= 120
