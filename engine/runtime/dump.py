"""What is left to read when the engine halts: the books, the batch, and where each unit concerned came from, as text.

A pure function of the core. No token id is ever in it.
"""

from collections.abc import Callable

from engine.core.core import Core
from engine.core.errors import CoreError
from engine.core.findings import CheckLevel, Finding, Report
from engine.core.ownership import PoolKind
from engine.core.snapshot import PlanState, PoolBooks, SessionState, Snapshot, TurnState
from engine.runtime.housekeeping import BooksDisagree

UNITS_MAX = 64
"""Units of one finding whose history is told."""

_BROKEN = (CoreError, AssertionError, LookupError, ValueError, TypeError, AttributeError)
"""What reading a core may raise whose records contradict each other."""


def dump_core(core: Core, failure: Exception | None = None) -> str:
    """Lines of text, the first of which says whether the books balance.

    Checks the books once more, for the halt may have another cause than they, or may have been found by their counters.
    A part that is too broken to be told of is named in its place.
    """
    return "\n".join(line for part in (_books, _batch, _histories) for line in _try(part, core, failure))


def _try(part: Callable[[Core, Exception | None], list[str]], core: Core, failure: Exception | None) -> list[str]:
    try:
        return part(core, failure)
    except _BROKEN as error:
        return [f"{part.__name__.lstrip('_')}: CAN NOT BE TOLD: {type(error).__name__}: {error}"]


def _books(core: Core, failure: Exception | None) -> list[str]:
    report, snapshot = core.check(CheckLevel.FULL), core.snapshot()
    told = (f"finding: {finding.kind} {finding.law}: {finding.message}" for finding in _findings(report, failure))
    return [_verdict(report, snapshot), *told, *map(_pool, snapshot.pools)]


def _batch(core: Core, failure: Exception | None) -> list[str]:
    snapshot = core.snapshot()
    return [*map(_plan, snapshot.plans), *map(_turn, snapshot.turns), *map(_session, snapshot.sessions)]


def _findings(report: Report, failure: Exception | None) -> tuple[Finding, ...]:
    """Those of the halt, too, where they are not the same."""
    told = failure.report.findings if isinstance(failure, BooksDisagree) else ()
    return (*report.findings, *(finding for finding in told if finding not in report.findings))


def _histories(core: Core, failure: Exception | None) -> list[str]:
    """Each unit that a finding names, once."""
    lines: dict[tuple[PoolKind, int], str] = {}
    num_left_out = 0
    for finding in _findings(core.check(CheckLevel.FULL), failure):
        num_left_out += max(0, len(finding.units) - UNITS_MAX)
        for unit in finding.units[:UNITS_MAX]:
            if finding.pool is not None and 0 <= unit < len(core.owners(finding.pool)):
                lines[finding.pool, unit] = f"unit: {core.explain(finding.pool, unit)}"
    return [*lines.values(), *([f"unit: {num_left_out} more are not told of"] if num_left_out else [])]


def _verdict(report: Report, snapshot: Snapshot) -> str:
    balanced = report.is_clean and all(books.is_balanced for books in snapshot.pools)
    laws = ",".join(sorted({finding.law for finding in report.findings})) or "none"
    return (
        f"books: {'balance' if balanced else 'DO NOT BALANCE'} broken_laws={laws} leaks={len(report.leaks)} "
        f"conflicts={len(report.conflicts)} steps={snapshot.steps} in_flight={snapshot.in_flight} "
        f"turns={len(snapshot.turns)} sessions={len(snapshot.sessions)}"
    )


def _pool(books: PoolBooks) -> str:
    return (
        f"pool: {books.pool} total={books.total} available={books.available} evictable={books.evictable} "
        f"protected={books.protected} session_held={books.session_held} uncached={books.uncached} "
        f"draining={books.draining} quarantined={books.quarantined} balanced={books.is_balanced}"
    )


def _plan(plan: PlanState) -> str:
    rows = " ".join(
        f"rid={row.rid}/{row.epoch}:row={row.req_pool_idx}:start={row.start_len}:len={row.query_len}"
        f":samples={row.num_samples}"
        for row in plan.rows
    )
    return f"plan in flight: step={plan.step} {rows}"


def _turn(turn: TurnState) -> str:
    return (
        f"turn: rid={turn.rid} turn_id={turn.turn_id!r} session={turn.session_id!r} phase={turn.phase} "
        f"context_len={turn.context_len} output_len={turn.output_len} kv_committed_len={turn.kv_committed_len} "
        f"pages={turn.pages} in_flight={turn.in_flight}"
    )


def _session(session: SessionState) -> str:
    return (
        f"session: {session.session_id!r} streaming={session.streaming} history_len={session.history_len} "
        f"live_turns={session.live_turns} slot={session.slot} kv_committed_len={session.kv_committed_len} "
        f"pages={session.pages}"
    )
