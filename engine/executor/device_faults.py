"""Forwards that go wrong on purpose, so that what the server does about real ones can be practised. Torch-free."""

import threading
from dataclasses import dataclass
from enum import StrEnum


class ForwardFault(StrEnum):
    SLEEP = "sleep"
    """The forward does not end in time, and then runs as ever."""
    RAISE = "raise"
    """The forward raises an error."""
    NAN = "nan"
    """The hidden states are not numbers."""
    BAD_TOKEN = "bad_token"
    """Ids are chosen that the vocabulary does not have."""
    DIE = "die"
    """The thread ends, with the forward in its hands."""


@dataclass(frozen=True, slots=True)
class ForwardDrill:
    """Which forwards go wrong, and how."""

    fault: ForwardFault
    seconds: float = 0.0
    """Of SLEEP: how long each one takes besides."""
    count: int = 0
    """So many go wrong; 0: all, until something else is armed."""
    every: int = 1
    """Only each such one: 33 for about 3 %."""

    def __post_init__(self) -> None:
        assert self.seconds >= 0, f"{self.seconds} seconds"
        assert self.count >= 0, f"{self.count} forwards"
        assert self.every >= 1, f"each {self.every}. forward"


class DeviceFaults:
    """Armed by any thread, the loop's among them; taken by the executor's, once for each forward."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._drill: ForwardDrill | None = None
        self._seen = 0
        self._hit = 0

    def arm(self, drill: ForwardDrill | None) -> None:
        """From the next forward on, in place of what was armed before. A forward that sleeps goes on at once."""
        with self._changed:
            self._drill, self._seen, self._hit = drill, 0, 0
            self._changed.notify_all()

    @property
    def armed(self) -> ForwardDrill | None:
        """None once all that was asked for has gone wrong."""
        with self._changed:
            return self._drill

    def take(self, num_samples: int) -> ForwardDrill | None:
        """What is to go wrong with the forward that begins now, which samples so many ids. Sleeps in here, if at all.

        A forward without samples has no id to get wrong: it does not count then.
        """
        with self._changed:
            drill = self._drill
            if drill is None or (drill.fault is ForwardFault.BAD_TOKEN and num_samples == 0):
                return None
            self._seen += 1
            if self._seen % drill.every != 0:
                return None
            self._hit += 1
            if self._hit == drill.count:
                self._drill = None
            if drill.fault is ForwardFault.SLEEP:
                seen = self._seen
                self._changed.wait_for(lambda: self._seen != seen, drill.seconds)
            return drill
