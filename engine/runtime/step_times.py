"""What a step cost, as the loop and the executor saw it."""

from dataclasses import dataclass
from typing import Protocol

from engine.core.ids import StepNo


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one answered step."""

    step: StepNo
    host_s: float
    """Of the event loop: planning, submitting, taking the answer and telling of it."""
    device_s: float | None
    """Of the executor's device; None where it does not say, or the step failed."""


class StepListener(Protocol):
    """Is told after the sinks were told of the step's answer. Must neither block nor raise."""

    def step_timed(self, times: StepTimes) -> None: ...
