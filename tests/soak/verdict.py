"""What has to hold at the end of a soak, judged from the evidence alone."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.client import Finding, History, Incident, PoolStats
from tests.soak.ledger import EndingRow, Ledger, compare_endings
from tests.soak.load import Probes
from tests.soak.memory import Reading
from tests.soak.server import FAILING_EVERY
from tests.soak.trend import Z_ONE_SIDED, Trend

SLOPE_MAX_PERCENT = 1.0
"""Of resident memory, in an hour."""
STOP_MAX_S = 10.0
REACHED = ("stop", "length", "client", "deadline", "disconnect", "session_closed", "forward_failed", "replaced")
"""Endings without which the load was not what it says."""
_LEAK = re.compile(r"event=\w*leak|kind=leak")
_INCIDENT = re.compile(r"event=incident incident_id=(\S+) kind=(\w+)")


@dataclass(frozen=True, slots=True)
class Evidence:
    """Of one soak; taken when the load had stopped and every turn had ended."""

    ledger: Ledger
    probes: Probes
    readings: tuple[Reading, ...]
    trend: Trend | None
    """None for a run that was too short for one."""
    history: History | None
    """None, as all below, when the server was gone."""
    stats: PoolStats | None
    findings: tuple[Finding, ...]
    incidents: tuple[Incident, ...]
    log: str
    exit_code: int | None
    stop_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    name: str
    holds: bool
    told: str
    """The numbers."""


def judge(evidence: Evidence, *, needs_slope: bool = True) -> list[Verdict]:
    """All verdicts; without that on the slope when a run is too short to have one."""
    verdicts = [judge_slope(evidence.trend)] if needs_slope else []
    verdicts.append(_judge_end(evidence))
    if evidence.history is None or evidence.stats is None:
        return [*verdicts, Verdict("server answers at the end", False, "it does not")]
    return [
        *verdicts,
        _judge_leaks(evidence, evidence.stats),
        _judge_conflicts(evidence, evidence.stats),
        _judge_accepted(evidence.ledger, evidence.history),
        _judge_endings(evidence.ledger, evidence.history),
        _judge_rest(evidence.stats),
        _judge_sessions(evidence.ledger, evidence.history),
        _judge_failures(evidence, evidence.history),
        _judge_incidents(evidence),
        _judge_probes(evidence.probes),
        _judge_client(evidence.ledger),
        _judge_reach(evidence.ledger, evidence.history),
    ]


def judge_slope(trend: Trend | None) -> Verdict:
    """Holds unless the run speaks against it: its slope less 1.645 standard errors is above the limit.

    Whether it also speaks for it, the upper bound below the limit, is told: a noisy run proves nothing either way.
    """
    name = f"resident memory grows at most {SLOPE_MAX_PERCENT:g} % an hour"
    if trend is None:
        return Verdict(name, False, "the run was too short")
    reach = Z_ONE_SIDED * trend.percent_error
    holds = trend.percent - reach <= SLOPE_MAX_PERCENT
    if trend.percent + reach <= SLOPE_MAX_PERCENT:
        proof = "proven at 95 %"
    else:
        proof = "not contradicted, and not proven" if holds else "contradicted at 95 %"
    low, high = trend.percent_interval
    told = (
        f"{trend.percent:+.2f} % an hour, standard error {trend.percent_error:.2f}, 95 % interval {low:+.2f} to "
        f"{high:+.2f}, residuals' rho {trend.rho:.2f}, {trend.num_points} readings in {trend.duration_s / 60:.1f} min; "
        f"{proof}; growth above {SLOPE_MAX_PERCENT + 2 * reach:.2f} % an hour is caught 95 times of 100"
    )
    return Verdict(name, holds, told)


def ending_rows(evidence: Evidence) -> list[EndingRow]:
    """Client and server side by side; empty when the server was gone."""
    return [] if evidence.history is None else compare_endings(evidence.ledger, evidence.history.totals.endings)[0]


def _judge_end(evidence: Evidence) -> Verdict:
    is_clean = "Traceback" not in evidence.log
    told = f"exit code {evidence.exit_code} after {evidence.stop_s:.1f} s, {'no' if is_clean else 'A'} traceback logged"
    holds = evidence.exit_code == 0 and evidence.stop_s < STOP_MAX_S and is_clean
    return Verdict("SIGTERM ends it well", holds, told)


def _judge_leaks(evidence: Evidence, stats: PoolStats) -> Verdict:
    quarantined = sum(pool.quarantined for pool in stats.pools)
    num_lines = len(_LEAK.findall(evidence.log))
    told = f"{quarantined} units quarantined, {num_lines} lines of the log tell of a leak"
    return Verdict("zero leaks", not quarantined and not num_lines, told)


def _judge_conflicts(evidence: Evidence, stats: PoolStats) -> Verdict:
    problems = [f"{finding.law}: {finding.message}" for finding in evidence.findings]
    if not stats.balanced:
        problems.append("out of balance")
    told = f"{stats.checks_run} checks of the books in {stats.steps} steps, {_join(problems) or 'none found anything'}"
    return Verdict("zero conflicts", not problems, told)


def _judge_accepted(ledger: Ledger, history: History) -> Verdict:
    client, server, unsure = len(ledger.turns), history.totals.turns_accepted, ledger.unsure
    told = f"client {client}, server {server}"
    if unsure:
        told += f"; {unsure} calls ended before the client could know"
    return Verdict("accepted turns: the counts agree", client <= server <= client + unsure, told)


def _judge_endings(ledger: Ledger, history: History) -> Verdict:
    totals = history.totals
    rows, problems = compare_endings(ledger, totals.endings)
    num_ended = sum(totals.endings.values())
    if num_ended != totals.turns_accepted:
        problems.append(f"{totals.turns_accepted} were accepted, and {num_ended} have ended")
    told = f"{num_ended} endings of {totals.turns_accepted} turns; the end of {ledger.num_unheard} was not heard"
    return Verdict("every accepted turn has one ending", not problems and bool(rows), _join([told, *problems]))


def _judge_rest(stats: PoolStats) -> Verdict:
    """Books at rest: only the prefix cache owns anything, and nobody uses it."""
    alive = {
        "turns running": stats.turns_running,
        "turns waiting": stats.turns_waiting,
        "sessions": stats.sessions_open,
    }
    for pool in stats.pools:
        for term in ("protected", "session_held", "uncached", "draining"):
            alive[f"{pool.kind} {term}"] = int(getattr(pool, term))
    left = [f"{count} {name}" for name, count in alive.items() if count]
    return Verdict("nothing is left at the end", not left, _join(left) or "no turn, no session, no page in use")


def _judge_sessions(ledger: Ledger, history: History) -> Verdict:
    opened, closed = history.totals.sessions_opened, history.totals.sessions_closed
    told = (
        f"client opened {ledger.sessions_opened}, server {opened}, and closed {sum(closed.values())}: {_counts(closed)}"
    )
    return Verdict("sessions: the counts agree", ledger.sessions_opened == opened == sum(closed.values()), told)


def _judge_failures(evidence: Evidence, history: History) -> Verdict:
    """Each failed step is one incident in the log, and every id that a client was told is one of these."""
    totals = history.totals
    logged = {incident_id for incident_id, kind in _INCIDENT.findall(evidence.log) if kind == "forward_failed"}
    unknown = evidence.ledger.incident_ids - logged
    share = totals.steps_failed / max(1, totals.steps)
    told = (
        f"{totals.steps_failed} of {totals.steps} steps failed ({share:.1%}), {len(logged)} incidents in the log, "
        f"{len(evidence.ledger.incident_ids)} ids told to clients, {len(unknown)} of them not in the log"
    )
    is_share_right = 0.5 / FAILING_EVERY < share < 1.5 / FAILING_EVERY
    return Verdict(
        "failing forwards are contained", is_share_right and len(logged) == totals.steps_failed and not unknown, told
    )


def _judge_incidents(evidence: Evidence) -> Verdict:
    kinds = {kind for _, kind in _INCIDENT.findall(evidence.log)} | {each.kind for each in evidence.incidents}
    others = sorted(kinds - {"forward_failed"})
    return Verdict("no other incident", not others, _join(others) or f"{len(evidence.incidents)} remembered")


def _judge_probes(probes: Probes) -> Verdict:
    told = f"{probes.asked} asked, slowest answer {1000 * probes.slowest_s:.0f} ms"
    failures = _counts(probes.failures)
    return Verdict("every probe is answered", probes.asked > 0 and not failures, _join([told, failures]))


def _judge_client(ledger: Ledger) -> Verdict:
    told = [f"{count} times {what}" for what, count in ledger.surprises.most_common(5)] + ledger.violations[:5]
    num = ledger.surprises.total() + len(ledger.violations)
    return Verdict(
        "clients are told what was promised", not num, f"{num} surprises" + "".join(f"; {it}" for it in told)
    )


def _judge_reach(ledger: Ledger, history: History) -> Verdict:
    """A quiet load proves nothing."""
    totals = history.totals
    reached = {
        **{f"ended as {name}": totals.endings.get(name, 0) for name in REACHED},
        "retractions": totals.retractions,
        "demotions": totals.demotions,
        "sessions expired": totals.sessions_closed.get("session_expired", 0),
        "tokens from slots": totals.tokens_from_slot,
        "tokens from the cache": totals.tokens_from_tree,
        "streams resumed": ledger.resumed,
        "refusals": ledger.refusals.total(),
    }
    missing = [name for name, count in reached.items() if not count]
    told = f"missing: {_join(missing)}" if missing else _counts(reached)
    return Verdict("the load reached what it should", not missing, told)


def _counts(counts: Mapping[str, int]) -> str:
    return _join(f"{name} {count}" for name, count in sorted(counts.items()))


def _join(parts: Iterable[str]) -> str:
    return ", ".join(part for part in parts if part)
