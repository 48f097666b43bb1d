"""Each verdict, from evidence in which all is well and one thing is not."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from services.client import Finding, History, Incident, Pool, PoolStats, Totals
from tests.soak.ledger import Ledger, TurnKey
from tests.soak.load import Probes
from tests.soak.verdict import REACHED, Evidence, judge

FULL = Pool("full", 40, 30, 10, 0, 0, 0, draining=0, quarantined=0, page_size=16)
STATS = PoolStats((FULL,), 0, 0, 0, 0, 0, steps=100, checks_run=110, balanced=True)
TOTALS = Totals(
    turns_accepted=len(REACHED),
    endings=dict.fromkeys(REACHED, 1),
    moves={},
    tokens_from_slot=1,
    tokens_from_tree=1,
    tokens_to_compute=1,
    tokens_generated=1,
    steps=100,
    steps_failed=3,
    retractions=1,
    demotions=1,
    sessions_opened=2,
    sessions_closed={"session_closed": 1, "session_expired": 1},
)
HISTORY = History(0.0, 0.0, 1.0, (), (), 0, TOTALS)
LOG = "".join(f"event=incident incident_id={number} kind=forward_failed step=1: planted\n" for number in "abc")


def good_ledger() -> Ledger:
    ledger = Ledger(sessions_opened=2, resumed=1, incident_ids={"a"})
    ledger.refusals["SESSION_UNKNOWN"] = 1
    for name in REACHED:
        ledger.accept(TurnKey("", name, 1))
        ledger.end(TurnKey("", name, 1), name)
    return ledger


def good() -> Evidence:
    probes = Probes(asked=3)
    return Evidence(good_ledger(), probes, (), None, HISTORY, STATS, (), (), LOG, exit_code=0, stop_s=0.5)


def with_totals(evidence: Evidence, totals: Totals) -> Evidence:
    return replace(evidence, history=replace(HISTORY, totals=totals))


def with_ledger(change: Callable[[Ledger], None]) -> Evidence:
    evidence = good()
    change(evidence.ledger)
    return evidence


def failing(evidence: Evidence) -> list[str]:
    return [verdict.name for verdict in judge(evidence, needs_slope=False) if not verdict.holds]


def test_evidence_when_all_is_well_then_every_verdict_holds() -> None:
    assert failing(good()) == []


def test_slope_when_it_is_needed_and_there_is_none_then_fails() -> None:
    assert [verdict.holds for verdict in judge(good())].count(False) == 1


@pytest.mark.parametrize(
    ("bad", "name"),
    [
        (replace(good(), exit_code=1), "SIGTERM ends it well"),
        (replace(good(), stop_s=11.0), "SIGTERM ends it well"),
        (replace(good(), log=LOG + "Traceback (most recent call last):"), "SIGTERM ends it well"),
        (replace(good(), log=LOG + "event=kv_leak pool=full units=3"), "zero leaks"),
        (replace(good(), stats=replace(STATS, pools=(replace(FULL, quarantined=1),))), "zero leaks"),
        (replace(good(), stats=replace(STATS, balanced=False)), "zero conflicts"),
        (replace(good(), findings=(Finding("one owner", "page 3 has two"),)), "zero conflicts"),
        (replace(good(), stats=replace(STATS, turns_waiting=1)), "nothing is left at the end"),
        (replace(good(), stats=replace(STATS, pools=(replace(FULL, protected=2),))), "nothing is left at the end"),
        (replace(good(), incidents=(Incident("x", 0.0, "leak", "", None, False),)), "no other incident"),
        (replace(good(), probes=Probes()), "every probe is answered"),
    ],
)
def test_evidence_when_one_thing_is_wrong_then_its_verdict_fails_and_no_other(bad: Evidence, name: str) -> None:
    assert failing(bad) == [name]


def test_turn_when_the_server_does_not_count_it_then_both_counts_disagree() -> None:
    bad = with_ledger(lambda ledger: ledger.accept(TurnKey("", "one more", 1)))
    assert failing(bad) == ["accepted turns: the counts agree", "every accepted turn has one ending"]


def test_turn_when_accepted_and_never_ended_then_told() -> None:
    bad = with_totals(
        with_ledger(lambda ledger: ledger.accept(TurnKey("", "one more", 1))),
        replace(TOTALS, turns_accepted=TOTALS.turns_accepted + 1),
    )
    assert failing(bad) == ["every accepted turn has one ending"]


def test_session_when_not_closed_then_the_counts_disagree() -> None:
    bad = with_totals(good(), replace(TOTALS, sessions_opened=3))
    assert failing(bad) == ["sessions: the counts agree"]


@pytest.mark.parametrize("steps_failed", [0, 2, 20])
def test_failing_steps_when_not_all_in_the_log_or_not_3_percent_then_told(steps_failed: int) -> None:
    bad = with_totals(good(), replace(TOTALS, steps_failed=steps_failed))
    assert failing(bad) == ["failing forwards are contained"]


def test_incident_when_a_client_was_told_one_that_the_log_has_not_then_told() -> None:
    assert failing(with_ledger(lambda ledger: ledger.incident_ids.add("z"))) == ["failing forwards are contained"]


def test_client_when_surprised_or_lied_to_then_told() -> None:
    name = "clients are told what was promised"
    assert failing(with_ledger(lambda ledger: ledger.surprises.update(["plain turn: INTERNAL"]))) == [name]
    assert failing(with_ledger(lambda ledger: ledger.violations.append("ids from 3 on behind 1"))) == [name]


def test_load_when_nothing_was_retracted_then_it_proved_too_little() -> None:
    assert failing(with_totals(good(), replace(TOTALS, retractions=0))) == ["the load reached what it should"]


def test_probe_when_one_failed_then_told() -> None:
    bad = good()
    bad.probes.failures["liveness: DEADLINE_EXCEEDED"] += 1
    assert failing(bad) == ["every probe is answered"]


def test_server_when_gone_at_the_end_then_told() -> None:
    assert "server answers at the end" in failing(replace(good(), history=None, stats=None, exit_code=1))
