"""What the metrics sink counts, from when on, and that who reads sees whole states only."""

import pytest

from engine.core.commands import AbortReason, FinishReason
from engine.core.events import (
    CommitRequested,
    CoreEvent,
    Draining,
    KvMoved,
    Numbered,
    Protected,
    SessionClosed,
    SessionOpened,
    SessionTruncated,
    SlotChanged,
    SlotState,
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
from engine.runtime.step_times import StepTimes
from telemetry.metrics.buckets import BucketCounts
from telemetry.metrics.sink import MetricsSink

SIZES = {PoolKind.FULL: 11, PoolKind.ROWS: 4}
SID = SessionId("s")
REQUEST = Owner(OwnerKind.REQUEST, 1)


class Desk:
    """Tells the sink, at a time that is set by hand."""

    def __init__(self, *, is_serving: bool = True) -> None:
        self.sink = MetricsSink(SIZES, "m", {})
        self.now_s = 100.0
        if is_serving:
            self.sink.begin()

    def tell(self, *events: CoreEvent, after_s: float = 0.0) -> None:
        self.now_s += after_s
        self.sink.publish(tuple(Numbered(seq, event) for seq, event in enumerate(events, 1)), self.now_s)


def accepted(rid: int) -> TurnAccepted:
    return TurnAccepted(Rid(rid), TurnId(f"t{rid}"), None, context_len=9, new_len=9, max_tokens=4, trace_id="")


def admitted(rid: int, attempt: int = 1) -> TurnAdmitted:
    return TurnAdmitted(Rid(rid), attempt, tokens_from_slot=1, tokens_from_tree=2, tokens_to_compute=6)


def sampled(rid: int, start: int, count: int = 1) -> TokensSampled:
    return TokensSampled(Rid(rid), start, (7,) * count)


def ended(rid: int, outcome: FinishReason | AbortReason = FinishReason.STOP, output_len: int = 3) -> TurnEnded:
    usage = Usage(9, 1, 2, 6, output_len=output_len)
    return TurnEnded(Rid(rid), TurnId(f"t{rid}"), None, outcome, usage, None, is_committed=True)


def moved(move: Move, source: Owner, target: Owner, *pages: int) -> KvMoved:
    return KvMoved(PoolKind.FULL, move, source, target, pages, StepNo(1), "")


def only(buckets: BucketCounts) -> float:
    """The one value that was added."""
    read = buckets.read()
    assert read.num_values == 1
    return read.total


# Pools


def test_pools_when_units_move_then_each_term_and_the_moves_by_kind_and_pool() -> None:
    desk = Desk()
    desk.tell(
        moved(Move.GRANT, FREE, REQUEST, 1, 2, 3, 4),
        moved(Move.DONATE, REQUEST, CACHE, 1, 2),
        Protected((1,)),
        Draining(REQUEST, (3,), StepNo(2)),
        moved(Move.QUARANTINE, REQUEST, QUARANTINED, 4),
    )
    reading = desk.sink.reading
    books = reading.pools[0]
    assert (books.available, books.uncached, books.evictable, books.protected) == (6, 1, 1, 1)
    assert (books.draining, books.quarantined, books.total, books.is_balanced) == (1, 1, 9, True)
    assert reading.moves[Move.GRANT, PoolKind.FULL] == 1
    assert reading.moved_units[Move.GRANT, PoolKind.FULL] == 4
    assert reading.moves[Move.GRANT, PoolKind.ROWS] == 0
    assert reading.kv_events == 5


def test_pools_when_a_lock_is_gone_then_evictable_again() -> None:
    desk = Desk()
    desk.tell(moved(Move.GRANT, FREE, REQUEST, 1), moved(Move.DONATE, REQUEST, CACHE, 1), Protected((1,)))
    desk.tell(Unprotected((1,)))
    books = desk.sink.reading.pools[0]
    assert (books.evictable, books.protected) == (1, 0)


def test_reading_when_more_is_told_then_the_older_one_stays_as_it_was() -> None:
    desk = Desk()
    desk.tell(moved(Move.GRANT, FREE, REQUEST, 1), ended(1))
    before = desk.sink.reading
    as_it_was = before.pools, dict(before.moves), dict(before.endings), dict(before.sessions_closed)
    desk.tell(
        moved(Move.RELEASE, REQUEST, FREE, 1),
        accepted(2),
        ended(2),
        SessionOpened(SID, True, "", 1),
        SessionClosed(SID, AbortReason.SESSION_CLOSED, 0, 1),
    )
    assert (before.pools, before.moves, before.endings, before.sessions_closed) == as_it_was
    assert desk.sink.reading.pools != before.pools


def test_moves_when_nothing_has_moved_then_each_that_a_pool_can_have_is_there_with_0() -> None:
    reading = Desk().sink.reading
    assert set(reading.moves) == set(reading.moved_units)
    assert {move for move, pool in reading.moves if pool is PoolKind.FULL} == set(Move)
    no_rows = {Move.DONATE, Move.PUBLISH, Move.DEMOTE, Move.EVICT}
    assert {move for move, pool in reading.moves if pool is PoolKind.ROWS} == set(Move) - no_rows


def test_demotions_when_a_slot_loses_its_kv_then_counted_and_not_when_it_is_cut() -> None:
    desk = Desk()
    demoted = SlotChanged(SID, SlotState.HELD, SlotState.DEMOTED, 0, 1)
    desk.tell(demoted)
    desk.tell(demoted, SessionTruncated(SID, 1, 0, 0))
    desk.tell(SlotChanged(SID, SlotState.EMPTY, SlotState.DEMOTED, 0, 1))
    assert desk.sink.reading.demotions == 1


# Turns


def test_turns_when_they_come_wait_run_are_retracted_and_end_then_told_at_each_time() -> None:
    desk = Desk()
    seen: list[tuple[int, int, int]] = []
    for event in (accepted(1), accepted(2), admitted(1), TurnRetracted(Rid(1), 0), admitted(2), ended(1), ended(2)):
        desk.tell(event)
        reading = desk.sink.reading
        seen.append((reading.turns_waiting, reading.turns_running, reading.endings["stop"]))
    assert seen == [(1, 0, 0), (2, 0, 0), (1, 1, 0), (2, 0, 0), (1, 1, 0), (0, 1, 1), (0, 0, 2)]
    assert (desk.sink.reading.turns_accepted, desk.sink.reading.retractions) == (2, 1)


@pytest.mark.parametrize("outcome", [*FinishReason, *AbortReason])
def test_endings_when_a_turn_ends_then_counted_by_its_outcome_alone(outcome: FinishReason | AbortReason) -> None:
    desk = Desk()
    desk.tell(accepted(1), ended(1, outcome))
    endings = desk.sink.reading.endings
    assert {name for name, count in endings.items() if count} == {outcome}
    assert set(endings) == {*FinishReason, *AbortReason}


def test_prompt_tokens_when_a_turn_is_admitted_again_then_counted_once() -> None:
    desk = Desk()
    desk.tell(accepted(1), admitted(1), TurnRetracted(Rid(1), 0), admitted(1, attempt=2))
    reading = desk.sink.reading
    assert (reading.tokens_from_slot, reading.tokens_from_tree, reading.tokens_to_compute) == (1, 2, 6)


def test_times_when_a_turn_is_served_then_first_token_later_tokens_and_all_of_it() -> None:
    desk = Desk()
    desk.tell(accepted(1))
    desk.tell(admitted(1), after_s=1.0)
    desk.tell(sampled(1, 0), after_s=2.0)
    desk.tell(sampled(1, 1), after_s=0.5)
    desk.tell(sampled(1, 2), CommitRequested(Rid(1), FinishReason.STOP, 3), after_s=0.5)
    desk.tell(ended(1), after_s=4.0)
    times = desk.sink.turn_times
    assert only(times.first_token) == 3.0
    assert only(times.output_token) == 0.5, "what storing takes is no time of a token"
    assert only(times.duration) == 8.0
    assert desk.sink.reading.tokens_generated == 3


def test_times_when_a_turn_is_broken_off_then_its_duration_goes_by_the_reason() -> None:
    desk = Desk()
    desk.tell(accepted(1))
    desk.tell(ended(1, AbortReason.DEADLINE, output_len=0), after_s=2.0)
    times = desk.sink.turn_times
    assert only(times.broken_off[AbortReason.DEADLINE]) == 2.0
    assert [times.duration.read().num_values, times.first_token.read().num_values] == [0, 0]


def test_times_when_an_answer_has_one_token_then_none_of_a_later_token() -> None:
    desk = Desk()
    desk.tell(accepted(1), admitted(1), sampled(1, 0), ended(1, output_len=1))
    assert desk.sink.turn_times.output_token.read().num_values == 0


# Sessions and steps


def test_sessions_when_opened_and_closed_then_by_reason_and_how_many_are_open() -> None:
    desk = Desk()
    desk.tell(SessionOpened(SID, True, "", 1), SessionOpened(SessionId("o"), True, "", 2))
    desk.tell(SessionClosed(SID, AbortReason.SESSION_EXPIRED, 0, 1))
    reading = desk.sink.reading
    assert (reading.sessions_opened, reading.sessions_open) == (2, 1)
    assert reading.sessions_closed == {"session_closed": 0, "session_expired": 1}


def test_steps_when_one_of_two_fails_then_both_counted_and_one_as_failed() -> None:
    desk = Desk()
    for step, failure in ((1, None), (2, "broke")):
        desk.tell(StepPlanned(StepNo(step), 1, 1), StepAnswered(StepNo(step), failure))
    assert (desk.sink.reading.steps, desk.sink.reading.steps_failed) == (2, 1)


def test_step_times_when_the_device_does_not_say_then_only_the_hosts() -> None:
    desk = Desk()
    desk.sink.step_timed(StepTimes(StepNo(1), 0.25, None))
    assert only(desk.sink.host_s) == 0.25
    assert desk.sink.device_s.read().num_values == 0


# Before it serves


def test_counts_when_it_has_not_begun_then_books_and_open_sessions_alone() -> None:
    desk = Desk(is_serving=False)
    desk.tell(
        SessionOpened(SID, True, "", 1),
        moved(Move.GRANT, FREE, REQUEST, 1),
        accepted(1),
        admitted(1),
        StepPlanned(StepNo(1), 1, 9),
        sampled(1, 0),
        StepAnswered(StepNo(1), None),
        ended(1),
    )
    desk.sink.step_timed(StepTimes(StepNo(1), 0.1, 0.1))
    desk.sink.lag_measured(0.1)
    reading = desk.sink.reading
    assert reading.pools[0].uncached == 1
    assert (reading.kv_events, reading.sessions_open) == (1, 1)
    counts = (reading.turns_accepted, reading.tokens_generated, reading.steps, reading.sessions_opened)
    assert counts == (0, 0, 0, 0)
    assert not any(reading.moves.values())
    assert not any(reading.endings.values())
    assert reading.tokens_to_compute == 0
    times = desk.sink.turn_times
    all_times = (times.first_token, times.duration, desk.sink.host_s, desk.sink.device_s, desk.sink.lag_s)
    assert not any(buckets.read().num_values for buckets in all_times)


def test_begin_when_a_turn_and_a_step_are_still_alive_then_their_ends_are_not_counted() -> None:
    desk = Desk(is_serving=False)
    desk.tell(accepted(1), admitted(1), StepPlanned(StepNo(1), 1, 9))
    desk.sink.begin()
    desk.tell(StepAnswered(StepNo(1), None), sampled(1, 0), TurnRetracted(Rid(1), 1), ended(1))
    desk.sink.step_timed(StepTimes(StepNo(1), 0.1, 0.1))
    reading = desk.sink.reading
    assert (reading.steps, reading.endings["stop"], reading.retractions) == (0, 0, 0)
    assert (reading.turns_waiting, reading.turns_running) == (0, 0)
    assert desk.sink.host_s.read().num_values == desk.sink.turn_times.first_token.read().num_values == 0
    desk.tell(StepPlanned(StepNo(2), 1, 1), StepAnswered(StepNo(2), None))
    assert desk.sink.reading.steps == 1
