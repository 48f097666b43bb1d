"""What the loop does beside running steps: proves the books, and lets idle sessions expire."""

import logging

from engine.core.core import Core
from engine.core.errors import InvariantViolation
from engine.core.findings import CheckLevel, Finding, Report
from engine.core.provenance import UnitHistory
from engine.runtime.clock import Clock
from engine.runtime.config import RuntimeConfig

_log = logging.getLogger(__name__)

_NAMED_MAX = 16
"""Units of a leak that its log line names; the stream of KV events has them all."""


class BooksDisagree(InvariantViolation):
    """A check found what must not be. The report says which law, and where."""

    def __init__(self, report: Report) -> None:
        laws = "; ".join(f"{finding.law}: {finding.message}" for finding in report.findings)
        super().__init__(f"{len(report.findings)} findings: {laws}")
        self.report = report


class Housekeeping:
    """Proves the books after each step and when idle. A leak is quarantined and reported, and serving goes on.

    Raises BooksDisagree on anything else: a server that can not trust its books must not serve from them.
    """

    def __init__(self, core: Core, clock: Clock, config: RuntimeConfig) -> None:
        self._core = core
        self._clock = clock
        self._config = config
        self._steps = 0
        self._is_proven = False
        self._expired_at_s = clock.now()

    def after_command(self) -> None:
        """The core was changed outside a step: the next idle moment has something to prove."""
        self._is_proven = False

    def after_step(self) -> None:
        """Counters after every step, everything after every Nth and where counters are wrong."""
        self._steps += 1
        self._is_proven = False
        if self._steps % self._config.full_check_steps == 0:
            self._prove()
            return
        report = self._core.check(CheckLevel.BUSY)
        if not report.is_clean:
            self._prove()
            self._require_clean(CheckLevel.BUSY)

    def when_idle(self) -> None:
        """Everything, once for each time that something happened."""
        if not self._is_proven:
            self._prove()
            self._is_proven = True

    def expire(self) -> None:
        """Closes sessions that were idle too long; looks at most once an interval."""
        now_s = self._clock.now()
        if now_s - self._expired_at_s >= self._config.expire_interval_s:
            self._expired_at_s = now_s
            self._core.expire(now_s)

    def _prove(self) -> None:
        report = self._core.check(CheckLevel.FULL)
        if report.is_clean:
            return
        if report.conflicts:
            raise BooksDisagree(report)
        histories = {(history.pool, history.unit): history for history in self._core.quarantine(report)}
        for leak in report.leaks:
            assert leak.pool is not None, f"a leak of nothing: {leak.message}"
            _log_leak(leak, [histories[leak.pool, unit] for unit in leak.units])
        self._require_clean(CheckLevel.FULL)

    def _require_clean(self, level: CheckLevel) -> None:
        report = self._core.check(level)
        if not report.is_clean:
            raise BooksDisagree(report)


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
