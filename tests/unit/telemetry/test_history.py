"""What the server remembers of its last hour: by the second, bounded, and without what was before it served."""

from random import Random

import pytest

from engine.core.commands import AbortReason, FinishReason
from engine.core.events import (
    Draining,
    KvMoved,
    Protected,
    SessionOpened,
    StepAnswered,
    StepPlanned,
    TokensSampled,
    TurnAccepted,
    TurnAdmitted,
    TurnEnded,
    TurnRetracted,
    Unprotected,
    Usage,
)
from engine.core.ids import Rid, SessionId, StepNo, TurnId
from engine.core.ownership import CACHE, FREE, QUARANTINED, Move, Owner, OwnerKind, PoolKind
from engine.core.snapshot import PoolBooks
from telemetry.history_intervals import Spread
from tests.unit.telemetry.history_desk import UNIX_S, Desk

SID = SessionId("s")
REQUEST = Owner(OwnerKind.REQUEST, 1)


def accepted(rid: int, session: SessionId | None = None) -> TurnAccepted:
    return TurnAccepted(Rid(rid), TurnId(f"t{rid}"), session, context_len=9, new_len=9, max_tokens=4, trace_id="")


def admitted(rid: int, attempt: int = 1, *, slot: int = 0, tree: int = 0, computed: int = 9) -> TurnAdmitted:
    return TurnAdmitted(Rid(rid), attempt, slot, tree, computed)


def ended(rid: int, outcome: FinishReason | AbortReason = FinishReason.STOP) -> TurnEnded:
    usage = Usage(9, 0, 0, 9, output_len=3)
    return TurnEnded(Rid(rid), TurnId(f"t{rid}"), None, outcome, usage, None, is_committed=True)


def granted(*pages: int, pool: PoolKind = PoolKind.FULL) -> KvMoved:
    return KvMoved(pool, Move.GRANT, FREE, REQUEST, pages, StepNo(1), "")


def full_books(desk: Desk) -> PoolBooks:
    return desk.sink.read().samples[-1].pools[0]


# Intervals


def test_read_when_nothing_was_told_then_each_second_has_a_sample_with_the_books_as_they_were() -> None:
    desk = Desk()
    desk.tell(granted(1, 2), after_s=0.5)
    desk.wait(3.25)
    history = desk.sink.read()
    assert [sample.time_s - UNIX_S for sample in history.samples] == [1.0, 2.0, 3.0, 3.75]
    assert [sample.pools[0].uncached for sample in history.samples] == [2, 2, 2, 2]
    assert [dict(sample.moved_units) for sample in history.samples] == [{"grant": 2}, {}, {}, {}]
    assert (history.now_s, history.started_s, history.interval_s) == (UNIX_S + 3.75, UNIX_S, 1.0)


def test_read_when_told_again_after_silence_then_no_second_is_missing() -> None:
    desk = Desk()
    desk.tell(granted(1))
    desk.tell(granted(2), after_s=4.0)
    desk.tell(granted(3), after_s=1.0)
    assert [sample.pools[0].uncached for sample in desk.sink.read().samples] == [1, 1, 1, 1, 2, 3]


def test_read_when_a_time_is_asked_for_then_only_the_seconds_that_touch_it() -> None:
    desk = Desk()
    for page in range(1, 7):
        desk.tell(granted(page), after_s=1.0)
    desk.wait(0.5)
    samples = desk.sink.read(2.0).samples
    assert [sample.time_s - UNIX_S for sample in samples] == [5.0, 6.0, 6.5]
    assert len(desk.sink.read(0.001).samples) == 1
    assert len(desk.sink.read(1e9).samples) == 7


def test_read_when_two_hours_went_by_then_the_last_hour_is_there() -> None:
    desk = Desk()
    desk.tell(granted(1), after_s=0.5)
    desk.wait(7200.0)
    samples = desk.sink.read().samples
    assert len(samples) == 3600
    assert (samples[0].time_s, samples[-1].time_s) == (UNIX_S + 3602.0, UNIX_S + 7200.5)
    assert {sample.pools[0].uncached for sample in samples} == {1}


def test_read_when_each_second_of_two_hours_told_something_then_the_last_hour_is_there() -> None:
    desk = Desk()
    for _ in range(7200):
        desk.tell(accepted(1), ended(1), after_s=1.0)
    history = desk.sink.read()
    assert [sample.turns_ended for sample in history.samples] == [1] * 3600
    assert history.totals.turns_accepted == 7200


def test_read_when_the_wall_clock_is_set_then_times_go_on_evenly() -> None:
    desk = Desk()
    desk.wall.now_s -= 3600.0
    desk.wait(2.0)
    assert [sample.time_s - UNIX_S for sample in desk.sink.read().samples] == [1.0, 2.0, 2.0]


# Books


def test_books_when_pages_drain_then_their_next_move_ends_it() -> None:
    desk = Desk()
    desk.tell(granted(1, 2, 3), Draining(REQUEST, (1, 2), StepNo(4)))
    assert (full_books(desk).uncached, full_books(desk).draining) == (3, 2)
    desk.tell(KvMoved(PoolKind.ROWS, Move.GRANT, FREE, REQUEST, (1,), StepNo(4), ""))
    assert full_books(desk).draining == 2, "a row with a page's number is no page"
    desk.tell(KvMoved(PoolKind.FULL, Move.RELEASE, REQUEST, FREE, (1, 3), StepNo(4), ""))
    assert (full_books(desk).available, full_books(desk).draining) == (9, 1)


def test_books_when_cache_pages_are_locked_then_protected_and_no_longer_evictable() -> None:
    desk = Desk()
    donate = KvMoved(PoolKind.FULL, Move.DONATE, REQUEST, CACHE, (1, 2, 3), StepNo(1), "")
    desk.tell(granted(1, 2, 3), donate, Protected((1, 2)))
    assert (full_books(desk).evictable, full_books(desk).protected) == (1, 2)
    desk.tell(Unprotected((1,)))
    assert (full_books(desk).evictable, full_books(desk).protected) == (2, 1)


def test_books_when_a_unit_is_quarantined_then_the_total_shrinks() -> None:
    desk = Desk()
    desk.tell(KvMoved(PoolKind.ROWS, Move.QUARANTINE, FREE, QUARANTINED, (2,), StepNo(1), ""))
    rows = desk.sink.read().samples[-1].pools[1]
    assert (rows.total, rows.available, rows.quarantined, rows.is_balanced) == (2, 2, 1, True)


# Turns and steps


def test_turns_when_they_come_in_and_are_retracted_then_running_and_waiting_are_told() -> None:
    desk = Desk()
    seen: list[tuple[int, int]] = []
    for event in (accepted(1), accepted(2), admitted(1), TurnRetracted(Rid(1), 0), admitted(2), ended(1), ended(2)):
        desk.tell(event)
        sample = desk.sink.read().samples[-1]
        seen.append((sample.turns_running, sample.turns_waiting))
    assert seen == [(0, 1), (0, 2), (1, 1), (0, 2), (1, 1), (1, 0), (0, 0)]
    assert desk.sink.read().totals.retractions == 1


def test_contexts_when_a_turn_comes_in_twice_then_counted_once() -> None:
    desk = Desk()
    desk.tell(accepted(1), admitted(1, slot=4, tree=3, computed=2), TurnRetracted(Rid(1), 0))
    desk.tell(admitted(1, attempt=2, computed=9))
    totals = desk.sink.read().totals
    assert (totals.tokens_from_slot, totals.tokens_from_tree, totals.tokens_to_compute) == (4, 3, 2)


def test_steps_when_answered_then_their_times_from_the_plan_on() -> None:
    desk = Desk()
    for step, took_s in enumerate((0.010, 0.030, 0.020), 1):
        desk.tell(StepPlanned(StepNo(step), 1, 5))
        desk.tell(StepAnswered(StepNo(step), "broke" if step == 2 else None), after_s=took_s)
    sample = desk.sink.read().samples[-1]
    assert (round(sample.step_ms_p50, 6), round(sample.step_ms_max, 6)) == (20.0, 30.0)
    assert (sample.steps, sample.steps_failed, sample.tokens_computed) == (3, 1, 10)
    assert (desk.sink.read().totals.steps, desk.sink.read().totals.steps_failed) == (3, 1)


def test_first_token_when_more_follow_then_only_the_first_is_timed() -> None:
    desk = Desk()
    desk.tell(accepted(1))
    desk.tell(TokensSampled(Rid(1), 0, (7,)), after_s=0.25)
    desk.tell(TokensSampled(Rid(1), 1, (7, 8)), after_s=0.5)
    sample = desk.sink.read().samples[-1]
    assert (sample.first_token_ms_p50, sample.first_token_ms_max, sample.tokens_generated) == (250.0, 250.0, 3)


@pytest.mark.parametrize("count", [1, 2, 1023, 1024, 1025, 50_000])
def test_spread_when_it_gets_more_values_than_it_keeps_then_median_is_near_and_maximum_exact(count: int) -> None:
    spread, values = Spread(), list(range(count))
    Random(count).shuffle(values)
    for value in values:
        spread.add(float(value))
    assert spread.max == count - 1
    assert abs(spread.median() - count / 2) <= 0.05 * count + 1


# The beginning


def test_begin_when_a_turn_warmed_up_before_then_books_stay_and_counts_do_not() -> None:
    desk = Desk()
    desk.tell(
        SessionOpened(SID, True, "", 1), accepted(1, SID), admitted(1), granted(1, 2), TokensSampled(Rid(1), 0, (7,))
    )
    desk.tell(accepted(2), admitted(2))
    desk.tell(ended(1), after_s=2.0)
    desk.sink.begin()
    history = desk.sink.read()
    (sample,) = history.samples
    assert (sample.pools[0].uncached, sample.sessions_open) == (2, 1)
    assert (sample.turns_ended, sample.tokens_generated, dict(sample.moves)) == (0, 0, {})
    assert (history.facts, history.facts_dropped, history.totals.turns_accepted) == ((), 0, 0)
    desk.tell(TurnRetracted(Rid(2), 0), admitted(2, attempt=2), ended(2))
    totals = desk.sink.read().totals
    assert (totals.endings, totals.retractions) == ({}, 0), "it was accepted before the beginning"
    assert (desk.sink.read().samples[-1].turns_running, desk.sink.read().samples[-1].turns_waiting) == (0, 0)


@pytest.mark.parametrize("pool", [PoolKind.FULL, PoolKind.SWA, PoolKind.MAMBA])
def test_read_when_units_of_one_pool_are_locked_or_drain_then_the_terms_of_that_pool_alone_change(
    pool: PoolKind,
) -> None:
    desk = Desk(dict.fromkeys(PoolKind, 11))
    moved = [KvMoved(kind, Move.GRANT, FREE, REQUEST, (1, 2, 3), StepNo(1), "") for kind in PoolKind]
    stored = [KvMoved(kind, Move.DONATE, REQUEST, CACHE, (1, 2), StepNo(1), "") for kind in PoolKind]
    desk.tell(
        *moved, *stored, Protected((1, 2), pool), Unprotected((2,), pool), Draining(REQUEST, (3,), StepNo(2), pool)
    )
    terms = {
        books.pool: (books.protected, books.evictable, books.draining) for books in desk.sink.read().samples[-1].pools
    }
    assert terms == {kind: (1, 1, 1) if kind is pool else (0, 2, 0) for kind in PoolKind}
    assert list(terms) == list(PoolKind)
