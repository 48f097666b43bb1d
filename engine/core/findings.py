"""What a check finds, as data."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from engine.core.ownership import PoolKind


class CheckLevel(StrEnum):
    BUSY = "busy"
    """What each step can afford: the equation of every pool from counters, O(1), or one slice of the owners.

    It says that something is wrong. What that means, only the full check can tell.
    """
    FULL = "full"
    """Three tellings page by page, the tree, slots, sessions, rows: O(pages)."""


class FindingKind(StrEnum):
    LEAK = "leak"
    """Units that the ledger knows an owner of and nobody lists: they can be quarantined, and serving goes on."""
    CONFLICT = "conflict"
    """Two claimants, a claim that the ledger contradicts, tellings that disagree: the books can't be trusted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One law that does not hold. `law`: equation, census, holders, tree, holding, slot, reclaimable or session."""

    law: str
    message: str
    kind: FindingKind = FindingKind.CONFLICT
    pool: PoolKind | None = None
    """None where no units are concerned, or none can be named."""
    units: tuple[int, ...] = ()
    """Pages, or rows; for a leak all of them."""


@dataclass(frozen=True, slots=True)
class Report:
    level: CheckLevel
    findings: tuple[Finding, ...]
    num_moves: int = 0
    """The ledger's count of moves when it was made: the report holds until that changes."""
    units: int = 0
    """Work that it took, in units of about one page's; 0 for the counters alone."""

    @property
    def is_clean(self) -> bool:
        return not self.findings

    @property
    def leaks(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.kind is FindingKind.LEAK)

    @property
    def conflicts(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.kind is FindingKind.CONFLICT)


Work = Finding | int
"""What a check in small pieces yields: what it found, or that it did so many units of work and may be stopped there."""

PIECE_UNITS = 1024
"""Most work that such a check does in one piece, twice that at worst. A unit is about what one page costs."""


def findings_of(work: Iterable[Work]) -> tuple[Finding, ...]:
    """Does all of the work at once."""
    return tuple(done for done in work if isinstance(done, Finding))


class Tally:
    """What a check found and did so far."""

    def __init__(self) -> None:
        self._findings: list[Finding] = []
        self.units = 0

    def run(self, work: Iterator[Work], units: int | None = None) -> bool:
        """Goes on for `units` of work, to the end without. Whether that is the end."""
        limit = None if units is None else self.units + units
        for done in work:
            if isinstance(done, Finding):
                self._findings.append(done)
                continue
            self.units += done
            if limit is not None and self.units >= limit:
                return False
        return True

    def report(self, level: CheckLevel, num_moves: int) -> Report:
        return Report(level, tuple(self._findings), num_moves, self.units)
