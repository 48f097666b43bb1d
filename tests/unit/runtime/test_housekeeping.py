"""What becomes of what a check finds: leaks are quarantined and reported, anything else halts."""

import logging
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.core.commands import Abort, Open, Submit
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.events import KvMoved
from engine.core.faults import Fault
from engine.core.findings import CheckLevel, Finding, FindingKind, Report
from engine.core.ids import Rid, SessionId, TurnId, pack_ids
from engine.core.owners_check import OWNERS_SLICE_UNITS
from engine.core.ownership import QUARANTINED, Move, PoolKind
from engine.core.provenance import UnitHistory
from engine.core.sliced_check import SLICE_UNITS
from engine.core.snapshot import PoolBooks
from engine.runtime.config import RuntimeConfig
from engine.runtime.housekeeping import WHOLE_CHECK_UNITS, BooksDisagree, Housekeeping, OnLeak
from tests.kit.busy_core import CONFIG, make_busy_core, run_step, settle

QUIET_S = RuntimeConfig().expire_interval_s


class HandClock:
    now_s = 0.0

    def now(self) -> float:
        return self.now_s


def make_housekeeping(
    core: Core, full_check_steps: int = 1000, on_leak: OnLeak | None = None, clock: HandClock | None = None
) -> Housekeeping:
    config = RuntimeConfig(full_check_steps=full_check_steps)
    return Housekeeping(core, HandClock() if clock is None else clock, config, on_leak)


def rest(housekeeping: Housekeeping) -> int:
    """Idle until there is nothing more to do. In how many slices."""
    slices = 1
    while housekeeping.when_idle():
        slices += 1
    return slices


def take_steps(housekeeping: Housekeeping, steps: int) -> None:
    for _ in range(steps):
        housekeeping.after_step()


def full_pool(core: Core) -> PoolBooks:
    return core.snapshot().pools[0]


@pytest.mark.parametrize("full_check_steps", [1, 1000])
def test_after_step_when_a_page_leaked_then_it_is_quarantined_and_told_and_serving_goes_on(
    full_check_steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    core = make_busy_core()
    total = full_pool(core).total
    planted = core.plant(Fault.LEAK)
    housekeeping = make_housekeeping(core, full_check_steps)
    housekeeping.after_step()
    books = full_pool(core)
    assert (books.quarantined, books.total, books.is_balanced) == (1, total - 1, True)
    (moved,) = (event for event in settle(core) if isinstance(event, KvMoved))
    assert (moved.move, moved.pages) == (Move.QUARANTINE, (planted.unit,))
    (line,) = (record.getMessage() for record in caplog.records if record.levelno == logging.ERROR)
    pattern = (
        rf"event=kv_leak pool=full units={planted.unit} num_units=1 owner=free "
        r"last_moves=(release|evict):\S+>free@\d+,\S+ step=\d+ trace_id=trace-\d"
    )
    assert re.fullmatch(pattern, line), line
    rest(housekeeping)
    assert core.check(CheckLevel.FULL).is_clean


def test_when_idle_when_a_page_leaked_then_it_is_quarantined_once(caplog: pytest.LogCaptureFixture) -> None:
    core = make_busy_core()
    core.plant(Fault.LEAK)
    housekeeping = make_housekeeping(core)
    rest(housekeeping)
    housekeeping.after_command()
    rest(housekeeping)
    assert full_pool(core).quarantined == 1
    assert caplog.text.count("event=kv_leak") == 1


@pytest.mark.parametrize("full_check_steps", [1, 1000])
def test_after_step_when_a_page_has_two_owners_then_it_halts_and_nothing_is_quarantined(full_check_steps: int) -> None:
    core = make_busy_core()
    planted = core.plant(Fault.DOUBLE_OWNER)
    with pytest.raises(BooksDisagree, match=f"full {planted.unit} belongs to") as halted:
        make_housekeeping(core, full_check_steps).after_step()
    assert halted.value.report.level is CheckLevel.FULL
    assert full_pool(core).quarantined == 0


def test_after_step_when_there_is_a_leak_and_a_conflict_then_it_halts_and_nothing_is_quarantined() -> None:
    core = make_busy_core()
    core.plant(Fault.LEAK)
    core.plant(Fault.DOUBLE_OWNER)
    with pytest.raises(BooksDisagree):
        make_housekeeping(core, full_check_steps=1).after_step()
    assert full_pool(core).quarantined == 0


class LyingCore(Core):
    """Finds, at one level, what is not there."""

    lies: Sequence[Finding] = ()
    level = CheckLevel.BUSY

    def check(self, level: CheckLevel) -> Report:
        report = super().check(level)
        return Report(level, tuple(self.lies), report.num_moves) if level is self.level else report


def test_after_step_when_only_the_counters_disagree_then_it_halts_all_the_same() -> None:
    core = LyingCore(CONFIG)
    core.lies = (Finding("equation", "1 + 1 is not 3"),)
    with pytest.raises(BooksDisagree, match="1 \\+ 1 is not 3"):
        make_housekeeping(core).after_step()


def test_after_step_when_a_leak_is_still_there_after_the_quarantine_then_it_halts() -> None:
    core = LyingCore(CONFIG)
    core.level = CheckLevel.FULL
    core.lies = (Finding("census", "a leak that stays", FindingKind.LEAK, PoolKind.FULL, (2,)),)
    with pytest.raises(BooksDisagree, match="a leak that stays"):
        make_housekeeping(core, full_check_steps=1).after_step()


def make_large_core(kind: type[Core] = Core) -> Core:
    """Too large to be checked whole between two steps."""
    return kind(replace(CONFIG, pool_pages=WHOLE_CHECK_UNITS + 1))


def submit(core: Core, rid: int) -> None:
    core.apply(Submit(Rid(rid), TurnId(f"t{rid}"), pack_ids(range(rid, rid + 10)), max_tokens=20), 0.0)


class CheckCounts(Core):
    """Which checks were asked for, in order."""

    def __init__(self, config: CoreConfig) -> None:
        super().__init__(config)
        self.asked: list[str] = []

    def check(self, level: CheckLevel) -> Report:
        self.asked.append(str(level))
        return super().check(level)

    def check_slice(self, units: int = SLICE_UNITS) -> Report | None:
        self.asked.append("slice")
        return super().check_slice(units)

    def check_owners_slice(self, units: int = OWNERS_SLICE_UNITS) -> Report:
        self.asked.append("owners")
        return super().check_owners_slice(units)


def test_when_idle_when_the_pool_is_large_then_it_is_proven_in_slices_and_once_only() -> None:
    core = make_large_core(CheckCounts)
    assert isinstance(core, CheckCounts)
    clock = HandClock()
    housekeeping = make_housekeeping(core, clock=clock)
    clock.now_s = QUIET_S
    slices = rest(housekeeping)
    assert slices > WHOLE_CHECK_UNITS // SLICE_UNITS
    assert core.asked == ["slice"] * slices
    assert not housekeeping.when_idle()
    assert len(core.asked) == slices


def test_when_idle_when_a_command_comes_between_slices_then_it_begins_anew() -> None:
    core, clock = make_large_core(), HandClock()
    housekeeping = make_housekeeping(core, clock=clock)
    clock.now_s = QUIET_S
    slices = rest(housekeeping)
    housekeeping.after_command()
    for _ in range(slices - 1):
        assert housekeeping.when_idle()
    submit(core, 1)
    housekeeping.after_command()
    assert not housekeeping.when_idle()
    clock.now_s += QUIET_S
    assert rest(housekeeping) >= slices


def open_session(core: Core, housekeeping: Housekeeping, number: int) -> None:
    core.apply(Open(SessionId(f"s{number}"), streaming=True, idle_timeout_s=1e6), 0.0)
    housekeeping.after_command()


def test_when_idle_when_commands_trickle_in_and_the_pool_is_large_then_it_waits_until_they_end() -> None:
    core, clock = make_large_core(CheckCounts), HandClock()
    assert isinstance(core, CheckCounts)
    housekeeping = make_housekeeping(core, clock=clock)
    for number in range(20):
        open_session(core, housekeeping, number)
        assert not housekeeping.when_idle()
        clock.now_s += 0.9 * QUIET_S
        assert not housekeeping.when_idle()
    assert core.asked == []
    clock.now_s += 0.11 * QUIET_S
    slices = rest(housekeeping)
    assert core.asked == ["slice"] * slices
    assert slices > WHOLE_CHECK_UNITS // SLICE_UNITS


def test_when_idle_when_commands_trickle_in_and_the_pool_is_small_then_it_is_proven_after_each() -> None:
    core = CheckCounts(CONFIG)
    housekeeping = make_housekeeping(core)
    for number in range(3):
        open_session(core, housekeeping, number)
        assert rest(housekeeping) == 1
    assert core.asked == ["slice"] * 3


class EndlessCore(CheckCounts):
    """Its slices do not come to an end."""

    def check_slice(self, units: int = SLICE_UNITS) -> Report | None:
        super().check_slice(units)
        return None


def test_when_idle_when_a_small_pool_takes_more_slices_than_it_should_then_it_waits_too() -> None:
    core = EndlessCore(CONFIG)
    housekeeping = make_housekeeping(core, full_check_steps=1)
    open_session(core, housekeeping, 0)
    slices = rest(housekeeping) - 1
    assert core.asked == ["slice"] * slices
    assert slices == WHOLE_CHECK_UNITS // SLICE_UNITS + 1
    housekeeping.after_step()
    assert core.asked[slices:] == ["full"]


def test_expire_when_it_closed_a_session_then_the_next_idle_moment_proves_the_books_again() -> None:
    core = CheckCounts(CONFIG)
    core.apply(Open(SessionId("s"), streaming=True, idle_timeout_s=5.0), 0.0)
    clock = HandClock()
    housekeeping = Housekeeping(core, clock, RuntimeConfig())
    rest(housekeeping)
    core.asked.clear()
    clock.now_s = 4.0
    housekeeping.expire()
    assert not housekeeping.when_idle()
    assert core.asked == []
    clock.now_s = 5.0
    housekeeping.expire()
    rest(housekeeping)
    assert core.asked == ["slice"]


def test_after_step_when_the_pool_is_small_then_it_is_checked_whole_every_so_many_steps_and_else_counted() -> None:
    core = CheckCounts(CONFIG)
    housekeeping = make_housekeeping(core, full_check_steps=3)
    for _ in range(4):
        housekeeping.after_step()
    assert core.asked == ["busy", "busy", "full", "busy"]


def test_after_step_when_the_pool_is_large_then_some_owners_are_checked_at_each_and_all_never() -> None:
    core = make_large_core(CheckCounts)
    assert isinstance(core, CheckCounts)
    housekeeping = make_housekeeping(core, full_check_steps=1)
    for _ in range(3):
        housekeeping.after_step()
    assert core.asked == ["owners", "busy"] * 3


class HeavyCore(CheckCounts):
    """Says that a full check takes more work than the size of its pools tells."""

    def check(self, level: CheckLevel) -> Report:
        return replace(super().check(level), units=WHOLE_CHECK_UNITS + 1)


def test_after_step_when_a_whole_check_took_too_long_then_it_goes_on_by_owners_until_an_idle_one_was_shorter() -> None:
    core, clock = HeavyCore(CONFIG), HandClock()
    housekeeping = make_housekeeping(core, full_check_steps=1, clock=clock)
    housekeeping.after_step()
    housekeeping.after_step()
    assert core.asked == ["full", "owners", "busy"]
    clock.now_s = QUIET_S
    rest(housekeeping)
    core.asked.clear()
    housekeeping.after_step()
    assert core.asked == ["full"]


def test_after_step_when_a_leak_and_a_double_owner_cancel_out_in_a_large_pool_then_it_halts_within_a_round() -> None:
    core = make_large_core()
    for rid in (1, 2):
        submit(core, rid)
        run_step(core)
    core.apply(Abort(Rid(1)), 0.0)
    core.plant(Fault.LEAK)
    core.plant(Fault.DOUBLE_OWNER)
    assert core.check(CheckLevel.BUSY).is_clean
    housekeeping = make_housekeeping(core)
    with pytest.raises(BooksDisagree, match="the free stack lists 1 of pool full"):
        take_steps(housekeeping, 2 * WHOLE_CHECK_UNITS // OWNERS_SLICE_UNITS)


class FindingCore(CheckCounts):
    """Its slices find something each time."""

    def check_slice(self, units: int = SLICE_UNITS) -> Report | None:
        report = super().check_slice(units)
        return report and replace(report, findings=(Finding("tree", "planted in a slice"),))

    def check_owners_slice(self, units: int = OWNERS_SLICE_UNITS) -> Report:
        return replace(super().check_owners_slice(units), findings=(Finding("tree", "planted in a slice"),))


def test_after_step_when_the_whole_check_does_not_find_what_a_slice_found_then_it_warns_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    core = make_large_core(FindingCore)
    assert isinstance(core, FindingCore)
    make_housekeeping(core).after_step()
    assert core.asked == ["owners", "full", "busy"]
    (line,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert line == "event=check_unconfirmed findings=1 law=tree message=planted in a slice"


def test_when_idle_when_the_whole_check_does_not_find_what_the_slices_found_then_it_warns_and_is_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    core = FindingCore(CONFIG)
    housekeeping = make_housekeeping(core)
    rest(housekeeping)
    assert core.asked == ["slice", "full"]
    assert "event=check_unconfirmed" in caplog.text
    assert not housekeeping.when_idle()


def test_when_idle_when_slices_found_a_conflict_that_the_whole_check_finds_too_then_it_halts() -> None:
    core = make_busy_core()
    core.plant(Fault.DOUBLE_OWNER)
    with pytest.raises(BooksDisagree) as halted:
        rest(make_housekeeping(core))
    assert halted.value.report == core.check(CheckLevel.FULL)


@pytest.mark.parametrize("is_idle", [True, False])
def test_housekeeping_when_a_leak_was_quarantined_then_it_calls_once_with_the_leak_and_its_history(
    is_idle: bool,
) -> None:
    core, told = make_busy_core(), list[tuple[Finding, UnitHistory]]()
    planted = core.plant(Fault.LEAK)
    housekeeping = make_housekeeping(core, on_leak=lambda leak, history: told.append((leak, history)))
    for _ in range(2):
        if is_idle:
            rest(housekeeping)
        else:
            housekeeping.after_step()
    ((leak, history),) = told
    assert (leak.kind, leak.pool, leak.units) == (FindingKind.LEAK, PoolKind.FULL, (planted.unit,))
    assert history == core.explain(PoolKind.FULL, planted.unit)
    assert history.owner == QUARANTINED


@pytest.mark.parametrize("kind", ["pool_pages", "swa_pages", "state_slots"])
def test_after_step_when_any_pool_is_large_then_some_owners_are_checked_and_not_all(kind: str) -> None:
    config = replace(CONFIG, window=4, swa_pages=65, state_slots=20)
    for size, asked in ((65, ["full"]), (WHOLE_CHECK_UNITS, ["owners", "busy"])):
        core = CheckCounts(replace(config, **{kind: size}))  # type: ignore[arg-type]  # a size by its name
        make_housekeeping(core, full_check_steps=1).after_step()
        assert core.asked == asked
