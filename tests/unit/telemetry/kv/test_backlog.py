"""What waits to be published, and the batches that are kept: both bounded."""

from telemetry.kv.backlog import Backlog, ReplayBuffer, Told
from telemetry.kv.bell import Bell
from telemetry.kv.prefix_index import Emptied


def told(num_changes: int) -> Told:
    return Told(0.0, (Emptied(),) * num_changes)


def test_backlog_when_full_then_refuses_until_something_was_taken() -> None:
    backlog = Backlog(changes_max=4)
    assert backlog.put(told(3))
    assert not backlog.put(told(2))
    assert backlog.put(told(1))
    assert backlog.num_waiting == 4
    assert backlog.take() == told(3)
    assert backlog.put(told(3))
    assert [backlog.take(), backlog.take(), backlog.take()] == [told(1), told(3), None]


def test_backlog_when_one_publish_is_larger_than_it_then_taken_while_nothing_waits() -> None:
    backlog = Backlog(changes_max=4)
    assert backlog.put(told(9))
    assert not backlog.put(told(1))


def test_backlog_when_half_of_it_is_free_after_a_refusal_then_says_so_once() -> None:
    backlog = Backlog(changes_max=4)
    for _ in range(4):
        backlog.put(told(1))
    assert not backlog.take_news_of_room()
    backlog.put(told(1))
    said: list[tuple[bool, bool]] = []
    for _ in range(3):
        backlog.take()
        said.append((backlog.has_room, backlog.take_news_of_room()))
    assert said == [(False, False), (True, True), (True, False)]


def test_backlog_when_room_is_wanted_then_said_at_once_or_later_be_it_that_nothing_was_refused() -> None:
    backlog = Backlog(changes_max=4)
    assert backlog.want_room()
    assert not backlog.take_news_of_room()
    for _ in range(3):
        backlog.put(told(1))
    assert not backlog.want_room()
    assert not backlog.take_news_of_room()
    backlog.take()
    assert [backlog.take_news_of_room(), backlog.take_news_of_room()] == [True, False]


def test_backlog_when_it_overflows_while_the_other_side_looks_then_the_news_of_that_are_not_lost() -> None:
    class Racing(Backlog):
        """The other thread fills it the moment after room was seen."""

        is_racing = False

        @property
        def has_room(self) -> bool:
            had_room = super().has_room
            if self.is_racing:
                self.is_racing = False
                while self.put(told(1)):
                    pass
            return had_room

    backlog = Racing(changes_max=4)
    while backlog.put(told(1)):
        pass
    for _ in range(2):
        backlog.take()
    backlog.is_racing = True
    assert backlog.take_news_of_room()
    assert not backlog.take_news_of_room(), "it is full"
    for _ in range(2):
        backlog.take()
    assert backlog.take_news_of_room()


def test_backlog_when_cleared_then_counted_and_empty() -> None:
    backlog = Backlog(changes_max=4)
    assert backlog.clear() == 0
    backlog.put(told(1))
    backlog.put(told(3))
    assert backlog.clear() == 4
    assert (backlog.take(), backlog.num_waiting) == (None, 0)


def test_buffer_when_more_batches_come_than_it_keeps_then_the_oldest_go() -> None:
    kept = ReplayBuffer(batches_max=3)
    assert [kept.add(bytes([at])) for at in range(5)] == [0, 1, 2, 3, 4]
    assert (kept.first, kept.next) == (2, 5)
    assert [kept.find(at) for at in range(6)] == [None, None, b"\2", b"\3", b"\4", None]


def test_buffer_when_batches_are_large_then_bounded_by_bytes_but_never_without_the_newest() -> None:
    kept = ReplayBuffer(bytes_max=10)
    kept.add(b"x" * 6)
    kept.add(b"y" * 6)
    assert kept.first == 1
    kept.add(b"z" * 60)
    assert (kept.first, kept.find(2)) == (2, b"z" * 60)
    kept.add(b"a")
    assert (kept.first, kept.find(3)) == (3, b"a")


def test_bell_when_rung_more_often_than_a_pipe_holds_or_after_its_end_then_never_waits() -> None:
    bell = Bell()
    for _ in range(100_000):
        bell.ring()
    bell.silence()
    bell.close()
    bell.close()
    bell.ring()
