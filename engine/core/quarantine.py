"""What becomes of leaked units: they get an owner of their own, and nobody is given them any more."""

from engine.core.errors import require
from engine.core.findings import FindingKind, Report
from engine.core.pools import Pools
from engine.core.provenance import UnitHistory


def quarantine_leaks(pools: Pools, report: Report) -> tuple[UnitHistory, ...]:
    """Moves every unit that the report calls leaked to QUARANTINED. Releases, frees and unlocks nothing.

    Returns the units' histories, the quarantine included. Raises InvariantViolation, moving nothing, when units moved
    since the report was made: who lists them now is not known.
    """
    moved = pools.ledger.num_moves - report.num_moves
    require(moved == 0, f"{moved} moves since the check that is to be acted on")
    quarantined: list[UnitHistory] = []
    for finding in report.findings:
        if finding.kind is FindingKind.LEAK and finding.pool is not None:
            pools.quarantine(finding.pool, finding.units)
            quarantined.extend(pools.ledger.explain(finding.pool, unit) for unit in finding.units)
    return tuple(quarantined)
