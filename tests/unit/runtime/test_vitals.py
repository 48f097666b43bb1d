"""What is wrong, as a table: state, signs of life and time in, trouble out."""

from dataclasses import dataclass

import pytest

from engine.core.ids import StepNo
from engine.runtime.clock import AwakeClock
from engine.runtime.incidents import IncidentKind
from engine.runtime.lifecycle import EngineState
from engine.runtime.vitals import Beat, InFlight, Phase, Severity, Trouble, Vitals, WatchdogConfig, judge

CONFIG = WatchdogConfig(
    loading_s=10, compiling_s=20, warming_s=5, prefill_s=4, decode_s=2, idle_s=1, hard_factor=3, failures_max=3
)


@dataclass(slots=True)
class HandClock:
    """Turned by hand, in steps small enough not to look like a pause."""

    at_s: float = 100.0

    def now(self) -> float:
        return self.at_s


def make_vitals(state: EngineState = EngineState.SERVING) -> tuple[Vitals, HandClock]:
    hand = HandClock()
    vitals = Vitals(AwakeClock(hand))
    vitals.enter(state)
    return vitals, hand


def turn(vitals: Vitals, hand: HandClock, seconds: float) -> None:
    """Lets time pass for a process that runs."""
    for _ in range(round(seconds * 10)):
        hand.at_s += 0.1
        vitals.clock.now()


def beat(vitals: Vitals, oldest: InFlight | None = None, *, progress_ago_s: float = 0.0, failures: int = 0) -> None:
    now_s = vitals.clock.now()
    vitals.beat = Beat(now_s, 1, now_s - progress_ago_s, oldest, failures)


def found(trouble: Trouble | None) -> tuple[IncidentKind, Severity] | None:
    return None if trouble is None else (trouble.kind, trouble.severity)


@pytest.mark.parametrize(
    ("state", "after_s", "severity"),
    [
        (EngineState.LOADING, 9.5, None),
        (EngineState.LOADING, 10.5, Severity.SOFT),
        (EngineState.LOADING, 29.5, Severity.SOFT),
        (EngineState.LOADING, 30.5, Severity.HARD),
        (EngineState.COMPILING, 19.5, None),
        (EngineState.COMPILING, 20.5, Severity.SOFT),
        (EngineState.COMPILING, 60.5, Severity.HARD),
        (EngineState.WARMING, 4.5, None),
        (EngineState.WARMING, 5.5, Severity.SOFT),
    ],
)
def test_start_when_a_phase_takes_long_then_judged_by_its_own_limit(
    state: EngineState, after_s: float, severity: Severity | None
) -> None:
    """WDG-05 (sgl-project/sglang#3752)."""
    vitals, hand = make_vitals(state)
    turn(vitals, hand, after_s)
    assert found(judge(vitals, CONFIG)) == (None if severity is None else (IncidentKind.SLOW_START, severity))


def test_loading_when_it_reports_now_and_then_then_may_take_any_time() -> None:
    vitals, hand = make_vitals(EngineState.LOADING)
    for _ in range(5):
        turn(vitals, hand, 9)
        assert judge(vitals, CONFIG) is None
        vitals.touch()


@pytest.mark.parametrize("state", [EngineState.STOPPED, EngineState.FAILED])
@pytest.mark.parametrize(("after_s", "is_late"), [(14.5, False), (15.5, True)])
def test_end_when_the_process_stays_then_it_is_late_by_its_own_limit_and_by_no_other(
    state: EngineState, after_s: float, is_late: bool
) -> None:
    vitals, hand = make_vitals()
    beat(vitals, InFlight(StepNo(7), Phase.DECODE, vitals.clock.now()), failures=3)
    vitals.enter(state)
    turn(vitals, hand, after_s)
    assert found(judge(vitals, CONFIG)) == ((IncidentKind.SLOW_END, Severity.HARD) if is_late else None)


@pytest.mark.parametrize(("after_s", "severity"), [(0.9, None), (1.1, Severity.SOFT), (3.1, Severity.HARD)])
@pytest.mark.parametrize("oldest", [None, InFlight(StepNo(7), Phase.PREFILL, 100.0)])
def test_loop_when_it_does_not_come_round_then_it_is_the_loop_whatever_the_forward_does(
    after_s: float, severity: Severity | None, oldest: InFlight | None
) -> None:
    vitals, hand = make_vitals()
    beat(vitals, oldest)
    turn(vitals, hand, after_s)
    assert found(judge(vitals, CONFIG)) == (None if severity is None else (IncidentKind.LOOP_STUCK, severity))


@pytest.mark.parametrize(
    ("phase", "out_s", "severity"),
    [
        (Phase.DECODE, 1.9, None),
        (Phase.DECODE, 2.1, Severity.SOFT),
        (Phase.DECODE, 6.1, Severity.HARD),
        (Phase.PREFILL, 3.9, None),
        (Phase.PREFILL, 4.1, Severity.SOFT),
        (Phase.PREFILL, 12.1, Severity.HARD),
    ],
)
def test_forward_when_it_does_not_end_while_the_loop_is_well_then_judged_by_its_phase(
    phase: Phase, out_s: float, severity: Severity | None
) -> None:
    vitals, hand = make_vitals()
    oldest = InFlight(StepNo(7), phase, vitals.clock.now())
    progress_s = vitals.clock.now()
    turn(vitals, hand, out_s)
    vitals.beat = Beat(vitals.clock.now(), 9, progress_s, oldest, 0)
    trouble = judge(vitals, CONFIG)
    assert found(trouble) == (None if severity is None else (IncidentKind.FORWARD_STUCK, severity))
    if trouble is not None:
        assert (trouble.step, trouble.phase) == (7, phase)
        assert "the event loop is well" in trouble.message


def test_forward_when_it_waited_behind_another_then_its_time_begins_with_the_answer_to_that() -> None:
    vitals, hand = make_vitals()
    submitted_s = vitals.clock.now()
    turn(vitals, hand, 1.9)
    answered_s = vitals.clock.now()
    turn(vitals, hand, 1.9)
    vitals.beat = Beat(vitals.clock.now(), 9, answered_s, InFlight(StepNo(8), Phase.DECODE, submitted_s), 0)
    assert judge(vitals, CONFIG) is None


def test_nothing_in_flight_when_the_loop_comes_round_then_any_time_may_pass() -> None:
    vitals, hand = make_vitals()
    turn(vitals, hand, 50)
    beat(vitals, progress_ago_s=50)
    assert judge(vitals, CONFIG) is None


@pytest.mark.parametrize(("failures", "is_lost"), [(0, False), (2, False), (3, True)])
def test_failures_when_one_follows_the_other_then_lost_at_their_limit(failures: int, is_lost: bool) -> None:
    vitals, _hand = make_vitals()
    beat(vitals, failures=failures)
    assert found(judge(vitals, CONFIG)) == ((IncidentKind.FAILING, Severity.HARD) if is_lost else None)


def test_failures_when_a_forward_is_stuck_as_well_then_its_step_is_told_so_that_its_turns_can_end() -> None:
    vitals, hand = make_vitals()
    oldest, progress_s = InFlight(StepNo(7), Phase.DECODE, vitals.clock.now()), vitals.clock.now()
    turn(vitals, hand, 2.5)
    vitals.beat = Beat(vitals.clock.now(), 9, progress_s, oldest, 3)
    trouble = judge(vitals, CONFIG)
    assert found(trouble) == (IncidentKind.FAILING, Severity.HARD)
    assert trouble is not None
    assert trouble.step == 7


def test_forward_when_it_is_past_hope_and_the_loop_is_late_too_then_the_worse_one_counts() -> None:
    vitals, hand = make_vitals()
    oldest, progress_s = InFlight(StepNo(7), Phase.DECODE, vitals.clock.now()), vitals.clock.now()
    turn(vitals, hand, 6.5)
    vitals.beat = Beat(vitals.clock.now(), 9, progress_s, oldest, 0)
    turn(vitals, hand, 1.5)
    assert found(judge(vitals, CONFIG)) == (IncidentKind.FORWARD_STUCK, Severity.HARD)


def test_pause_when_the_process_was_stopped_for_a_minute_then_nothing_is_late() -> None:
    vitals, hand = make_vitals()
    config = WatchdogConfig(idle_s=3, decode_s=3)
    beat(vitals, InFlight(StepNo(7), Phase.DECODE, vitals.clock.now()))
    hand.at_s += 60.0
    assert judge(vitals, config) is None
    assert vitals.clock.paused_s == pytest.approx(58.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("loading_s", 0.0), ("decode_s", -1.0), ("idle_s", float("inf")), ("hard_factor", 0.5), ("exit_s", -1.0)],
)
def test_config_when_a_limit_can_not_be_then_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        WatchdogConfig(**{name: value})  # type: ignore[arg-type]  # floats all


def test_config_when_no_failure_is_allowed_then_refused_by_name() -> None:
    with pytest.raises(ValueError, match="failures_max"):
        WatchdogConfig(failures_max=0)
