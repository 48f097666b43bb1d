"""Books that are kept from events alone: what each of them does, and what can not be."""

from dataclasses import replace

import pytest

from services.client import (
    KvBooks,
    KvBooksError,
    KvBooksImage,
    KvEventInfo,
    KvGapError,
    KvTerms,
    KvWhat,
    Pool,
    PoolImage,
    PoolStats,
    UnitOwner,
)

FREE, CACHE, QUARANTINED = UnitOwner("free"), UnitOwner("cache"), UnitOwner("quarantined")
TURN, SESSION = UnitOwner("request", 7), UnitOwner("session", 3)
FIRST = 11
"""The first event after the image."""
IMAGE = KvBooksImage(
    log_id="log-1",
    sequence=FIRST - 1,
    time_s=0.0,
    pools=(
        # unit:               0     1     2     3     4      5        6     7
        PoolImage("full", (FREE, FREE, TURN, TURN, CACHE, CACHE, SESSION, FREE), frozenset({4}), frozenset({3})),
        PoolImage("rows", (FREE, FREE, TURN), frozenset(), frozenset()),
    ),
)


def event(what: KvWhat, *units: int, sequence: int = FIRST, pool: str = "full") -> KvEventInfo:
    return KvEventInfo(sequence, 0.0, 1, pool, units, what)


def move(source: UnitOwner, target: UnitOwner, *units: int, sequence: int = FIRST) -> KvEventInfo:
    return replace(event(KvWhat.MOVED, *units, sequence=sequence), source=source, target=target)


def drain(owner: UnitOwner, *units: int) -> KvEventInfo:
    return replace(event(KvWhat.DRAINING, *units), source=owner)


def terms(**counts: int) -> KvTerms:
    before = KvTerms(7, 2, 1, 1, 1, 2, 1, 0)
    return replace(before, **counts)


def test_books_when_made_of_an_image_then_its_owners_and_terms() -> None:
    books = KvBooks(IMAGE)
    assert books.kinds == ("full", "rows")
    assert books.owner("full", 6) == SESSION
    assert books.owners("rows") == (FREE, FREE, TURN)
    assert books.terms("full") == terms()
    assert books.image("full") == IMAGE.pools[0]


@pytest.mark.parametrize(
    ("applied", "expected"),
    [
        (move(FREE, TURN, 1, 7), terms(available=0, uncached=4)),
        (move(TURN, SESSION, 2), terms(uncached=1, session_held=2)),
        (move(TURN, SESSION, 2, 3), terms(uncached=0, session_held=3, draining=0)),
        (move(CACHE, FREE, 5), terms(evictable=0, available=3)),
        (move(SESSION, QUARANTINED, 6), terms(session_held=0, quarantined=1, total=6)),
        (event(KvWhat.PROTECTED, 5), terms(evictable=0, protected=2)),
        (event(KvWhat.UNPROTECTED, 4), terms(evictable=2, protected=0)),
        (drain(SESSION, 6), terms(draining=2)),
    ],
)
def test_apply_when_an_event_follows_then_the_terms_follow_it(applied: KvEventInfo, expected: KvTerms) -> None:
    books = KvBooks(IMAGE)
    books.apply(applied)
    assert books.terms("full") == expected
    assert books.terms("rows") == KvBooks(IMAGE).terms("rows")
    assert books.sequence == FIRST


def test_draining_when_the_units_move_then_it_ends_and_they_may_drain_again() -> None:
    books = KvBooks(IMAGE)
    books.apply(move(TURN, FREE, 3))
    assert books.image("full").draining == frozenset()
    books.apply(move(FREE, TURN, 3, sequence=FIRST + 1))
    books.apply(replace(drain(TURN, 3), sequence=FIRST + 2))
    assert books.image("full").draining == {3}


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (move(TURN, FREE, 6), "full 6 is of session 3, not of request 7"),
        (move(UnitOwner("request", 8), FREE, 2), "full 2 is of request 7, not of request 8"),
        (move(CACHE, FREE, 4), "full 4 is protected, and can not move"),
        (move(FREE, TURN, 1, 1), "names a unit of full twice"),
        (move(FREE, TURN, 0), "full 0 is no unit of it"),
        (move(FREE, TURN, 8), "full 8 is no unit of it"),
        (event(KvWhat.PROTECTED, 4), "full 4 is protected already"),
        (event(KvWhat.PROTECTED, 2), "full 2 is of request 7, not of cache"),
        (event(KvWhat.UNPROTECTED, 4, 5), "full 5 is not protected"),
        (drain(TURN, 2, 3), "full 3 is draining already"),
        (drain(TURN, 6), "full 6 is of session 3, not of request 7"),
        (event(KvWhat.UNKNOWN, 1), "says what this client does not know"),
        (event(KvWhat.PROTECTED, 1, pool="swa"), "there is no pool swa"),
    ],
)
def test_apply_when_an_event_can_not_be_then_said_which_and_why(wrong: KvEventInfo, problem: str) -> None:
    books = KvBooks(IMAGE)
    with pytest.raises(KvBooksError) as caught:
        books.apply(wrong)
    assert (caught.value.sequence, caught.value.problem) == (FIRST, problem)
    assert not isinstance(caught.value, KvGapError)
    assert books.sequence == FIRST - 1


@pytest.mark.parametrize("sequence", [FIRST - 1, FIRST + 1])
def test_apply_when_events_are_missing_or_come_twice_then_a_gap_is_named(sequence: int) -> None:
    books = KvBooks(IMAGE)
    with pytest.raises(KvGapError, match=f"event {sequence}: follows 10; 11 was to come") as caught:
        books.apply(move(FREE, TURN, 1, sequence=sequence))
    assert caught.value.expected == FIRST
    assert books.terms("full") == terms()


def test_apply_when_books_come_anew_then_everything_is_as_they_say() -> None:
    books = KvBooks(IMAGE)
    pool = PoolImage("full", (FREE, CACHE), frozenset({1}), frozenset())
    books.apply(KvBooksImage("log-2", 500, 0.0, (pool,)))
    assert (books.log_id, books.sequence, books.kinds) == ("log-2", 500, ("full",))
    books.apply(event(KvWhat.UNPROTECTED, 1, sequence=501))
    assert books.terms("full") == KvTerms(1, 0, 1, 0, 0, 0, 0, 0)


def stats(available: int) -> PoolStats:
    full = Pool("full", 7, available, 1, 1, 1, 2, 1, 0, 4)
    rows = Pool("rows", 2, 1, 0, 0, 0, 1, 0, 0, 0)
    return PoolStats((full, rows), 1, 1, 0, 1, 0, 3, 1, True, FIRST - 1, "log-1")


def test_differences_when_the_server_says_the_same_then_none_else_each_is_named() -> None:
    books = KvBooks(IMAGE)
    assert books.find_differences(stats(2)) == ()
    assert books.find_differences(stats(3)) == ("full: available 3, but 2 by the events",)
    rowless = replace(stats(2), pools=stats(2).pools[:1])
    assert books.find_differences(rowless) == ("pools full, but full, rows by the events",)
