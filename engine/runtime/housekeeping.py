"""What the loop does beside running steps: proves the books, and lets idle sessions expire."""

import logging
from collections.abc import Callable

from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.errors import InvariantViolation
from engine.core.findings import CheckLevel, Finding, Report
from engine.core.provenance import UnitHistory
from engine.core.sliced_check import SLICE_UNITS
from engine.runtime.clock import Clock
from engine.runtime.config import RuntimeConfig

_log = logging.getLogger(__name__)

_NAMED_MAX = 16
"""Units of a leak that its log line names; the stream of KV events has them all."""

WHOLE_CHECK_UNITS = 8 * SLICE_UNITS
"""A full check of more work than this would hold a busy loop for longer than 5 ms, so it is not made between steps."""

OnLeak = Callable[[Finding, UnitHistory], None]
"""Called once a leak that was quarantined, with the history of its first unit."""


class BooksDisagree(InvariantViolation):
    """A check found what must not be. The report says which law, and where."""

    def __init__(self, report: Report) -> None:
        laws = "; ".join(f"{finding.law}: {finding.message}" for finding in report.findings)
        super().__init__(f"{len(report.findings)} findings: {laws}")
        self.report = report


class Housekeeping:
    """Proves the books after each step and when idle. A leak is quarantined and reported, and serving goes on.

    Between steps small pools are checked whole, large ones some owners at a time; when idle, all is checked in slices:
    that of large pools begins once nothing has changed for `expire_interval_s`, since each change makes it begin anew.
    What a slice finds counts when a whole check finds something too, with nothing in between.

    Raises BooksDisagree on anything else: a server that can not trust its books must not serve from them.
    """

    def __init__(self, core: Core, clock: Clock, config: RuntimeConfig, on_leak: OnLeak | None = None) -> None:
        self._core = core
        self._clock = clock
        self._config = config
        self._on_leak = on_leak
        self._steps = 0
        self._is_proven = False
        self._full_units = _num_units(core.config)  # at least, until a full check says it
        self._expired_at_s = clock.now()
        self._slices = 0  # since all was proven last
        self._num_changes = core.num_changes
        self._changed_at_s = clock.now()

    def after_command(self) -> None:
        """The core was changed outside a step: the next idle moment has something to prove."""
        self._is_proven = False

    def after_step(self) -> None:
        """Counters after every step, and some owners of large pools.

        All of small pools after every `full_check_steps`th step, and of any where counters are wrong.
        """
        self._steps += 1
        self._is_proven = False
        if self._full_units > WHOLE_CHECK_UNITS:
            self._confirm(self._core.check_owners_slice())
        elif self._steps % self._config.full_check_steps == 0:
            self._prove()
            return
        report = self._core.check(CheckLevel.BUSY)
        if not report.is_clean:
            self._prove()
            self._require_clean(CheckLevel.BUSY)

    def when_idle(self) -> bool:
        """One slice of all pools, rows, the tree, sessions and slots: all, once for each time that something happened.

        True when there is more to do: let others have their turn, then come back. False: nothing until the next event,
        or for `expire_interval_s`: a large pool may wait for a quiet moment.
        """
        if self._is_proven:
            return False
        units = max(self._full_units, self._slices * SLICE_UNITS)  # it may be larger than thought, or begin anew often
        if units > WHOLE_CHECK_UNITS and not self._is_quiet():
            return False
        report = self._core.check_slice()
        self._slices += 1
        if report is None:
            return True
        self._full_units = report.units
        self._slices = 0
        self._confirm(report)
        self._is_proven = True
        return False

    def _is_quiet(self) -> bool:
        """Whether nothing has changed for a while."""
        now_s = self._clock.now()
        if self._core.num_changes != self._num_changes:
            self._num_changes = self._core.num_changes
            self._changed_at_s = now_s
        return now_s - self._changed_at_s >= self._config.expire_interval_s

    def expire(self) -> None:
        """Closes sessions that were idle too long; looks at most once an interval."""
        now_s = self._clock.now()
        if now_s - self._expired_at_s < self._config.expire_interval_s:
            return
        self._expired_at_s = now_s
        before = self._core.num_changes
        self._core.expire(now_s)
        if self._core.num_changes != before:
            self._is_proven = False

    def _confirm(self, found: Report) -> None:
        """Acts on what slices found, if a whole check finds something now."""
        if found.is_clean or self._prove():
            return
        first = found.findings[0]
        _log.warning(
            "event=check_unconfirmed findings=%d law=%s message=%s", len(found.findings), first.law, first.message
        )

    def _prove(self) -> bool:
        """Checks everything at once and acts on it. Whether anything was wrong."""
        report = self._core.check(CheckLevel.FULL)
        self._full_units = report.units
        if report.is_clean:
            return False
        if report.conflicts:
            raise BooksDisagree(report)
        histories = {(history.pool, history.unit): history for history in self._core.quarantine(report)}
        for leak in report.leaks:
            assert leak.pool is not None, f"a leak of nothing: {leak.message}"
            quarantined = [histories[leak.pool, unit] for unit in leak.units]
            _log_leak(leak, quarantined)
            if self._on_leak is not None:
                self._on_leak(leak, quarantined[0])
        self._require_clean(CheckLevel.FULL)
        return True

    def _require_clean(self, level: CheckLevel) -> None:
        report = self._core.check(level)
        if not report.is_clean:
            raise BooksDisagree(report)


def _num_units(config: CoreConfig) -> int:
    """Of all pools."""
    return config.pool_pages + config.swa_pages + config.state_slots + config.num_rows


def _log_leak(leak: Finding, histories: list[UnitHistory]) -> None:
    """One line. Units of one leak had one owner; the moves are those of the first."""
    last = histories[0].moves
    before = last[1:]  # the last one is the quarantine
    _log.error(
        "event=kv_leak pool=%s units=%s num_units=%d owner=%s last_moves=%s step=%d trace_id=%s",
        leak.pool,
        ",".join(str(unit) for unit in leak.units[:_NAMED_MAX]),
        len(leak.units),
        last[0].source,
        ",".join(f"{move.move}:{move.source}>{move.target}@{move.step}" for move in before) or "none",
        before[0].step if before else last[0].step,
        next((move.trace_id for move in before if move.trace_id), "none"),
    )
