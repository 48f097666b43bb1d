"""`tenure check`: has a running server prove its books."""

from services.cli.run import run_work
from services.client import CheckReport, Finding, connect


def run_check(target: str) -> int:
    return run_work(target, _check(target))


async def _check(target: str) -> int:
    async with connect(target) as client:
        report = await client.check()
        stats = await client.pools()
    has_states = any(pool.kind == "mamba" for pool in stats.pools)
    print(format_report(report, sum(pool.quarantined for pool in stats.pools), has_states=has_states))
    return 0 if report.is_clean else 1


def format_report(report: CheckReport, num_quarantined: int = 0, *, has_states: bool = False) -> str:
    """A line that says all is well, or one for each law that does not hold; then what is out of circulation."""
    if report.is_clean:
        units = "page and state" if has_states else "page"
        pages = f"every {units} in use" if num_quarantined else f"every {units}"
        lines = [f"{pages} has exactly one owner ({report.checks_run} checks since the server started)"]
    else:
        lines = ["THE BOOKS DO NOT BALANCE; please report this:", *map(_describe, report.findings)]
    if num_quarantined:
        lines.append(
            f"OUT OF CIRCULATION: {num_quarantined}, which nobody owned any more; please report it. `tenure incidents` "
            "says which, and `tenure explain` tells the history of each"
        )
    return "\n".join(lines)


def _describe(finding: Finding) -> str:
    units = ", ".join(map(str, finding.units))
    where = f" [{finding.pool} {units}]" if units else ""
    return f"{finding.kind}: {finding.law}: {finding.message}{where}"
