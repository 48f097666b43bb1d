"""`tenure check`: has a running server prove its books."""

from services.cli.run import run_work
from services.client import CheckReport, connect


def run_check(target: str) -> int:
    return run_work(target, _check(target))


async def _check(target: str) -> int:
    async with connect(target) as client:
        report = await client.check()
    print(format_report(report))
    return 0 if report.is_clean else 1


def format_report(report: CheckReport) -> str:
    """A line that says all is well, or one for each law that does not hold."""
    if report.is_clean:
        return f"every page has exactly one owner ({report.checks_run} checks passed since the server started)"
    lines = [f"{finding.law}: {finding.message}" for finding in report.findings]
    return "\n".join(["THE BOOKS DO NOT BALANCE; please report this:", *lines])
