"""The ledger: the move table, expected owners, counters."""

import pytest

from engine.core.errors import InvariantViolation
from engine.core.events import EventLog, KvMoved, Protected, Unprotected
from engine.core.ids import StepNo
from engine.core.ledger import Ledger
from engine.core.ownership import CACHE, FREE, MOVES, QUARANTINED, Move, Owner, OwnerKind, PoolKind

REQUEST = Owner(OwnerKind.REQUEST, 1)
OTHER = Owner(OwnerKind.REQUEST, 2)
SESSION = Owner(OwnerKind.SESSION, 7)
OWNERS = {
    OwnerKind.FREE: FREE,
    OwnerKind.REQUEST: REQUEST,
    OwnerKind.SESSION: SESSION,
    OwnerKind.CACHE: CACHE,
    OwnerKind.QUARANTINED: QUARANTINED,
}


def make_ledger() -> tuple[Ledger, EventLog]:
    log = EventLog()
    return Ledger({PoolKind.FULL: 8, PoolKind.ROWS: 4}, log), log


def put(ledger: Ledger, page: int, kind: OwnerKind) -> None:
    """Brings a free page to an owner of that kind by legal moves."""
    route = {
        OwnerKind.FREE: [],
        OwnerKind.REQUEST: [(Move.GRANT, FREE, REQUEST)],
        OwnerKind.SESSION: [(Move.GRANT, FREE, REQUEST), (Move.PARK, REQUEST, SESSION)],
        OwnerKind.CACHE: [(Move.GRANT, FREE, REQUEST), (Move.DONATE, REQUEST, CACHE)],
        OwnerKind.QUARANTINED: [(Move.QUARANTINE, FREE, QUARANTINED)],
    }[kind]
    for move, source, target in route:
        ledger.move(move, PoolKind.FULL, [page], source, target)


@pytest.mark.parametrize("move", list(Move))
@pytest.mark.parametrize("source", list(OwnerKind))
@pytest.mark.parametrize("target", list(OwnerKind))
def test_move_when_the_table_says_so_then_it_happens_and_else_it_is_a_violation(
    move: Move, source: OwnerKind, target: OwnerKind
) -> None:
    ledger, _ = make_ledger()
    put(ledger, 1, source)
    is_legal = source in MOVES[move].sources and target is MOVES[move].target
    if is_legal:
        ledger.move(move, PoolKind.FULL, [1], OWNERS[source], OWNERS[target])
        assert ledger.owner(PoolKind.FULL, 1) == OWNERS[target]
    else:
        with pytest.raises(InvariantViolation):
            ledger.move(move, PoolKind.FULL, [1], OWNERS[source], OWNERS[target])
        assert ledger.owner(PoolKind.FULL, 1) == OWNERS[source]


def test_move_when_one_page_is_anothers_then_nothing_moves() -> None:
    ledger, log = make_ledger()
    ledger.move(Move.GRANT, PoolKind.FULL, [1, 2], FREE, REQUEST)
    ledger.move(Move.GRANT, PoolKind.FULL, [3], FREE, OTHER)
    log.take()
    with pytest.raises(InvariantViolation, match="page 3 belongs to request:2, not to request:1"):
        ledger.move(Move.DONATE, PoolKind.FULL, [1, 2, 3], REQUEST, CACHE)
    assert ledger.owner(PoolKind.FULL, 1) == REQUEST
    assert ledger.count(PoolKind.FULL, OwnerKind.REQUEST) == 3
    assert log.take() == ()


@pytest.mark.parametrize("page", [0, -1, 8])
def test_move_when_the_page_is_padding_or_outside_then_it_is_a_violation(page: int) -> None:
    ledger, _ = make_ledger()
    with pytest.raises(InvariantViolation, match="has no page"):
        ledger.move(Move.GRANT, PoolKind.FULL, [page], FREE, REQUEST)


def test_move_when_a_row_would_go_to_the_cache_then_it_is_a_violation() -> None:
    ledger, _ = make_ledger()
    ledger.move(Move.GRANT, PoolKind.ROWS, [1], FREE, REQUEST)
    with pytest.raises(InvariantViolation, match="can not belong to cache"):
        ledger.move(Move.DONATE, PoolKind.ROWS, [1], REQUEST, CACHE)


def test_counters_when_pages_move_then_they_follow_and_padding_is_in_none() -> None:
    ledger, log = make_ledger()
    ledger.move(Move.GRANT, PoolKind.FULL, [5, 6], FREE, REQUEST)
    ledger.move(Move.PARK, PoolKind.FULL, [5], REQUEST, SESSION)
    counts = {kind: ledger.count(PoolKind.FULL, kind) for kind in OwnerKind}
    assert counts == {
        OwnerKind.FREE: 5,
        OwnerKind.REQUEST: 1,
        OwnerKind.SESSION: 1,
        OwnerKind.CACHE: 0,
        OwnerKind.QUARANTINED: 0,
    }
    assert [numbered.event for numbered in log.take()] == [
        KvMoved(PoolKind.FULL, Move.GRANT, FREE, REQUEST, (5, 6), StepNo(0), ""),
        KvMoved(PoolKind.FULL, Move.PARK, REQUEST, SESSION, (5,), StepNo(0), ""),
    ]


def test_move_when_a_page_is_named_twice_then_nothing_moves() -> None:
    ledger, log = make_ledger()
    with pytest.raises(InvariantViolation, match="name one twice"):
        ledger.move(Move.GRANT, PoolKind.FULL, [1, 2, 1], FREE, REQUEST)
    assert ledger.count(PoolKind.FULL, OwnerKind.FREE) == 7
    assert log.take() == ()


def test_move_when_owners_are_equal_but_not_the_same_object_then_they_are_one_owner() -> None:
    ledger, _ = make_ledger()
    ledger.move(Move.GRANT, PoolKind.FULL, [1], FREE, Owner(OwnerKind.REQUEST, 1))
    ledger.move(Move.GRANT, PoolKind.FULL, [2], FREE, Owner(OwnerKind.REQUEST, 1))
    ledger.move(Move.RELEASE, PoolKind.FULL, [1, 2], Owner(OwnerKind.REQUEST, 1), FREE)
    assert ledger.count(PoolKind.FULL, OwnerKind.FREE) == 7


def test_move_when_owners_are_followed_then_it_has_the_step_and_the_trace_of_the_request_or_else_the_session() -> None:
    ledger, log = make_ledger()
    ledger.set_step(StepNo(3))
    ledger.follow(REQUEST, "trace-of-request")
    ledger.follow(OTHER, "")
    ledger.move(Move.GRANT, PoolKind.FULL, [1], FREE, REQUEST)
    ledger.move(Move.PARK, PoolKind.FULL, [1], REQUEST, SESSION)
    ledger.set_step(StepNo(4))
    ledger.follow(SESSION, "trace-of-session")
    ledger.move(Move.LEND, PoolKind.FULL, [1], SESSION, REQUEST)
    ledger.move(Move.PARK, PoolKind.FULL, [1], REQUEST, SESSION)
    ledger.move(Move.LEND, PoolKind.FULL, [1], SESSION, REQUEST)
    ledger.unfollow(REQUEST)
    ledger.move(Move.RETURN, PoolKind.FULL, [1], REQUEST, SESSION)
    ledger.move(Move.GRANT, PoolKind.FULL, [2], FREE, OTHER)
    moved = [numbered.event for numbered in log.take()]
    assert [(event.step, event.trace_id) for event in moved if isinstance(event, KvMoved)] == [
        (3, "trace-of-request"),
        (3, "trace-of-request"),
        (4, "trace-of-request"),
        (4, "trace-of-request"),
        (4, "trace-of-request"),
        (4, "trace-of-session"),
        (4, ""),
    ]


def test_owners_when_asked_then_every_unit_is_told_with_padding() -> None:
    ledger, _ = make_ledger()
    ledger.move(Move.GRANT, PoolKind.ROWS, [2], FREE, REQUEST)
    assert ledger.owners(PoolKind.ROWS) == (FREE, FREE, REQUEST, FREE)


@pytest.mark.parametrize("unit", [-1, 8])
def test_explain_when_there_is_no_such_unit_then_it_is_an_error(unit: int) -> None:
    ledger, _ = make_ledger()
    with pytest.raises(IndexError, match="has no unit"):
        ledger.explain(PoolKind.FULL, unit)


def test_unprotect_when_more_than_was_protected_then_it_is_a_violation() -> None:
    ledger, _ = make_ledger()
    ledger.protect([1, 2])
    with pytest.raises(InvariantViolation, match="1 more units of full unlocked than locked"):
        ledger.unprotect([1, 2, 3])


def test_protected_when_pools_are_locked_then_each_has_a_count_of_its_own_and_each_is_told() -> None:
    log = EventLog()
    ledger = Ledger({PoolKind.FULL: 8, PoolKind.SWA: 8, PoolKind.MAMBA: 4, PoolKind.ROWS: 4}, log)
    ledger.protect([1, 2])
    ledger.protect([1, 2, 3], PoolKind.SWA)
    ledger.protect([3], PoolKind.MAMBA)
    ledger.unprotect([2], PoolKind.SWA)
    assert [ledger.protected(pool) for pool in ledger.pools] == [2, 2, 1, 0]
    assert [numbered.event for numbered in log.take()] == [
        Protected((1, 2), PoolKind.FULL),
        Protected((1, 2, 3), PoolKind.SWA),
        Protected((3,), PoolKind.MAMBA),
        Unprotected((2,), PoolKind.SWA),
    ]
    with pytest.raises(InvariantViolation, match="1 more units of mamba unlocked than locked"):
        ledger.unprotect([1, 2], PoolKind.MAMBA)
