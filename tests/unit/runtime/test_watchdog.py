"""What the watchdog does about trouble, look by look; its thread is the last test."""

import logging
import threading
from dataclasses import dataclass, field

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
    lost: list[Trouble] = field(default_factory=list)
    incidents: Incidents = field(default_factory=lambda: Incidents(WallClock()))
    vitals: Vitals = field(init=False)
    watchdog: Watchdog = field(init=False)

    def __post_init__(self) -> None:
        self.vitals = Vitals(AwakeClock(self.hand))
        self.vitals.enter(EngineState.SERVING)
        hooks = WatchdogHooks(self.dump, self.tell, self.lost.append)
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
    assert incident.dump == "dump 2"
    assert rig.lost == [], "it has exit_s left to recover"
    for _ in range(3):
        rig.look_after(0.8)
    assert [trouble.step for trouble in rig.lost] == [7]


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


def test_look_when_forwards_fail_one_after_the_other_then_hard_at_once() -> None:
    rig = Rig()
    rig.send_out(7, failures=1)
    rig.look_after(0.1)
    rig.send_out(8, failures=2)
    rig.look_after(0.1)
    assert rig.told == [Severity.HARD]
    assert [each.kind for each in rig.incidents.all()] == [IncidentKind.FAILING]


def test_look_when_the_process_was_stopped_then_told_and_nothing_trips(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    rig = Rig(config=WatchdogConfig(decode_s=3.0, idle_s=3.0))
    rig.send_out(7)
    rig.hand.at_s += 20.0
    rig.watchdog.look()
    assert (rig.told, rig.incidents.all()) == ([], ())
    assert "event=process_paused seconds=18.0" in caplog.text


def test_thread_when_started_then_looks_by_itself_until_it_is_stopped() -> None:
    tripped = threading.Event()
    vitals = Vitals()
    hooks = WatchdogHooks(lambda _trip: "dump", lambda _trouble: tripped.set(), lambda _trouble: None)
    watchdog = Watchdog(vitals, Incidents(WallClock()), WatchdogConfig(loading_s=0.01, tick_s=0.005), hooks)
    watchdog.start()
    assert tripped.wait(5)
    watchdog.stop()
    watchdog.stop()
    assert "tenure-watchdog" not in [thread.name for thread in threading.enumerate()]
