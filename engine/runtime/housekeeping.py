"""What the loop does beside running steps: proves the books, and lets idle sessions expire."""

from engine.core.core import Core
from engine.core.errors import InvariantViolation
from engine.core.invariants import CheckLevel, Report
from engine.runtime.clock import Clock
from engine.runtime.config import RuntimeConfig


class BooksDisagree(InvariantViolation):
    """A check found what must not be. The report says which law, and where."""

    def __init__(self, report: Report) -> None:
        laws = "; ".join(f"{finding.law}: {finding.message}" for finding in report.findings)
        super().__init__(f"{len(report.findings)} findings: {laws}")
        self.report = report


class Housekeeping:
    """Raises BooksDisagree on any finding: a server that can not trust its books must not serve from them."""

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
        """Counters after every step, everything after every Nth."""
        self._steps += 1
        self._is_proven = False
        is_full_due = self._steps % self._config.full_check_steps == 0
        self._check(CheckLevel.FULL if is_full_due else CheckLevel.BUSY)

    def when_idle(self) -> None:
        """Everything, once for each time that something happened."""
        if not self._is_proven:
            self._check(CheckLevel.FULL)
            self._is_proven = True

    def expire(self) -> None:
        """Closes sessions that were idle too long; looks at most once an interval."""
        now_s = self._clock.now()
        if now_s - self._expired_at_s >= self._config.expire_interval_s:
            self._expired_at_s = now_s
            self._core.expire(now_s)

    def _check(self, level: CheckLevel) -> None:
        report = self._core.check(level)
        if not report.is_clean:
            raise BooksDisagree(report)
