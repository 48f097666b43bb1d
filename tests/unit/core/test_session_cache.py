"""Slots: lending, coming back, demotion, rows; each with the full check after it."""

import pytest

from engine.core.errors import InvariantViolation
from engine.core.events import KvMoved, SlotChanged, SlotState
from engine.core.findings import CheckLevel
from engine.core.invariants import check_books
from engine.core.ownership import Move, OwnerKind, PoolKind
from engine.core.request import Phase, Request
from engine.core.session_cache import SLOT_MOVES
from engine.core.sessions import Session
from tests.kit.core_parts import CoreParts, make_parts


def admit(parts: CoreParts, request: Request) -> None:
    """Acquires, grants a row and pages for all ids, and marks their KV as answered."""
    parts.slots.acquire(request, parts.slots.probe(request))
    parts.queues.run(request)
    request.go(Phase.RUNNING)
    kv = request.kv
    if kv.req_pool_idx is None:
        assert parts.slots.make_room(0, 1)
        granted = parts.pools.grant(request.owner, 0, rows=1)
        assert granted is not None
        kv.req_pool_idx = granted.rows[0]
    missing = -(-request.known_len // parts.page_size) - kv.num_pages(parts.page_size)
    assert parts.slots.make_room(missing, 0)
    granted = parts.pools.grant(request.owner, missing)
    assert granted is not None
    kv.pages.extend(granted.pages)
    kv.kv_allocated_len = kv.kv_committed_len = request.known_len
    parts.table.write(kv.req_pool_idx, 0, kv.all_pages())


def go(parts: CoreParts, request: Request, phase: Phase) -> None:
    parts.queues.leave(request)
    request.go(phase)
    parts.slots.follow(request)


def commit(parts: CoreParts, request: Request) -> None:
    """Adds one generated id, as every committed turn has at least one, and parks."""
    request.append((999,))
    go(parts, request, Phase.COMMITTING)
    assert request.session is not None
    request.session.history = bytes(request.ids)
    go(parts, request, Phase.COMMITTED)
    parts.slots.commit(request)
    del parts.queues.live[request.rid]
    assert_clean(parts)


def roll_back(parts: CoreParts, request: Request, phase: Phase = Phase.ROLLING_BACK) -> None:
    go(parts, request, phase)
    parts.slots.roll_back(request)
    if phase is Phase.ROLLING_BACK:
        del parts.queues.live[request.rid]
    else:
        request.go(Phase.WAITING)
        parts.queues.wait(request)
    assert_clean(parts)


def assert_clean(parts: CoreParts) -> None:
    report = check_books(parts.books, CheckLevel.FULL)
    assert report.is_clean, report.findings


def run_turn(parts: CoreParts, session: Session, rid: int, new_ids: list[int]) -> Request:
    history = list(memoryview(session.history).cast("i")) if session.history else []
    request = parts.request(rid, history + new_ids, session, base_len=len(history))
    admit(parts, request)
    parts.slots.cache_prompt(request)
    assert_clean(parts)
    return request


def states(parts: CoreParts) -> list[SlotState]:
    return [event.target for event in parts.events(SlotChanged) if isinstance(event, SlotChanged)]


@pytest.mark.parametrize("first_len", [3, 4, 5, 8, 9])
def test_turns_when_they_commit_then_the_next_one_takes_all_but_the_last_token_from_the_slot(first_len: int) -> None:
    parts = make_parts()
    session = parts.open_session()
    commit(parts, run_turn(parts, session, 1, list(range(first_len))))
    assert states(parts) == [SlotState.LENT, SlotState.COMMITTING, SlotState.HELD]
    second = parts.request(2, [*range(first_len + 1), 50], session, base_len=first_len + 1)
    probe = parts.slots.probe(second)
    assert probe.tokens_from_slot == session.history_len - 1 == first_len
    assert probe.tokens_from_tree == 0
    assert probe.has_row


def test_first_prompt_when_answered_then_its_full_pages_are_the_trees_and_locked() -> None:
    parts = make_parts()
    request = run_turn(parts, parts.open_session(), 1, list(range(10)))
    assert request.kv.cache_protected_len == 8
    assert parts.pools.ledger.protected(PoolKind.FULL) == 2
    assert len(request.kv.pages) == 1


def test_later_prompts_when_answered_then_nothing_more_goes_to_the_tree() -> None:
    parts = make_parts()
    session = parts.open_session()
    commit(parts, run_turn(parts, session, 1, list(range(6))))
    commit(parts, run_turn(parts, session, 2, list(range(20, 32))))
    assert parts.pools.ledger.count(PoolKind.FULL, OwnerKind.CACHE) == 1


def test_abort_when_mid_turn_then_the_slot_is_back_at_the_last_commit() -> None:
    parts = make_parts()
    session = parts.open_session()
    commit(parts, run_turn(parts, session, 1, list(range(6))))
    held = [state.kv.pages[:] for state in parts.slots.slots()]
    second = run_turn(parts, session, 2, list(range(20, 33)))
    states(parts)
    roll_back(parts, second)
    assert states(parts) == [SlotState.RETURNING, SlotState.HELD]
    assert [slot.kv.pages for slot in parts.slots.slots()] == held
    assert [slot.kv.kv_committed_len for slot in parts.slots.slots()] == [6]


def test_abort_when_it_was_the_first_turn_then_the_slot_is_empty_and_all_is_reclaimable() -> None:
    parts = make_parts()
    session = parts.open_session()
    roll_back(parts, run_turn(parts, session, 1, list(range(10))))
    assert states(parts)[-1] is SlotState.EMPTY
    assert parts.pools.free(PoolKind.FULL) + parts.slots.reclaimable(PoolKind.FULL) == 16
    assert parts.pools.free(PoolKind.ROWS) == 4


@pytest.mark.parametrize(("pages", "rows"), [(17, 0), (0, 5), (17, 5)])
def test_make_room_when_all_there_is_would_not_do_then_nothing_moves(pages: int, rows: int) -> None:
    parts = make_parts()
    commit(parts, run_turn(parts, parts.open_session(), 1, list(range(20))))
    parts.events()
    assert not parts.slots.make_room(pages, rows)
    assert parts.events() == []


@pytest.mark.parametrize("is_kept", [True, False], ids=["commit", "roll_back"])
def test_holding_when_it_is_no_slots_then_it_goes_to_the_cache_below(is_kept: bool) -> None:
    parts = make_parts()
    request = run_turn(parts, parts.open_session(), 1, list(range(10)))
    stranger = parts.request(2, list(range(50, 58)))
    admit(parts, stranger)
    if is_kept:
        parts.slots.commit(stranger)
    else:
        parts.slots.roll_back(stranger)
    assert parts.pools.ledger.count(PoolKind.FULL, OwnerKind.CACHE) == (4 if is_kept else 2)
    assert parts.pools.ledger.count(PoolKind.FULL, OwnerKind.REQUEST) == len(request.kv.pages)


def test_make_room_when_pages_are_short_then_the_least_recently_used_session_is_demoted_first() -> None:
    parts = make_parts()
    first, second = parts.open_session("first"), parts.open_session("second")
    commit(parts, run_turn(parts, first, 1, list(range(20))))
    commit(parts, run_turn(parts, second, 2, list(range(100, 120))))
    parts.events()
    assert parts.slots.make_room(parts.pools.free(PoolKind.FULL) + 1, 0)
    changed = [event for event in parts.events(SlotChanged) if isinstance(event, SlotChanged)]
    assert [(event.session_id, event.target) for event in changed] == [("first", SlotState.DEMOTED)]
    assert_clean(parts)


def test_make_room_when_everything_is_asked_for_then_everything_idle_is_freed() -> None:
    parts = make_parts()
    session = parts.open_session()
    commit(parts, run_turn(parts, session, 1, list(range(21))))
    assert parts.slots.make_room(16, 4)
    assert parts.pools.free(PoolKind.FULL) == 16
    assert parts.pools.free(PoolKind.ROWS) == 4
    assert_clean(parts)


def test_make_room_when_it_can_not_be_had_then_nothing_moves() -> None:
    parts = make_parts()
    session = parts.open_session()
    commit(parts, run_turn(parts, session, 1, list(range(10))))
    running = run_turn(parts, parts.open_session("other"), 2, list(range(100, 110)))
    parts.events()
    assert not parts.slots.make_room(16, 0)
    assert parts.events() == []
    assert running.kv.pages


def test_rows_when_they_are_short_then_only_the_row_is_given_back() -> None:
    parts = make_parts(num_rows=2)
    session = parts.open_session()
    commit(parts, run_turn(parts, session, 1, list(range(10))))
    parts.events()
    assert parts.slots.make_room(0, 1)
    moves = [(event.pool, event.move) for event in parts.events(KvMoved) if isinstance(event, KvMoved)]
    assert moves == [(PoolKind.ROWS, Move.RELEASE)]
    request = parts.request(2, [*range(10), 999, 50], session, base_len=11)
    probe = parts.slots.probe(request)
    assert (probe.tokens_from_slot, probe.has_row) == (10, False)
    admit(parts, request)
    assert_clean(parts)


def test_retraction_when_room_is_needed_next_then_that_slot_gives_way_before_older_ones() -> None:
    parts = make_parts()
    old, young = parts.open_session("old"), parts.open_session("young")
    commit(parts, run_turn(parts, old, 1, list(range(6))))
    commit(parts, run_turn(parts, young, 2, list(range(100, 106))))
    roll_back(parts, run_turn(parts, young, 3, list(range(200, 206))), Phase.RETRACTING)
    parts.events()
    assert parts.slots.make_room(parts.pools.free(PoolKind.FULL) + 1, 0)
    changed = [event for event in parts.events(SlotChanged) if isinstance(event, SlotChanged)]
    assert changed[0].session_id == "young"


def test_close_when_a_turn_runs_then_the_slot_is_released_once_the_kv_is_back() -> None:
    parts = make_parts()
    session = parts.open_session()
    commit(parts, run_turn(parts, session, 1, list(range(6))))
    second = run_turn(parts, session, 2, [50, 51])
    parts.slots.close_session(session)
    assert parts.pools.ledger.count(PoolKind.FULL, OwnerKind.REQUEST) > 0
    roll_back(parts, second)
    assert parts.slots.slots() == ()
    assert parts.pools.free(PoolKind.FULL) + parts.slots.reclaimable(PoolKind.FULL) == 16
    parts.slots.close_session(session)


def test_acquire_when_the_slot_is_lent_then_it_is_a_violation_and_the_probe_says_not_ready() -> None:
    parts = make_parts()
    session = parts.open_session()
    run_turn(parts, session, 1, list(range(6)))
    second = parts.request(2, [50], session)
    probe = parts.slots.probe(second)
    assert not probe.is_ready
    with pytest.raises(InvariantViolation, match="is lent to rid 1"):
        parts.slots.acquire(second, probe)


def test_slot_table_when_read_then_every_state_is_in_it_and_released_is_final() -> None:
    assert set(SLOT_MOVES) == set(SlotState)
    assert SLOT_MOVES[SlotState.RELEASED] == ()
