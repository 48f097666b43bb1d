"""All trials, in the order of the table, and how they are played."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from services.client import TenureError
from tests.kill.row import Group, Row, Scale, Solo, Trial
from tests.kill.stage import stage
from tests.kill.trials_books import DOUBLE_OWNER, LEAK
from tests.kill.trials_clients import STALLED
from tests.kill.trials_forward import EXECUTOR, FAILING, FAILURES_IN_A_ROW, LOST, STUCK
from tests.kill.trials_output import DISK_FULL, DISK_FULL_FOR_A_WHILE, LOG_UNREAD, SLOW_START
from tests.kill.trials_standstill import BLOCKED, HELD, STOPPED

BROKEN = Group("broken", lambda scale: scale.stuck, (STUCK, BLOCKED))
"""What trips the watchdog and passes."""
CALM = Group("calm", lambda scale: scale.calm, (*FAILING, HELD, STOPPED, LEAK))
"""What must not trip it."""

Part = Group | Solo
PARTS: tuple[Part, ...] = (
    BROKEN,
    LOST,
    CALM,
    FAILURES_IN_A_ROW,
    EXECUTOR,
    DOUBLE_OWNER,
    STALLED,
    DISK_FULL,
    DISK_FULL_FOR_A_WHILE,
    LOG_UNREAD,
    SLOW_START,
)

FAILURES = (AssertionError, TenureError, grpc.RpcError, OSError, LookupError, ValueError, subprocess.SubprocessError)
"""How a trial fails. Anything else is a fault of ours, and ends them all."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one trial: a row, or why there is none."""

    name: str
    title: str
    row: Row | None
    failure: str = ""


Note = Callable[[Result], None]
"""Is told of each result as soon as there is one."""


async def play(part: Part, scale: Scale, note: Note, only: str | None = None) -> None:
    """Each trial of the part, or the one of that name. A server that failed a trial is not used for the next one."""
    if isinstance(part, Solo):
        if only in (None, part.name):
            note(await _play_solo(part, scale))
        return
    left = [trial for trial in part.trials if only in (None, trial.name)]
    while left:
        left = await _play_on_one_server(part, left, scale, note)


async def _play_on_one_server(part: Group, trials: list[Trial], scale: Scale, note: Note) -> list[Trial]:
    """Up to the first that fails. Returns those that are left."""
    trial, *left = trials
    try:
        async with stage(part.limits(scale), *part.flags) as here:
            row = await trial.act(here, scale)
            while left:
                note(Result(trial.name, trial.title(scale), row))
                trial, *left = left
                row = await trial.act(here, scale)
            await here.end()
        note(Result(trial.name, trial.title(scale), row))
    except FAILURES as failure:  # whatever went wrong is this trial's result, and the others are still to be seen
        note(_failed(trial, scale, failure))
    return left


async def _play_solo(part: Solo, scale: Scale) -> Result:
    try:
        return Result(part.name, part.title(scale), await part.play(scale))
    except FAILURES as failure:  # as above
        return _failed(part, scale, failure)


def _failed(trial: Trial | Solo, scale: Scale, failure: Exception) -> Result:
    return Result(trial.name, trial.title(scale), None, f"{type(failure).__name__}: {failure}")
