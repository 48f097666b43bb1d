"""`python -m tests.soak --minutes 30`: a real server under mixed load, and whether it stays what it was."""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.picture import draw
from tests.soak.report import Plan, describe, to_json, write_page
from tests.soak.run import soak
from tests.soak.verdict import Evidence, Verdict, judge

SLOPE_MINUTES_MIN = 5.0
"""In less the memory still warms up: no verdict is given on its slope."""


def main() -> int:
    """0 when every verdict holds."""
    options = _read_options()
    plan = Plan(options.minutes, options.seed, options.clients, options.steady_allocator)
    log_path = options.log or Path(tempfile.mkdtemp(prefix="tenure-soak-")) / "server.log"
    _say(f"soak of {plan.minutes:g} minutes, seed {plan.seed}, {plan.num_clients} clients")
    evidence = asyncio.run(soak(plan, log_path, _say))
    verdicts = judge(evidence, needs_slope=plan.minutes >= SLOPE_MINUTES_MIN)
    _say("\n" + describe(verdicts))
    _write(options, plan, evidence, verdicts)
    return 0 if all(verdict.holds for verdict in verdicts) else 1


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of load (default: 30)")
    parser.add_argument("--seed", type=int, help="of the load's choices (default: the clock says)")
    parser.add_argument("--clients", type=int, default=6, help="scenarios at once (default: 6)")
    parser.add_argument("--steady-allocator", action="store_true", help="glibc gives back at once: a quieter slope")
    parser.add_argument("--out", type=Path, metavar="FILE", help="all series and counts, as JSON")
    parser.add_argument("--report", type=Path, metavar="FILE", help="a page for people, with an SVG beside it")
    parser.add_argument("--log", type=Path, metavar="FILE", help="what the server says (default: a temporary file)")
    options = parser.parse_args()
    if not options.minutes > 0:
        parser.error(f"--minutes must be above 0, not {options.minutes:g}")
    if options.clients < 1:
        parser.error(f"--clients must be at least 1, not {options.clients}")
    if options.seed is None:
        options.seed = int(time.time())
    return options


def _write(options: argparse.Namespace, plan: Plan, evidence: Evidence, verdicts: list[Verdict]) -> None:
    if options.out is not None:
        options.out.write_text(json.dumps(to_json(plan, evidence, verdicts), indent=1) + "\n", "utf-8")
    if options.report is not None:
        picture = options.report.with_suffix(".svg")
        options.report.write_text(write_page(plan, evidence, verdicts, picture.name), "utf-8")
        subtitle = f"{plan.num_clients} clients, {len(evidence.ledger.turns):,} turns, one forward of 33 fails"
        picture.write_text(draw(evidence.readings, evidence.trend, subtitle), "utf-8")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
