"""Where a unit was: its last moves, newest first, and how much of that is kept."""

import pytest

from engine.core import provenance
from engine.core.events import EventLog
from engine.core.ids import StepNo
from engine.core.ledger import Ledger
from engine.core.ownership import CACHE, FREE, MOVES, QUARANTINED, Move, Owner, OwnerKind, PoolKind
from engine.core.provenance import HISTORY_MAX, MoveRecord

REQUEST = Owner(OwnerKind.REQUEST, 1)
SESSION = Owner(OwnerKind.SESSION, 7)
FULL = PoolKind.FULL


def make_ledger() -> Ledger:
    return Ledger({FULL: 8, PoolKind.ROWS: 4}, EventLog())


def test_explain_when_a_page_went_through_many_hands_then_each_move_is_told_newest_first() -> None:
    ledger = make_ledger()
    ledger.follow(REQUEST, "trace-a")
    ledger.set_step(StepNo(1))
    ledger.move(Move.GRANT, FULL, [1, 2, 3], FREE, REQUEST)
    ledger.set_step(StepNo(2))
    ledger.move(Move.DONATE, FULL, [3], REQUEST, CACHE)
    ledger.move(Move.PARK, FULL, [2, 1], REQUEST, SESSION)
    ledger.unfollow(REQUEST)
    ledger.set_step(StepNo(5))
    ledger.move(Move.RELEASE, FULL, [1], SESSION, FREE)
    history = ledger.explain(FULL, 1)
    assert (history.pool, history.unit, history.owner) == (FULL, 1, FREE)
    assert history.moves == (
        MoveRecord(4, StepNo(5), "", Move.RELEASE, SESSION, FREE),
        MoveRecord(3, StepNo(2), "trace-a", Move.PARK, REQUEST, SESSION),
        MoveRecord(1, StepNo(1), "trace-a", Move.GRANT, FREE, REQUEST),
    )
    assert [record.number for record in ledger.explain(FULL, 2).moves] == [3, 1]
    assert [record.number for record in ledger.explain(FULL, 3).moves] == [2, 1]


def test_explain_when_a_unit_never_moved_then_it_says_so() -> None:
    history = make_ledger().explain(PoolKind.ROWS, 2)
    assert history.moves == ()
    assert str(history) == "rows 2 belongs to free: never moved"


def test_explain_when_pools_have_units_of_one_number_then_each_has_its_own_history() -> None:
    ledger = make_ledger()
    ledger.move(Move.GRANT, PoolKind.ROWS, [1], FREE, REQUEST)
    assert ledger.explain(FULL, 1).moves == ()
    assert [record.target for record in ledger.explain(PoolKind.ROWS, 1).moves] == [REQUEST]


@pytest.mark.parametrize("kind", [OwnerKind.FREE, OwnerKind.REQUEST, OwnerKind.SESSION, OwnerKind.CACHE])
def test_explain_when_a_page_was_quarantined_then_it_says_from_whom(kind: OwnerKind) -> None:
    ledger = make_ledger()
    routes = {
        OwnerKind.FREE: [],
        OwnerKind.REQUEST: [(Move.GRANT, FREE, REQUEST)],
        OwnerKind.SESSION: [(Move.GRANT, FREE, REQUEST), (Move.PARK, REQUEST, SESSION)],
        OwnerKind.CACHE: [(Move.GRANT, FREE, REQUEST), (Move.DONATE, REQUEST, CACHE)],
    }
    for move, source, target in routes[kind]:
        ledger.move(move, FULL, [1], source, target)
    owner = ledger.owner(FULL, 1)
    ledger.move(Move.QUARANTINE, FULL, [1], owner, QUARANTINED)
    last = ledger.explain(FULL, 1).moves[0]
    assert (last.move, last.source, last.target) == (Move.QUARANTINE, owner, QUARANTINED)


def test_explain_when_there_were_more_moves_than_are_told_then_the_newest_are() -> None:
    ledger = make_ledger()
    for _ in range(HISTORY_MAX):
        ledger.move(Move.GRANT, FULL, [1], FREE, REQUEST)
        ledger.move(Move.RELEASE, FULL, [1], REQUEST, FREE)
    numbers = [record.number for record in ledger.explain(FULL, 1).moves]
    assert numbers == list(range(2 * HISTORY_MAX, HISTORY_MAX, -1))


def test_explain_when_old_trails_were_dropped_then_a_page_still_knows_its_last_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(provenance, "TRAIL_BUDGET", 0)  # leaves 4 times the pools: trails of two moves of one page
    ledger = make_ledger()
    ledger.move(Move.GRANT, FULL, [1], FREE, REQUEST)
    ledger.move(Move.RELEASE, FULL, [1], REQUEST, FREE)
    for _ in range(100):
        ledger.move(Move.GRANT, FULL, [2], FREE, REQUEST)
        ledger.move(Move.RELEASE, FULL, [2], REQUEST, FREE)
    assert [record.number for record in ledger.explain(FULL, 1).moves] == [2]
    assert [record.number for record in ledger.explain(FULL, 2).moves] == [202, 201, 200]
    assert ledger.num_moves == 202


def test_num_trails_when_moves_are_large_then_fewer_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "TRAIL_BUDGET", 100)
    kept = provenance.Provenance({FULL: 20})
    rule = MOVES[Move.GRANT]
    for units, trails in ((tuple(range(1, 5)), 5), (tuple(range(1, 17)), 3)):
        for _ in range(20):
            kept.record(FULL, rule, FREE, REQUEST, units, "")
        assert kept.num_trails == trails
