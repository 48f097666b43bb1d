"""Sending missed batches again, over a socket by hand: in turns, in order, and each to its end."""

from collections import deque
from dataclasses import dataclass, field

import pytest
import zmq

from telemetry.kv.backlog import ReplayBuffer
from telemetry.kv.replay import ASKED_MAX, PARKED_MAX, PARKED_S, STALLED_S, STUCK_MAX_S, STUCK_S, TURN_BATCHES, Replayer

END = (None, b"")


@dataclass(slots=True)
class Router:
    """Takes what is sent, unless it is full or the other side is gone."""

    asked: deque[list[bytes]] = field(default_factory=deque)
    sent: list[tuple[bytes, int | None, bytes]] = field(default_factory=list)
    """To whom, which number (None: the end), what."""
    is_full: bool = False
    full_for: set[bytes] = field(default_factory=set)
    is_gone: bool = False
    attempts: int = 0

    def recv_multipart(self, flags: int) -> list[bytes]:
        assert flags == zmq.NOBLOCK
        if not self.asked:
            raise zmq.Again
        return self.asked.popleft()

    def send_multipart(self, msg_parts: list[bytes], flags: int) -> None:
        assert flags == zmq.NOBLOCK
        self.attempts += 1
        if self.is_gone:
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        if self.is_full or msg_parts[0] in self.full_for:
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

    def turn(self) -> None:
        """As the thread does, once it has waited as long as there is nothing to do."""
        self.clock.now_s += self.replayer.wait_s or 0.0
        self.replayer.hear()
        self.replayer.send()

    def turns(self, seconds: float) -> None:
        end_s = self.clock.now_s + seconds
        for _ in range(10_000):
            wait_s = self.replayer.wait_s
            if wait_s is None or self.clock.now_s + wait_s >= end_s:
                break
            self.turn()
        else:
            raise AssertionError("it goes on without a pause")
        self.clock.now_s = end_s


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


def test_replay_when_somebody_asks_again_and_again_then_the_last_time_is_what_comes_next() -> None:
    desk = make_desk(TURN_BATCHES)
    for start in (0, 1, 2, 3):
        desk.router.ask(b"a", start)
    desk.replayer.hear()
    while desk.replayer.wait_s is not None:
        desk.replayer.send()
    assert desk.router.sent_to(b"a") == [*range(TURN_BATCHES), None, *range(3, TURN_BATCHES), None]


def test_replay_when_its_reader_is_full_then_tried_later_and_less_and_less_often() -> None:
    desk = make_desk(3)
    desk.router.ask(b"a", 0)
    desk.router.is_full = True
    waits: list[float | None] = []
    for _ in range(7):
        desk.turn()
        waits.append(desk.replayer.wait_s)
    assert waits[:3] == pytest.approx([STUCK_S, 2 * STUCK_S, 4 * STUCK_S])
    assert waits[-1] == pytest.approx(STUCK_MAX_S)
    desk.router.is_full = False
    desk.turn()
    assert desk.router.sent_to(b"a") == [0, 1, 2, None]
    assert desk.replayer.wait_s is None


def test_replay_when_its_reader_is_full_and_asks_again_then_nothing_spins_and_no_place_is_taken_twice() -> None:
    desk = make_desk(3)
    desk.router.full_for = {b"deaf"}
    for _ in range(ASKED_MAX + 6):
        desk.router.ask(b"deaf", 0)
    for _ in range(5):
        desk.replayer.hear()
    desk.replayer.send()
    assert desk.replayer.wait_s == STUCK_S
    before = desk.router.attempts
    desk.turns(1.0)
    assert desk.router.attempts - before < 1.5 / STUCK_MAX_S
    desk.router.ask(b"b", 1)
    desk.turn()
    assert desk.router.sent_to(b"b") == [1, 2, None]


def test_replay_when_its_reader_takes_nothing_for_long_then_parked_and_ended_whenever_it_reads() -> None:
    desk = make_desk(3)
    desk.router.ask(b"a", 0)
    desk.router.is_full = True
    desk.turn()
    desk.turns(STALLED_S + 1)
    before = desk.router.attempts
    desk.turns(100 * PARKED_S)
    assert desk.router.attempts - before <= 101
    desk.router.ask(b"a", 2)
    desk.router.is_full = False
    desk.turn()
    desk.turn()
    assert desk.router.sent_to(b"a") == [0, 1, 2, None, 2, None]
    assert desk.replayer.wait_s is None
    assert not desk.replayer.take_lateness()


def test_replays_when_all_places_are_taken_by_who_does_not_read_then_free_again_once_these_are_parked() -> None:
    desk = make_desk(3)
    deaf = [b"%d" % number for number in range(ASKED_MAX)]
    desk.router.full_for = set(deaf)
    for who in deaf:
        desk.router.ask(who, 0)
        desk.replayer.hear()
    desk.replayer.send()
    desk.turns(STALLED_S + 1)
    desk.router.ask(b"b", 1)
    for _ in range(4):
        desk.turn()
    assert desk.router.sent_to(b"b") == [1, 2, None]
    assert not desk.replayer.take_lateness()


def test_replays_when_far_too_many_do_not_read_then_the_oldest_are_forgotten_and_said_to_be_late() -> None:
    desk = make_desk(3)
    deaf = [b"%d" % number for number in range(PARKED_MAX + 5)]
    desk.router.full_for = set(deaf)
    for start in range(0, len(deaf), ASKED_MAX):
        for who in deaf[start : start + ASKED_MAX]:
            desk.router.ask(who, 0)
            desk.replayer.hear()
        desk.replayer.send()
        assert not desk.replayer.take_lateness()
        desk.turns(STALLED_S + 1)
    assert desk.replayer.take_lateness()
    desk.router.full_for.clear()
    desk.turns(2 * PARKED_S)
    answered = {to for to, number, _ in desk.router.sent if number is None}
    assert answered == set(deaf[5:])


def test_replay_when_its_reader_is_gone_then_over() -> None:
    desk = make_desk(3)
    desk.router.ask(b"a", 0)
    desk.replayer.hear()
    desk.router.is_gone = True
    desk.replayer.send()
    assert desk.replayer.wait_s is None


def test_request_when_too_many_are_under_way_then_told_that_there_is_nothing_and_the_whole_has_to_come() -> None:
    desk = make_desk(3)
    for number in range(ASKED_MAX + 1):
        desk.router.ask(b"%d" % number, 3 if number < ASKED_MAX else 2)
        assert not desk.replayer.take_lateness()
        desk.replayer.hear()
    assert desk.replayer.take_lateness()
    desk.replayer.send()
    assert desk.router.sent_to(b"%d" % ASKED_MAX) == [None]


def test_request_when_too_many_are_under_way_but_it_lacks_nothing_then_nobody_is_late() -> None:
    desk = make_desk(3)
    for number in range(ASKED_MAX + 1):
        desk.router.ask(b"%d" % number, 3)
        desk.replayer.hear()
    assert not desk.replayer.take_lateness()


def test_request_when_refused_and_its_reader_is_full_then_the_end_comes_once_it_reads() -> None:
    desk = make_desk(3)
    desk.router.is_full = True
    for number in range(ASKED_MAX + 1):
        desk.router.ask(b"%d" % number, 0)
        desk.replayer.hear()
    desk.replayer.send()
    desk.router.is_full = False
    desk.turns(2 * PARKED_S)
    assert desk.router.sent_to(b"%d" % ASKED_MAX) == [None]


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
