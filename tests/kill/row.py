"""A trial, how long things take in it, and what it has to say."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.kill.stage import Limits, Stage

HARD = 3
"""At so many times its limit the watchdog gives up."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How long faults last, and what the watchdog allows, in seconds."""

    limit_s: float
    """Of forwards and of the loop, where one is to be found stuck."""
    asleep_s: float
    """A forward that comes back."""
    blocked_s: float
    """An event loop that comes round again."""
    calm_limit_s: float
    """Where a process stands still: above what its clock takes a pause for."""
    held_s: float
    quiet_s: float
    """How long health is looked at after a fault that must not touch it."""
    exit_s: float
    """Between giving up and the end of the process."""

    @property
    def stuck(self) -> Limits:
        return Limits(self.limit_s, self.limit_s, 0.0)

    @property
    def lost(self) -> Limits:
        return Limits(self.limit_s, self.limit_s, self.exit_s)

    @property
    def calm(self) -> Limits:
        return Limits(self.calm_limit_s, self.calm_limit_s, 0.0)


FULL = Scale(limit_s=5, asleep_s=60, blocked_s=20, calm_limit_s=5, held_s=20, quiet_s=3, exit_s=5)
QUICK = Scale(limit_s=2, asleep_s=8, blocked_s=8, calm_limit_s=4, held_s=6, quiet_s=1, exit_s=1)


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a trial, in words and measured times."""

    clients: str
    health: str
    """On the probe port, unless another one is named. Times are seconds after the fault."""
    dump: str
    recovered: str


Act = Callable[[Stage, Scale], Awaitable[Row]]
"""Hurts a server that serves, and asserts what has to hold."""
Play = Callable[[Scale], Awaitable[Row]]
"""The same, with a server of its own."""


@dataclass(frozen=True, slots=True)
class Trial:
    name: str
    title: Callable[[Scale], str]
    """What is done to the server."""
    act: Act


@dataclass(frozen=True, slots=True)
class Group:
    """Trials on one server process, in this order; all but the last leave it well."""

    name: str
    limits: Callable[[Scale], Limits]
    trials: tuple[Trial, ...]
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Solo:
    """A trial that starts its own server."""

    name: str
    title: Callable[[Scale], str]
    play: Play
