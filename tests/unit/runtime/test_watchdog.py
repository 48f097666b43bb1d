"""What the watchdog does about trouble, look by look; its thread is the last test."""

import logging
import threading
from dataclasses import dataclass, field, replace
from typing import Never

import pytest

from engine.core.ids import StepNo
from engine.runtime.clock import AwakeClock, WallClock
from engine.runtime.incidents import IncidentKind, Incidents
from engine.runtime.lifecycle import EngineState
from engine.runtime.vitals import Beat, InFlight, Phase, Severity, Trip, Trouble, Vitals, WatchdogConfig
from engine.runtime.watchdog import Watchdog, WatchdogHooks

CONFIG = WatchdogConfig(decode_s=1.0, idle_s=5.0, hard_factor=3, failures_max=2, exit_s=1.0, tick_s=0.001)


@dataclass(slots=True)
class HandClock:
    at_s: float = 100.0

    def now(self) -> float:
        return self.at_s


@dataclass(slots=True)
class Rig:
    """A watchdog over made-up signs of life."""

    config: WatchdogConfig = CONFIG
    hand: HandClock = field(default_factory=HandClock)
    dumps: list[Trip] = field(default_factory=list)
    trips_when_dumped: list[Trip | None] = field(default_factory=list)
    told: list[Severity | None] = field(default_factory=list)
    lost: list[Trip] = field(default_factory=list)
    left: list[Trouble] = field(default_factory=list)
    incidents: Incidents = field(default_factory=lambda: Incidents(WallClock()))
    vitals: Vitals = field(init=False)
    watchdog: Watchdog = field(init=False)

    def __post_init__(self) -> None:
        self.vitals = Vitals(AwakeClock(self.hand))
        self.vitals.enter(EngineState.SERVING)
        hooks = WatchdogHooks(self.dump, self.tell, self.lost.append, self.left.append)
        self.watchdog = Watchdog(self.vitals, self.incidents, self.config, hooks)

    def dump(self, trip: Trip) -> str:
        self.dumps.append(trip)
        self.trips_when_dumped.append(self.vitals.trip)
        return f"dump {len(self.dumps)}"

    def tell(self, trouble: Trouble | None) -> None:
        self.told.append(None if trouble is None else trouble.severity)

    def look_after(self, seconds: float) -> None:
        """Time passes for a process whose loop comes round, then the watchdog looks."""
        for _ in range(round(seconds * 10)):
            self.hand.at_s += 0.1
            self.vitals.clock.now()
        if self.vitals.beat is not None:
            self.vitals.beat = self.vitals.beat._replace(at_s=self.vitals.clock.now())
        self.watchdog.look()

    def send_out(self, step: int, failures: int = 0) -> None:
        now_s = self.vitals.clock.now()
        self.vitals.beat = Beat(now_s, 1, now_s, InFlight(StepNo(step), Phase.DECODE, now_s), failures)

    def answer(self) -> None:
        now_s = self.vitals.clock.now()
        self.vitals.beat = Beat(now_s, 2, now_s, None, 0)


def test_look_when_a_forward_is_late_then_one_incident_one_dump_and_the_trip_comes_after_the_dump() -> None:
    rig = Rig()
    rig.send_out(7)
    rig.look_after(0.5)
    assert (rig.told, rig.vitals.trip) == ([], None)
    for _ in range(3):
        rig.look_after(0.6)
    (incident,) = rig.incidents.all()
    assert (incident.kind, incident.dump, incident.over_s) == (IncidentKind.FORWARD_STUCK, "dump 1", None)
    assert rig.told == [Severity.SOFT]
    assert rig.trips_when_dumped == [None], "the loop ends the turns when it sees the trip: the dump has to have them"
    assert rig.vitals.trip is not None
    assert rig.vitals.trip.incident_id == incident.incident_id
    assert rig.lost == []


def test_look_when_the_forward_ends_then_it_is_over_and_the_next_one_is_another_incident(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    rig = Rig()
    for step in (7, 8):
        rig.send_out(step)
        rig.look_after(1.5)
        rig.answer()
        rig.look_after(0.1)
        assert rig.vitals.trip is None
    assert [each.over_s is not None for each in rig.incidents.all()] == [True, True]
    assert rig.told == [Severity.SOFT, None, Severity.SOFT, None]
    assert caplog.text.count("event=watchdog_recovered") == 2


def test_look_when_another_forward_is_late_by_then_then_the_first_one_is_over() -> None:
    rig = Rig()
    rig.send_out(7)
    rig.look_after(1.5)
    rig.send_out(8)
    for _ in range(2):
        rig.look_after(0.8)
    first, second = rig.incidents.all()
    assert (first.over_s is not None, second.over_s) == (True, None)
    assert [trip.trouble.step for trip in rig.dumps] == [7, 8]


def test_look_when_it_gets_worse_then_a_second_dump_and_after_its_time_the_process_is_lost_once() -> None:
    rig = Rig()
    rig.send_out(7)
    rig.look_after(1.5)
    rig.look_after(2.0)
    assert rig.told == [Severity.SOFT, Severity.HARD]
    (incident,) = rig.incidents.all()
    assert incident.message.endswith("; it ends itself in 1 s unless there is progress")
    assert incident.dump == "dump 1\n\ndump 2", "the first one has the turns that were ended for it"
    assert rig.lost == [], "it has exit_s left to recover"
    for _ in range(3):
        rig.look_after(0.8)
    assert [trip.trouble.step for trip in rig.lost] == [7]
    assert rig.left == [], "it is given a moment to end its streams"
    rig.look_after(5.0)
    assert [trouble.step for trouble in rig.left] == [7]


def test_look_when_it_recovers_in_the_last_moment_then_the_process_is_not_lost() -> None:
    rig = Rig()
    rig.send_out(7)
    rig.look_after(3.5)
    rig.look_after(0.5)
    rig.answer()
    for _ in range(3):
        rig.look_after(1.0)
    assert (rig.lost, rig.told[-1]) == ([], None)


def test_look_when_told_to_stay_then_a_lost_engine_waits_to_be_ended_by_others() -> None:
    rig = Rig(config=WatchdogConfig(decode_s=1.0, idle_s=5.0, exit_s=0.0))
    rig.send_out(7)
    for _ in range(20):
        rig.look_after(1.0)
    assert (rig.told, rig.lost) == ([Severity.SOFT, Severity.HARD], [])
    (incident,) = rig.incidents.all()
    assert incident.message.endswith("; it does not end itself (--watchdog-exit-s 0): start it anew")


def test_look_when_forwards_fail_one_after_the_other_then_hard_at_once() -> None:
    rig = Rig()
    rig.send_out(7, failures=1)
    rig.look_after(0.1)
    rig.send_out(8, failures=2)
    rig.look_after(0.1)
    assert rig.told == [Severity.HARD]
    assert [each.kind for each in rig.incidents.all()] == [IncidentKind.FAILING]


def test_look_when_the_loop_is_stuck_too_then_the_forward_is_not_told_to_be_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    rig = Rig(config=WatchdogConfig(decode_s=1.0, idle_s=1.0, hard_factor=20, tick_s=0.001))
    rig.send_out(7)
    rig.look_after(1.5)
    for _ in range(15):
        rig.hand.at_s += 0.1
        rig.vitals.clock.now()
    rig.watchdog.look()
    forward, loop = rig.incidents.all()
    assert (forward.kind, forward.over_s) == (IncidentKind.FORWARD_STUCK, None)
    assert (loop.kind, loop.over_s) == (IncidentKind.LOOP_STUCK, None)
    assert "event=watchdog_recovered" not in caplog.text
    assert None not in rig.told, "nobody heard that all was well"
    rig.answer()
    rig.look_after(0.1)
    assert all(each.over_s is not None for each in rig.incidents.all())
    assert rig.told[-1] is None


def test_look_when_the_loop_is_stuck_for_good_then_the_process_is_left_at_once_when_it_is_due() -> None:
    rig = Rig(config=WatchdogConfig(idle_s=1.0, hard_factor=2, exit_s=1.0, tick_s=0.001))
    rig.answer()
    for _ in range(40):
        rig.hand.at_s += 0.1
        rig.watchdog.look()
    assert rig.left
    assert rig.left[0].kind is IncidentKind.LOOP_STUCK


@pytest.mark.parametrize("name", ["dump", "on_change", "on_lost", "leave", "on_tick"])
def test_look_when_a_hook_raises_then_told_once_and_the_rest_is_done(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_arguments: object) -> Never:
        raise MemoryError(name)

    rig = Rig()
    rig.watchdog = Watchdog(
        rig.vitals,
        rig.incidents,
        CONFIG,
        replace(WatchdogHooks(rig.dump, rig.tell, rig.lost.append, rig.left.append), **{name: fail}),
    )
    rig.send_out(7)
    for _ in range(16):
        rig.look_after(1.0)
    assert caplog.text.count(f"event=watchdog_hook_failed hook={name}: {name}") == 1
    done = {"dump": len(rig.dumps), "on_change": len(rig.told), "on_lost": len(rig.lost), "leave": bool(rig.left)}
    expected = {"dump": 2, "on_change": 2, "on_lost": 1, "leave": True}
    assert {hook: count for hook, count in done.items() if hook != name} == {
        hook: count for hook, count in expected.items() if hook != name
    }
    assert rig.vitals.trip is not None


def test_look_when_the_process_was_stopped_then_told_and_nothing_trips(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    rig = Rig(config=WatchdogConfig(decode_s=3.0, idle_s=3.0))
    rig.send_out(7)
    rig.hand.at_s += 20.0
    rig.watchdog.look()
    assert (rig.told, rig.incidents.all()) == ([], ())
    assert "event=process_paused seconds=20.0" in caplog.text


def test_thread_when_started_then_looks_by_itself_until_it_is_stopped() -> None:
    tripped = threading.Event()
    vitals = Vitals()
    hooks = WatchdogHooks(
        lambda _trip: "dump", lambda _trouble: tripped.set(), lambda _trip: None, lambda _trouble: None
    )
    watchdog = Watchdog(vitals, Incidents(WallClock()), WatchdogConfig(loading_s=0.01, tick_s=0.005), hooks)
    watchdog.start()
    assert tripped.wait(5)
    watchdog.stop()
    watchdog.stop()
    assert "tenure-watchdog" not in [thread.name for thread in threading.enumerate()]
