"""Signs of life: what the loop last published, and the pure judgement of it. Read by other threads than the loop's."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from engine.core.ids import StepNo
from engine.runtime.clock import AwakeClock
from engine.runtime.incidents import IncidentKind
from engine.runtime.lifecycle import EngineState


class Phase(StrEnum):
    """What the engine is busy with; each has a time limit of its own."""

    LOADING = "loading"
    COMPILING = "compiling"
    WARMING = "warming"
    PREFILL = "prefill"
    """A forward is out that computes more than one token of some turn."""
    DECODE = "decode"
    IDLE = "idle"
    """No forward is out: the loop itself has to come round."""
    ENDING = "ending"
    """The engine has ended; what is left is to close ports and write logs."""


@dataclass(frozen=True, slots=True)
class WatchdogConfig:
    """How long each phase may go without progress, in seconds. Raises ValueError, naming the field."""

    loading_s: float = 600.0
    """Between two reports of the loader."""
    compiling_s: float = 600.0
    warming_s: float = 120.0
    prefill_s: float = 60.0
    decode_s: float = 30.0
    idle_s: float = 10.0
    """The loop wakes several times a second, also while a forward is out: without it nothing is answered at all."""
    ending_s: float = 15.0
    hard_factor: float = 3.0
    """After so many times its limit without progress the engine is taken to be lost."""
    failures_max: int = 8
    """So many forwards that failed one after the other are as good as a lost engine."""
    exit_s: float = 15.0
    """A lost engine's process ends so long after that, unless there was progress; 0: it waits to be ended."""
    tick_s: float = 0.1
    """How often the watchdog looks."""

    def __post_init__(self) -> None:
        for name in ("loading_s", "compiling_s", "warming_s", "prefill_s", "decode_s", "idle_s", "ending_s", "tick_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be above 0 and finite, not {getattr(self, name)}")
        if not 1 <= self.hard_factor < float("inf"):
            raise ValueError(f"hard_factor must be at least 1 and finite, not {self.hard_factor}")
        if self.failures_max < 1:
            raise ValueError(f"failures_max must be at least 1, not {self.failures_max}")
        if not 0 <= self.exit_s < float("inf"):
            raise ValueError(f"exit_s must be at least 0 and finite, not {self.exit_s}")

    def limit_s(self, phase: Phase) -> float:
        return {
            Phase.LOADING: self.loading_s,
            Phase.COMPILING: self.compiling_s,
            Phase.WARMING: self.warming_s,
            Phase.PREFILL: self.prefill_s,
            Phase.DECODE: self.decode_s,
            Phase.IDLE: self.idle_s,
            Phase.ENDING: self.ending_s,
        }[phase]


class InFlight(NamedTuple):
    """A forward that is out."""

    step: StepNo
    phase: Phase
    """PREFILL or DECODE."""
    submitted_s: float


class Beat(NamedTuple):
    """What the loop publishes each time that it comes round. Times are of the AwakeClock."""

    at_s: float
    number: int
    """How often it has come round."""
    progress_s: float
    """When a step was last answered, or work began."""
    oldest: InFlight | None
    """The forward that the others wait for."""
    failures: int
    """Steps that failed since the last one that did not."""


class Severity(StrEnum):
    SOFT = "soft"
    """Past its limit: a dump is made, no new work should come here, and it may still recover."""
    HARD = "hard"
    """Past hope: something outside has to start the process anew."""


class Trouble(NamedTuple):
    """What is wrong at this moment."""

    kind: IncidentKind
    severity: Severity
    phase: Phase
    age_s: float
    """Without progress for so long."""
    limit_s: float
    step: StepNo | None
    """Of the forward that does not end."""
    message: str


STARTING: dict[EngineState, Phase] = {
    EngineState.LOADING: Phase.LOADING,
    EngineState.COMPILING: Phase.COMPILING,
    EngineState.WARMING: Phase.WARMING,
}
"""States before the engine serves, and their phases."""
OVER = (EngineState.STOPPED, EngineState.FAILED)


class Trip(NamedTuple):
    """What the watchdog has noticed, and under which incident it stands in log and dump."""

    incident_id: str
    trouble: Trouble


@dataclass(slots=True)
class Vitals:
    """Published by assignment of whole values: a reader in another thread sees an old one or a new one, never half."""

    clock: AwakeClock = field(default_factory=AwakeClock)
    state: EngineState = EngineState.LOADING
    state_progress_s: float = field(default=0.0)
    """When the state was entered or, while loading, something was last reported."""
    beat: Beat | None = None
    """None before the loop has begun."""
    trip: Trip | None = None
    """Set by the watchdog, for as long as it lasts."""

    def __post_init__(self) -> None:
        self.state_progress_s = self.clock.now()

    def enter(self, state: EngineState) -> None:
        """A listener of the lifecycle."""
        self.state_progress_s = self.clock.now()
        self.state = state

    def touch(self) -> None:
        """The start has come a bit further."""
        self.state_progress_s = self.clock.now()


def judge(vitals: Vitals, config: WatchdogConfig) -> Trouble | None:
    """What is wrong now, if anything: the worst, and of equals what explains the others. Pure but for the clock.

    May be called by any thread.
    """
    state, beat, now_s = vitals.state, vitals.beat, vitals.clock.now()
    age_s = now_s - vitals.state_progress_s
    if state in OVER:
        return _judge_end(age_s, config)
    starting = STARTING.get(state)
    if starting is not None:
        return _judge_start(starting, age_s, config)
    if beat is None:
        return None
    loop, forward = _judge_loop(beat, now_s, config), _judge_forward(beat, now_s, config)
    failing = _judge_failures(beat, now_s, config, forward)
    found = [trouble for trouble in (loop, failing, forward) if trouble is not None]
    return max(found, key=lambda trouble: trouble.severity is Severity.HARD, default=None)


def _judge_end(age_s: float, config: WatchdogConfig) -> Trouble | None:
    """There is nothing to recover to: past its limit the end has to be forced."""
    limit_s = config.ending_s
    if age_s <= limit_s:
        return None
    message = f"the engine has ended {age_s:.1f} s ago, and the process is still there; its limit is {limit_s:g} s"
    return Trouble(IncidentKind.SLOW_END, Severity.HARD, Phase.ENDING, age_s, limit_s, None, message)


def _judge_failures(beat: Beat, now_s: float, config: WatchdogConfig, forward: Trouble | None) -> Trouble | None:
    if beat.failures < config.failures_max:
        return None
    message = f"{beat.failures} forwards failed one after the other"
    age_s = now_s - beat.progress_s
    step, limit_s = (forward.step, forward.limit_s) if forward is not None else (None, 0.0)
    return Trouble(IncidentKind.FAILING, Severity.HARD, Phase.IDLE, age_s, limit_s, step, message)


def _judge_start(phase: Phase, age_s: float, config: WatchdogConfig) -> Trouble | None:
    limit_s = config.limit_s(phase)
    if age_s <= limit_s:
        return None
    message = f"{phase} has not come further for {age_s:.1f} s; its limit is {limit_s:g} s"
    severity = _severity(age_s, limit_s, config)
    return Trouble(IncidentKind.SLOW_START, severity, phase, age_s, limit_s, None, message)


def _judge_loop(beat: Beat, now_s: float, config: WatchdogConfig) -> Trouble | None:
    """The loop comes round several times a second, whatever the forward does: else something holds it."""
    age_s, limit_s = now_s - beat.at_s, config.idle_s
    if age_s <= limit_s:
        return None
    message = f"the event loop has not come round for {age_s:.1f} s; its limit is {limit_s:g} s: something blocks it"
    severity = _severity(age_s, limit_s, config)
    return Trouble(IncidentKind.LOOP_STUCK, severity, Phase.IDLE, age_s, limit_s, None, message)


def _judge_forward(beat: Beat, now_s: float, config: WatchdogConfig) -> Trouble | None:
    oldest = beat.oldest
    if oldest is None:
        return None  # with work and nothing in flight the loop itself halts: the core must plan or wait for an answer
    # The executor takes one after the other: its time begins once the one before it is answered.
    age_s, limit_s = now_s - max(oldest.submitted_s, beat.progress_s), config.limit_s(oldest.phase)
    if age_s <= limit_s:
        return None
    message = (
        f"the forward of step {oldest.step} ({oldest.phase}) has not ended for {age_s:.1f} s; its limit is "
        f"{limit_s:g} s: the event loop is well, it waits for the executor"
    )
    severity = _severity(age_s, limit_s, config)
    return Trouble(IncidentKind.FORWARD_STUCK, severity, oldest.phase, age_s, limit_s, oldest.step, message)


def _severity(age_s: float, limit_s: float, config: WatchdogConfig) -> Severity:
    return Severity.HARD if age_s > limit_s * config.hard_factor else Severity.SOFT
