"""What becomes of what a check finds: leaks are quarantined and reported, anything else halts."""

import logging
import re
from collections.abc import Sequence

import pytest

from engine.core.core import Core
from engine.core.events import KvMoved
from engine.core.faults import Fault
from engine.core.findings import CheckLevel, Finding, FindingKind, Report
from engine.core.ownership import Move, PoolKind
from engine.core.snapshot import PoolBooks
from engine.runtime.config import RuntimeConfig
from engine.runtime.housekeeping import BooksDisagree, Housekeeping
from tests.kit.busy_core import CONFIG, make_busy_core, settle


class StillClock:
    def now(self) -> float:
        return 0.0


def make_housekeeping(core: Core, full_check_steps: int = 1000) -> Housekeeping:
    return Housekeeping(core, StillClock(), RuntimeConfig(full_check_steps=full_check_steps))


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
    housekeeping.when_idle()
    assert core.check(CheckLevel.FULL).is_clean


def test_when_idle_when_a_page_leaked_then_it_is_quarantined_once(caplog: pytest.LogCaptureFixture) -> None:
    core = make_busy_core()
    core.plant(Fault.LEAK)
    housekeeping = make_housekeeping(core)
    housekeeping.when_idle()
    housekeeping.after_command()
    housekeeping.when_idle()
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
