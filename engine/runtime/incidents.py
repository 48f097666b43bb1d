"""What went wrong lately, each with an id that the client's error, the log and the dump share."""

import secrets
import threading
from dataclasses import dataclass, replace
from enum import StrEnum

from engine.runtime.clock import Clock

INCIDENTS_MAX = 64
"""Incidents that are remembered."""
DUMPS_MAX = 8
"""Of these, the newest so many with a dump keep it."""


class IncidentKind(StrEnum):
    FORWARD_FAILED = "forward_failed"
    """A forward raised, or its numbers could not be used. The turns of its step were ended."""
    FORWARD_STUCK = "forward_stuck"
    """A forward did not end in its time. The turns of its step were ended."""
    LOOP_STUCK = "loop_stuck"
    """The event loop did not come round in its time."""
    FAILING = "failing"
    """Too many forwards failed one after the other."""
    SLOW_START = "slow_start"
    """Loading, compiling or warming up did not end in its time."""
    LEAK = "leak"
    """Pages that nobody owned any more were quarantined."""
    HALTED = "halted"
    """The engine ended by itself."""
    SLOW_END = "slow_end"
    """The engine has ended, and the process does not come to its end."""


@dataclass(frozen=True, slots=True)
class Incident:
    incident_id: str
    kind: IncidentKind
    message: str
    """What happened, in a line."""
    time_s: float
    """Seconds since 1970."""
    over_s: float | None = None
    """When it was over, where that is known."""
    dump: str | None = None


class Incidents:
    """Bounded, oldest first. May be used from any thread."""

    def __init__(self, clock: Clock) -> None:
        """`clock` tells seconds since 1970."""
        self._clock = clock
        self._lock = threading.Lock()
        self._incidents: list[Incident] = []

    def open(self, kind: IncidentKind, message: str) -> Incident:
        """Remembers one more, under an id that nobody can guess."""
        incident = Incident(secrets.token_hex(6), kind, message, self._clock.now())
        with self._lock:
            if len(self._incidents) >= INCIDENTS_MAX:
                del self._incidents[self._least()]
            self._incidents.append(incident)
        return incident

    def attach(self, incident_id: str, dump: str) -> None:
        """Keeps its dump, behind an earlier one of its own, at the expense of the oldest ones.

        Nothing happens to an incident that is not kept.
        """
        with self._lock:
            known = next((each.dump for each in self._incidents if each.incident_id == incident_id), None)
            self._change(incident_id, dump=dump if known is None else f"{known}\n\n{dump}")
            with_dump = [each for each in self._incidents if each.dump is not None]
            for each in with_dump[:-DUMPS_MAX]:
                self._change(each.incident_id, dump=None)

    def amend(self, incident_id: str, message: str) -> None:
        """More is known of it by now."""
        with self._lock:
            self._change(incident_id, message=message)

    def end(self, incident_id: str) -> None:
        """It is over now."""
        with self._lock:
            self._change(incident_id, over_s=self._clock.now())

    def find(self, incident_id: str) -> Incident | None:
        with self._lock:
            return next((each for each in self._incidents if each.incident_id == incident_id), None)

    def all(self) -> tuple[Incident, ...]:
        """Oldest first."""
        with self._lock:
            return tuple(self._incidents)

    def _least(self) -> int:
        """Where the one stands that is missed least: the oldest that is over and has no dump, else that is over."""
        ranks = [(each.over_s is None, each.dump is not None) for each in self._incidents]
        return ranks.index(min(ranks))

    def _change(self, incident_id: str, **changes: float | str | None) -> None:
        for place, each in enumerate(self._incidents):
            if each.incident_id == incident_id:
                self._incidents[place] = replace(each, **changes)  # type: ignore[arg-type]  # its own fields
