"""The books and the batch of a core as lines for people, a heading word at each line's start, without any token id."""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from operator import attrgetter

from engine.core.core import Core
from engine.core.findings import CheckLevel, Finding, Report
from engine.core.ownership import Owner, OwnerKind, PoolKind
from engine.core.snapshot import PlanRowState, PlanState, PoolBooks, SessionState, Snapshot, TurnState
from engine.runtime.housekeeping import BooksDisagree

UNITS_MAX = 64
"""Units of one finding whose history is told."""
TURNS_MAX = 64
SESSIONS_MAX = 32
ROWS_MAX = 64
"""Rows of one plan that are told."""
OWNERS_MAX = 10
"""Owners of one pool that are told."""

_TERMS = ("total", "available", "evictable", "protected", "session_held", "uncached", "draining", "quarantined")
_read_terms = attrgetter(*_TERMS)


class Reading:
    """A core as it is when its parts are first looked at: the same for all that is told of it.

    A part whose records contradict each other, or change meanwhile, raises anew each time that it is asked for.
    """

    def __init__(self, core: Core, failure: Exception | None = None) -> None:
        self.core = core
        self._failure = failure

    @cached_property
    def report(self) -> Report:
        return self.core.check(CheckLevel.FULL)

    @cached_property
    def snapshot(self) -> Snapshot:
        return self.core.snapshot()

    @property
    def is_balanced(self) -> bool:
        return self.report.is_clean and all(books.is_balanced for books in self.snapshot.pools)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Those of the halt, too, where they are not the same."""
        told = self._failure.report.findings if isinstance(self._failure, BooksDisagree) else ()
        return (*self.report.findings, *(finding for finding in told if finding not in self.report.findings))


def tell_verdict(reading: Reading) -> list[str]:
    report, snapshot = reading.report, reading.snapshot
    laws = ",".join(sorted({finding.law for finding in report.findings})) or "none"
    verdict = (
        f"books: {'balance' if reading.is_balanced else 'DO NOT BALANCE'} broken_laws={laws} "
        f"leaks={len(report.leaks)} conflicts={len(report.conflicts)} steps={snapshot.steps} "
        f"in_flight={snapshot.in_flight} turns={len(snapshot.turns)} sessions={len(snapshot.sessions)}"
    )
    return [verdict]


def tell_pools(reading: Reading) -> list[str]:
    """A table: the equation's terms, then those that are parts of them or out of circulation."""
    rows = [("kind", *_TERMS, "sum"), *map(_pool_cells, reading.snapshot.pools)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [f"pool: {'  '.join((row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])))}" for row in rows]


def _pool_cells(books: PoolBooks) -> tuple[str, ...]:
    return (str(books.pool), *map(str, _read_terms(books)), "= total" if books.is_balanced else "IS NOT THE TOTAL")


def tell_plans(reading: Reading) -> list[str]:
    return [line for plan in reading.snapshot.plans for line in _plan(plan)] or ["plan: none is in flight"]


def _plan(plan: PlanState) -> Iterator[str]:
    tokens = sum(row.query_len for row in plan.rows)
    yield f"plan: step {plan.step} is in flight: {len(plan.rows)} rows, {tokens} tokens"
    head = f"plan:   step={plan.step}"
    yield from _align(head, [_plan_cells(row) for row in plan.rows[:ROWS_MAX]])
    yield from _rest(head, len(plan.rows) - ROWS_MAX, "rows")


def _plan_cells(row: PlanRowState) -> tuple[str, ...]:
    return (
        f"rid={row.rid}/{row.epoch}",
        f"row={row.req_pool_idx}",
        f"start={row.start_len}",
        f"len={row.query_len}",
        f"samples={row.num_samples}",
    )


def tell_turns(reading: Reading) -> list[str]:
    """Those in flight first."""
    turns = sorted(reading.snapshot.turns, key=lambda turn: turn.in_flight == 0)
    told = _align("turn:", [_turn_cells(turn, reading.core) for turn in turns[:TURNS_MAX]])
    return [*told, *_rest("turn:", len(turns) - TURNS_MAX, "turns")] or ["turn: none runs or waits"]


def _turn_cells(turn: TurnState, core: Core) -> tuple[str, ...]:
    return (
        f"rid={turn.rid}",
        f"phase={turn.phase}",
        f"in_flight={turn.in_flight}",
        f"prompt={turn.context_len}",
        f"output={turn.output_len}",
        f"kv={turn.kv_committed_len}",
        *_held_cells(turn, core),
        f"turn_id={turn.turn_id!r}",
        f"session={turn.session_id!r}",
    )


def tell_sessions(reading: Reading) -> list[str]:
    """Those with most pages first."""
    sessions = sorted(reading.snapshot.sessions, key=lambda session: -session.pages)
    told = _align("session:", [_session_cells(session, reading.core) for session in sessions[:SESSIONS_MAX]])
    return [*told, *_rest("session:", len(sessions) - SESSIONS_MAX, "sessions")] or ["session: none is open"]


def _session_cells(session: SessionState, core: Core) -> tuple[str, ...]:
    return (
        f"number={session.number}",
        "streaming" if session.streaming else "ordinary",
        f"slot={session.slot}",
        f"history={session.history_len}",
        f"kv={session.kv_committed_len}",
        *_held_cells(session, core),
        f"live_turns={session.live_turns}",
        repr(session.session_id),
    )


def _held_cells(holder: TurnState | SessionState, core: Core) -> Iterator[str]:
    """Its units of the pools that there are, but for the row."""
    yield f"pages={holder.pages}"
    if core.config.swa_pages:
        yield f"swa={holder.swa_pages}"
    if core.config.state_slots:
        yield f"states={holder.states}"


def tell_owners(reading: Reading) -> list[str]:
    """Of each pool those with most units."""
    names = _owner_names(reading.snapshot)
    pools = [books.pool for books in reading.snapshot.pools]
    width = max(map(len, pools))
    return [line for pool in pools for line in _owners(pool, reading.core.owners(pool)[1:], names, width)]


def _owner_names(snapshot: Snapshot) -> dict[Owner, str]:
    turns = {Owner(OwnerKind.REQUEST, turn.rid): f"turn_id={turn.turn_id!r}" for turn in snapshot.turns}
    return turns | {Owner(OwnerKind.SESSION, each.number): repr(each.session_id) for each in snapshot.sessions}


def _owners(pool: PoolKind, owners: Iterable[Owner], names: dict[Owner, str], pool_width: int) -> Iterator[str]:
    counts = Counter(owners)
    largest = counts.most_common(OWNERS_MAX)
    width = len(str(largest[0][1])) if largest else 0
    for owner, units in largest:
        yield f"owner: {pool:<{pool_width}} {units:>{width}}  {owner}  {names.get(owner, '')}".rstrip()
    others = sum(counts.values()) - sum(units for _, units in largest)
    yield from _rest(f"owner: {pool:<{pool_width}}", len(counts) - OWNERS_MAX, f"owners, with {others} units,")


def tell_findings(reading: Reading) -> list[str]:
    return [f"finding: {finding.kind} {finding.law}: {finding.message}" for finding in reading.findings]


def tell_histories(reading: Reading) -> list[str]:
    """Each unit that a finding names, once."""
    lines: dict[tuple[PoolKind, int], str] = {}
    num_left_out = 0
    for finding in reading.findings:
        num_left_out += max(0, len(finding.units) - UNITS_MAX)
        for unit in finding.units[:UNITS_MAX]:
            if finding.pool is not None and 0 <= unit < len(reading.core.owners(finding.pool)):
                lines[finding.pool, unit] = f"unit: {reading.core.explain(finding.pool, unit)}"
    return [*lines.values(), *_rest("unit:", num_left_out, "units")]


def _align(head: str, rows: list[tuple[str, ...]]) -> list[str]:
    """One line a row, whose cells stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [f"{head} {' '.join(map(str.ljust, row, widths))}".rstrip() for row in rows]


def _rest(head: str, count: int, what: str) -> list[str]:
    return [f"{head} {count} more {what} are not told of"] if count > 0 else []
