"""What a check finds, as data."""

from dataclasses import dataclass
from enum import StrEnum

from engine.core.ownership import PoolKind


class CheckLevel(StrEnum):
    BUSY = "busy"
    """The equation of every pool, from counters: O(1). It says that something is wrong, not what."""
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

    @property
    def is_clean(self) -> bool:
        return not self.findings

    @property
    def leaks(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.kind is FindingKind.LEAK)

    @property
    def conflicts(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.kind is FindingKind.CONFLICT)
