"""The log of KV events: numbers without gaps, whose units they are, what is kept, and who waits for more."""

import asyncio

import pytest

from engine.core.commands import AbortReason, FinishReason
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.events import (
    CoreEvent,
    Draining,
    KvMoved,
    Numbered,
    PrefixStored,
    Protected,
    SessionClosed,
    SessionOpened,
    SlotChanged,
    SlotState,
    StepPlanned,
    TurnAccepted,
    TurnEnded,
    Unprotected,
    Usage,
)
from engine.core.ids import Rid, SessionId, StepNo, TurnId
from engine.core.ownership import CACHE, FREE, Move, Owner, OwnerKind, PoolKind
from telemetry.kv.event_log import KvEventLog, KvRecord
from tests.sim.runner import run_seed
from tests.unit.telemetry.history_desk import UNIX_S, HandClock
from tests.unit.telemetry.test_history_replay import pool_sizes

REQUEST, SESSION = Owner(OwnerKind.REQUEST, 7), Owner(OwnerKind.SESSION, 3)
FULL = PoolKind.FULL
OPENED = SessionOpened(SessionId("chat"), True, "", 3)
ACCEPTED = TurnAccepted(Rid(7), TurnId("t1"), SessionId("chat"), 4, 4, 8, "")
ENDED = TurnEnded(Rid(7), TurnId("t1"), SessionId("chat"), FinishReason.STOP, Usage(4, 0, 0, 4), 8, True)
CLOSED = SessionClosed(SessionId("chat"), AbortReason.SESSION_CLOSED, 8, 3)
GONE = SlotChanged(SessionId("chat"), SlotState.HELD, SlotState.RELEASED, 0, 3)


def moved(move: Move, source: Owner, target: Owner, *pages: int) -> KvMoved:
    return KvMoved(FULL, move, source, target, pages or (1,), StepNo(1), "")


GRANTED = moved(Move.GRANT, FREE, REQUEST, 1, 2)


class LogDesk:
    """Tells a log, with the core's numbers."""

    def __init__(self, events_max: int = 16, units_max: int = 1000) -> None:
        self.wall = HandClock(UNIX_S)
        self.log = KvEventLog({FULL: 11}, "log-1", self.wall, events_max=events_max, units_max=units_max)
        self._seq = 0

    def tell(self, *events: CoreEvent) -> None:
        numbered = tuple(Numbered(self._seq + number, event) for number, event in enumerate(events, 1))
        self._seq += len(numbered)
        self.log.publish(numbered, 0.0)

    def kept(self) -> tuple[KvRecord, ...]:
        records = self.log.since(self.log.first_sequence)
        assert records is not None
        return records


def test_log_when_told_of_everything_then_only_changes_of_the_books_have_numbers() -> None:
    desk = LogDesk()
    stored = PrefixStored(FULL, (1,), b"")
    locks = Protected((1,)), Unprotected((1,))
    draining = Draining(REQUEST, (2,), StepNo(5))
    desk.tell(OPENED, ACCEPTED, StepPlanned(StepNo(4), 1, 4), GRANTED, stored)
    desk.wall.now_s += 1.5
    desk.tell(*locks, draining, ENDED)
    facts = [(record.sequence, record.step, record.time_s, record.fact) for record in desk.kept()]
    assert facts == [
        (1, 4, UNIX_S, GRANTED),
        (2, 4, UNIX_S + 1.5, locks[0]),
        (3, 4, UNIX_S + 1.5, locks[1]),
        (4, 4, UNIX_S + 1.5, draining),
    ]
    assert (desk.log.last_sequence, desk.log.last_core_seq) == (4, 9), "the core numbers all that it tells"


def test_log_when_nothing_was_told_then_it_stands_before_the_first_event() -> None:
    log = LogDesk().log
    assert (log.last_sequence, log.last_core_seq, log.first_sequence) == (0, 0, 1)
    assert log.since(1) == ()
    assert log.since(2) is None


def test_log_when_full_then_the_oldest_events_go_and_readers_of_them_are_told() -> None:
    desk = LogDesk(events_max=4)
    for page in range(1, 11):
        desk.tell(Protected((page,)))
    assert [record.sequence for record in desk.kept()] == [7, 8, 9, 10]
    assert [record.fact.pages for record in desk.kept()] == [(7,), (8,), (9,), (10,)]
    assert desk.log.since(6) is None
    assert desk.log.since(11) == (), "the next one is not told yet"
    assert desk.log.since(12) is None, "the log has not come so far"


def test_log_when_events_name_many_units_then_fewer_are_kept_but_always_the_newest() -> None:
    desk = LogDesk(units_max=10)
    for _ in range(4):
        desk.tell(Protected((1, 2, 3, 4)))
    assert [record.sequence for record in desk.kept()] == [3, 4]
    desk.tell(Protected(tuple(range(1, 20))))
    assert [record.sequence for record in desk.kept()] == [5]
    desk.tell(Protected((1,)))
    assert [record.sequence for record in desk.kept()] == [6]


def test_since_when_a_count_is_given_then_no_more_than_that_from_there_on() -> None:
    desk = LogDesk()
    desk.tell(*(Protected((page,)) for page in range(1, 7)))
    assert [record.sequence for record in desk.log.since(3, 2) or ()] == [3, 4]
    assert [record.sequence for record in desk.log.since(6, 2) or ()] == [6]


def test_names_when_units_move_then_of_the_turn_and_its_session_or_of_the_session_alone() -> None:
    desk = LogDesk()
    demoted = moved(Move.DEMOTE, SESSION, CACHE)
    evicted = moved(Move.EVICT, CACHE, FREE)
    desk.tell(OPENED, ACCEPTED, GRANTED, moved(Move.PARK, REQUEST, SESSION, 1, 2), demoted, evicted)
    names = [
        (record.fact.move, record.session_id, record.turn_id)
        for record in desk.kept()
        if isinstance(record.fact, KvMoved)
    ]
    assert names == [
        (Move.GRANT, "chat", "t1"),
        (Move.PARK, "chat", "t1"),
        (Move.DEMOTE, "chat", ""),
        (Move.EVICT, "", ""),
    ]


def test_names_when_turn_and_session_have_ended_then_kept_until_their_last_units_are_gone() -> None:
    desk = LogDesk()
    desk.tell(OPENED, ACCEPTED, GRANTED, ENDED, CLOSED)
    desk.tell(moved(Move.PARK, REQUEST, SESSION, 1), moved(Move.RELEASE, SESSION, FREE, 1), GONE)
    desk.tell(moved(Move.RELEASE, REQUEST, FREE, 2))
    assert [(record.session_id, record.turn_id) for record in desk.kept()] == [
        ("chat", "t1"),
        ("chat", "t1"),
        ("chat", ""),
        ("chat", "t1"),
    ]
    desk.tell(moved(Move.RELEASE, REQUEST, FREE, 2), moved(Move.RELEASE, SESSION, FREE, 1))
    assert [(record.session_id, record.turn_id) for record in desk.kept()[-2:]] == [("", ""), ("", "")]


def test_names_when_turns_without_a_session_end_then_their_own_name_alone() -> None:
    desk = LogDesk()
    desk.tell(TurnAccepted(Rid(7), TurnId("alone"), None, 4, 4, 8, ""), GRANTED)
    assert [(record.session_id, record.turn_id) for record in desk.kept()] == [("", "alone")]


class LoggedCore(Core):
    """Tells a log all that it tells its world."""

    def __init__(self, config: CoreConfig) -> None:
        super().__init__(config)
        self.log = KvEventLog(pool_sizes(config), "sim")

    def take_events(self) -> tuple[Numbered, ...]:
        events = super().take_events()
        self.log.publish(events, 0.0)
        assert self.log.last_core_seq == self.image().seq
        return events


@pytest.mark.parametrize("seed", range(8))
def test_names_when_a_world_is_busy_then_every_owner_of_moved_units_has_one(seed: int) -> None:
    cores: list[LoggedCore] = []

    def make(config: CoreConfig) -> Core:
        cores.append(LoggedCore(config))
        return cores[-1]

    assert run_seed(seed, make).failure is None
    records = cores[0].log.since(1)
    assert records, "a seed tells fewer events than are kept"
    assert [record.sequence for record in records] == list(range(1, cores[0].log.last_sequence + 1))
    for record in records:
        if isinstance(record.fact, KvMoved):
            owners = record.fact.source, record.fact.target
            kinds = {owner.kind for owner in owners}
            assert bool(record.turn_id) == (OwnerKind.REQUEST in kinds), record
            assert record.session_id or OwnerKind.SESSION not in kinds, record


async def test_wait_when_the_event_is_told_already_then_at_once() -> None:
    desk = LogDesk()
    desk.tell(GRANTED)
    assert await desk.log.wait_for(1)


async def test_wait_when_several_wait_then_each_goes_on_with_its_own_event() -> None:
    desk = LogDesk()
    waiting = [asyncio.create_task(desk.log.wait_for(sequence)) for sequence in (1, 1, 3)]
    await asyncio.sleep(0)
    desk.tell(OPENED)
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting), "nothing about the books was told"
    desk.tell(GRANTED, Protected((1,)))
    assert await waiting[0]
    assert await waiting[1]
    assert not waiting[2].done()
    desk.tell(Unprotected((1,)))
    assert await waiting[2]


async def test_wait_when_a_reader_leaves_then_the_others_are_still_told() -> None:
    desk = LogDesk()
    leaving, staying = (asyncio.create_task(desk.log.wait_for(1)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    desk.tell(GRANTED)
    assert await staying
    with pytest.raises(asyncio.CancelledError):
        await leaving


async def test_wait_when_the_log_is_closed_then_false_for_what_will_never_be_told() -> None:
    desk = LogDesk()
    desk.tell(GRANTED)
    waiting = asyncio.create_task(desk.log.wait_for(2))
    await asyncio.sleep(0)
    desk.log.close()
    assert not await waiting
    assert not await desk.log.wait_for(2)
    assert await desk.log.wait_for(1), "what was told can still be read"


async def test_close_when_waited_for_then_told_or_the_time_is_over() -> None:
    desk = LogDesk()
    assert not desk.log.is_closed
    assert not await desk.log.wait_closed(0.0)
    waiting = asyncio.create_task(desk.log.wait_closed(60.0))
    await asyncio.sleep(0)
    desk.log.close()
    assert await waiting
    assert await desk.log.wait_closed(0.0)
    assert desk.log.is_closed
