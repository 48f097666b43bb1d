"""Sending missed batches again, over a socket by hand: in turns, in order, and never for ever."""

from collections import deque
from dataclasses import dataclass, field

import zmq

from telemetry.kv.backlog import ReplayBuffer
from telemetry.kv.replay import ASKED_MAX, STALLED_S, STUCK_S, TURN_BATCHES, Replayer

END = (None, b"")


@dataclass(slots=True)
class Router:
    """Takes what is sent, unless it is full or the other side is gone."""

    asked: deque[list[bytes]] = field(default_factory=deque)
    sent: list[tuple[bytes, int | None, bytes]] = field(default_factory=list)
    """To whom, which number (None: the end), what."""
    is_full: bool = False
    is_gone: bool = False

    def recv_multipart(self, flags: int) -> list[bytes]:
        assert flags == zmq.NOBLOCK
        if not self.asked:
            raise zmq.Again
        return self.asked.popleft()

    def send_multipart(self, msg_parts: list[bytes], flags: int) -> None:
        assert flags == zmq.NOBLOCK
        if self.is_gone:
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        if self.is_full:
            raise zmq.Again
        to, empty, number, payload = msg_parts
        assert empty == b""
        is_end = number == b"\xff" * 8
        self.sent.append((to, None if is_end else int.from_bytes(number, "big"), payload))

    def ask(self, who: bytes, start: int) -> None:
        self.asked.append([who, b"", start.to_bytes(8, "big")])

    def sent_to(self, who: bytes) -> list[int | None]:
        return [number for to, number, _ in self.sent if to == who]


class HandClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s


@dataclass(slots=True)
class Desk:
    router: Router
    kept: ReplayBuffer
    clock: HandClock
    replayer: Replayer


def make_desk(num_batches: int, batches_max: int = 10_000) -> Desk:
    router, kept, clock = Router(), ReplayBuffer(batches_max), HandClock()
    for number in range(num_batches):
        kept.add(b"%d" % number)
    return Desk(router, kept, clock, Replayer(router, kept, clock))


def test_replay_when_asked_from_a_number_then_all_from_there_and_the_end() -> None:
    desk = make_desk(5)
    desk.router.ask(b"a", 3)
    waits = [desk.replayer.wait_s]
    desk.replayer.hear()
    waits.append(desk.replayer.wait_s)
    desk.replayer.send()
    assert desk.router.sent == [(b"a", 3, b"3"), (b"a", 4, b"4"), (b"a", *END)]
    assert [*waits, desk.replayer.wait_s] == [None, 0.0, None]
    assert not desk.replayer.take_lateness()


def test_replay_when_nothing_is_there_then_the_end_at_once() -> None:
    desk = make_desk(0)
    desk.router.ask(b"a", 0)
    desk.router.ask(b"b", (1 << 64) - 1)
    desk.replayer.hear()
    desk.replayer.send()
    assert desk.router.sent == [(b"a", *END), (b"b", *END)]


def test_replay_when_it_is_long_then_some_in_each_turn_and_shared_by_all_that_ask() -> None:
    desk = make_desk(1000)
    for who in (b"a", b"b"):
        desk.router.ask(who, 0)
    desk.replayer.hear()
    desk.replayer.send()
    assert len(desk.router.sent) == TURN_BATCHES
    assert desk.router.sent_to(b"a") == desk.router.sent_to(b"b") == list(range(TURN_BATCHES // 2))


def test_replay_when_batches_come_meanwhile_then_it_ends_where_it_was_when_asked() -> None:
    desk = make_desk(TURN_BATCHES + 1)
    desk.router.ask(b"a", 0)
    desk.replayer.hear()
    desk.replayer.send()
    desk.kept.add(b"new")
    desk.replayer.send()
    assert desk.router.sent_to(b"a") == [*range(TURN_BATCHES + 1), None]


def test_replay_when_somebody_asks_twice_then_one_answer_after_the_other() -> None:
    desk = make_desk(TURN_BATCHES)
    desk.router.ask(b"a", 0)
    desk.router.ask(b"a", 1)
    desk.replayer.hear()
    while desk.replayer.wait_s is not None:
        desk.replayer.send()
    assert desk.router.sent_to(b"a") == [*range(TURN_BATCHES), None, *range(1, TURN_BATCHES), None]


def test_replay_when_its_reader_is_full_then_tried_later_and_given_up_in_the_end() -> None:
    desk = make_desk(3)
    desk.router.ask(b"a", 0)
    desk.replayer.hear()
    desk.router.is_full = True
    desk.replayer.send()
    assert desk.replayer.wait_s == STUCK_S
    desk.router.is_full = False
    desk.replayer.send()
    assert desk.router.sent_to(b"a") == [0, 1, 2, None]
    desk.router.ask(b"a", 0)
    desk.replayer.hear()
    desk.router.is_full = True
    desk.clock.now_s = STALLED_S + 1
    desk.replayer.send()
    assert desk.replayer.wait_s is None


def test_replay_when_its_reader_is_gone_then_over() -> None:
    desk = make_desk(3)
    desk.router.ask(b"a", 0)
    desk.replayer.hear()
    desk.router.is_gone = True
    desk.replayer.send()
    assert desk.replayer.wait_s is None


def test_request_when_too_many_are_under_way_then_told_that_there_is_nothing() -> None:
    desk = make_desk(3)
    for number in range(ASKED_MAX + 1):
        desk.router.ask(b"%d" % number, 0)
        desk.replayer.hear()
    assert desk.router.sent == [(b"%d" % ASKED_MAX, *END)]


def test_request_when_it_is_none_then_ignored() -> None:
    desk = make_desk(3)
    for frames in ([b"a"], [b"a", b""], [b"a", b"x", bytes(8)], [b"a", b"", bytes(7)], [b"a", b"", bytes(8), b""]):
        desk.router.asked.append(frames)
    desk.replayer.hear()
    assert desk.replayer.wait_s is None
    assert not desk.router.asked


def test_replay_when_what_is_asked_for_or_comes_next_is_not_kept_any_more_then_said_once() -> None:
    desk = make_desk(TURN_BATCHES + 10, batches_max=TURN_BATCHES + 5)
    desk.router.ask(b"a", 0)
    desk.replayer.hear()
    assert [desk.replayer.take_lateness(), desk.replayer.take_lateness()] == [True, False]
    desk.replayer.send()
    for _ in range(TURN_BATCHES + 5):
        desk.kept.add(b"new")
    desk.replayer.send()
    assert desk.replayer.take_lateness()
    assert desk.router.sent_to(b"a") == [*range(5, TURN_BATCHES + 5), None]
