"""The second set of books: adds up after legal events, and refuses a stream that contradicts itself."""

import pytest

from engine.core.events import CoreEvent, Draining, KvMoved, Protected, StepAnswered, Unprotected
from engine.core.ids import StepNo
from engine.core.ownership import CACHE, FREE, QUARANTINED, Move, Owner, OwnerKind, PoolKind
from engine.core.snapshot import PoolBooks
from tests.kit.book import Book, BookError

ALICE = Owner(OwnerKind.REQUEST, 1)
BOB = Owner(OwnerKind.REQUEST, 2)
SESSION = Owner(OwnerKind.SESSION, 1)


def moved(move: Move, source: Owner, target: Owner, *pages: int) -> KvMoved:
    return KvMoved(PoolKind.FULL, move, source, target, pages, StepNo(0), "")


GRANTED = moved(Move.GRANT, FREE, ALICE, 1, 2, 3, 4)
STORED = moved(Move.DONATE, ALICE, CACHE, 1, 2)


def test_terms_when_events_are_replayed_then_each_unit_is_in_one_term() -> None:
    book = Book(pool_pages=8, num_rows=3)
    parked = moved(Move.PARK, ALICE, SESSION, 3)
    book.replay((GRANTED, STORED, Protected((1,)), parked, Draining(ALICE, (4,), StepNo(1))))
    book.replay((moved(Move.QUARANTINE, FREE, QUARANTINED, 7),))
    assert book.terms(PoolKind.FULL) == PoolBooks(
        pool=PoolKind.FULL,
        total=6,
        available=2,
        evictable=1,
        protected=1,
        session_held=1,
        uncached=1,
        draining=1,
        quarantined=1,
    )
    assert book.terms(PoolKind.ROWS).available == 2


@pytest.mark.parametrize(
    "event",
    [
        moved(Move.GRANT, FREE, BOB, 3),
        moved(Move.RELEASE, BOB, FREE, 3),
        moved(Move.RELEASE, ALICE, FREE, 3, 3),
        moved(Move.RELEASE, ALICE, FREE, 0),
        moved(Move.RELEASE, ALICE, FREE, 8),
        moved(Move.RELEASE, ALICE, FREE),
        moved(Move.EVICT, CACHE, FREE, 1),
        moved(Move.DEMOTE, ALICE, CACHE, 3),
        moved(Move.RELEASE, ALICE, FREE, 4),
        Protected((1,)),
        Protected((3,)),
        Unprotected((2,)),
        Draining(BOB, (3,), StepNo(1)),
        Draining(ALICE, (4,), StepNo(1)),
        StepAnswered(StepNo(2), None),
    ],
    ids=[
        "granted twice",
        "wrong owner",
        "same page twice",
        "padding",
        "past the end",
        "nothing",
        "evicted while locked",
        "no such source",
        "released while draining",
        "locked twice",
        "lock of an uncached page",
        "unlocked twice",
        "drains from another",
        "drains twice",
        "answered out of order",
    ],
)
def test_replay_when_event_contradicts_earlier_ones_then_raises(event: CoreEvent) -> None:
    book = Book(pool_pages=8, num_rows=3)
    book.replay((GRANTED, STORED, Protected((1,)), Draining(ALICE, (4,), StepNo(1))))
    with pytest.raises(BookError):
        book.replay((event,))


def test_replay_when_drained_step_is_answered_then_page_may_leave() -> None:
    book = Book(pool_pages=8, num_rows=3)
    book.replay((GRANTED, Draining(ALICE, (4,), StepNo(1)), StepAnswered(StepNo(1), None)))
    book.replay((moved(Move.RELEASE, ALICE, FREE, 4),))
    assert book.terms(PoolKind.FULL).draining == 0
