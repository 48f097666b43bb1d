"""The watchdog: a thread that looks at the signs of life, dumps what is stuck, and says when all is lost."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from engine.runtime.clock import PAUSE_S
from engine.runtime.incidents import IncidentKind, Incidents
from engine.runtime.vitals import Severity, Trip, Trouble, Vitals, WatchdogConfig, judge

_log = logging.getLogger(__name__)

_STOP_S = 1.0
"""How long `stop` waits for a look that is under way."""
_LEAVE_S = 5.0
"""How long an engine that is told that it is lost may take to end by itself."""
_TOLD_PAUSE_S = 0.5
"""Shorter pauses are not worth a line."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WatchdogHooks:
    """What the watchdog does about trouble. All are called in its own thread; what one raises is logged."""

    dump: Callable[[Trip], str]
    """All that is known, as lines of text. Must not need the event loop."""
    on_change: Callable[[Trouble | None], None]
    """Trouble began, became worse, or is over."""
    on_lost: Callable[[Trip], None]
    """The engine is lost for good: it should end, if it still can."""
    leave: Callable[[Trouble], None]
    """It could not: the process has to end at once."""
    on_tick: Callable[[], None] = lambda: None
    """Each time that it looks: this thread can still run."""


class Watchdog:
    """Looks several times a second. Needs nothing of the loop, and holds nothing that the loop needs."""

    def __init__(self, vitals: Vitals, incidents: Incidents, config: WatchdogConfig, hooks: WatchdogHooks) -> None:
        self._vitals = vitals
        self._incidents = incidents
        self._config = config
        self._hooks = hooks
        self._hidden: list[Trip] = []
        """Troubles behind the present one, which have not been seen to end."""
        self._lost_at_s: float | None = None
        self._has_told_lost = False
        self._paused_s = 0.0
        self._broken_hooks: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tenure-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Idempotent. Returns once it looks no more, or after a second: a dump may take its time."""
        self._stopping.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_STOP_S)

    def look(self) -> None:
        """One look, for its thread and for tests."""
        self._try("on_tick", self._hooks.on_tick, None)
        trouble = judge(self._vitals, self._config)
        self._tell_pause()
        trip = self._vitals.trip
        if trouble is None:
            if trip is not None:
                self._recover(trip)
            return
        if trip is None:
            self._trip(trouble)
        elif not _is_same(trip.trouble, trouble):
            self._pass_on(trip, trouble)
        elif trouble.severity is not trip.trouble.severity:
            self._worsen(Trip(trip.incident_id, trouble))
        else:
            self._vitals.trip = Trip(trip.incident_id, trouble)
        if trouble.severity is Severity.HARD:
            self._tell_lost()

    def _run(self) -> None:
        while not self._stopping.wait(self._config.tick_s):
            self.look()

    def _tell_pause(self) -> None:
        paused_s = self._vitals.clock.paused_s
        if paused_s - self._paused_s >= _TOLD_PAUSE_S:
            _log.warning(
                "event=process_paused seconds=%.1f: it was stopped, or nothing of it could run; %g s of it are counted",
                *(paused_s - self._paused_s + PAUSE_S, PAUSE_S),
            )
        self._paused_s = paused_s

    def _trip(self, trouble: Trouble) -> None:
        incident = self._incidents.open(trouble.kind, self._tell(trouble))
        trip = Trip(incident.incident_id, trouble)
        _log.error(
            "event=watchdog_tripped severity=%s incident_id=%s kind=%s phase=%s age_s=%.1f limit_s=%g: %s",
            *(trouble.severity, trip.incident_id, trouble.kind, trouble.phase, trouble.age_s, trouble.limit_s),
            self._tell(trouble),
        )
        self._try("on_change", lambda: self._hooks.on_change(trouble), None)
        self._dump(trip)
        # Only now: the loop ends the turns of a stuck forward when it sees this, and the dump has to show them.
        self._vitals.trip = trip

    def _worsen(self, trip: Trip) -> None:
        self._vitals.trip = trip
        self._incidents.amend(trip.incident_id, self._tell(trip.trouble))
        _log.critical(
            "event=watchdog_gave_up incident_id=%s kind=%s age_s=%.1f: %s",
            *(trip.incident_id, trip.trouble.kind, trip.trouble.age_s, self._tell(trip.trouble)),
        )
        self._try("on_change", lambda: self._hooks.on_change(trip.trouble), None)
        self._dump(trip)

    def _tell(self, trouble: Trouble) -> str:
        """What is wrong and, where it is past hope, what comes next."""
        if trouble.severity is Severity.SOFT:
            return trouble.message
        if self._config.exit_s == 0:
            return f"{trouble.message}; it does not end itself (--watchdog-exit-s 0): start it anew"
        return f"{trouble.message}; it ends itself in {self._config.exit_s:g} s unless there is progress"

    def _pass_on(self, known: Trip, trouble: Trouble) -> None:
        """Something else is wrong now. A stuck forward is over when another one is; all else may go on behind."""
        if known.trouble.kind is trouble.kind is IncidentKind.FORWARD_STUCK:
            self._lost_at_s = None
            self._end(known)
        else:
            self._hidden.append(known)
        self._trip(trouble)

    def _recover(self, trip: Trip) -> None:
        self._vitals.trip = None
        self._lost_at_s = None
        for each in (*self._hidden, trip):
            self._end(each)
        self._hidden.clear()
        self._try("on_change", lambda: self._hooks.on_change(None), None)

    def _end(self, trip: Trip) -> None:
        self._incidents.end(trip.incident_id)
        _log.warning("event=watchdog_recovered incident_id=%s kind=%s", trip.incident_id, trip.trouble.kind)

    def _tell_lost(self) -> None:
        """Asks the engine to end once its time is up, and ends the process when it does not."""
        trip, now_s = self._vitals.trip, self._vitals.clock.now()
        assert trip is not None, "what is lost was noticed before"
        if self._lost_at_s is None:
            self._lost_at_s = now_s
        lost_s = now_s - self._lost_at_s
        if self._config.exit_s == 0 or lost_s < self._config.exit_s:
            return
        if not self._has_told_lost:
            self._has_told_lost = True
            _log.critical("event=watchdog_exit kind=%s: %s", trip.trouble.kind, trip.trouble.message)
            self._try("on_lost", lambda: self._hooks.on_lost(trip), None)
        if lost_s >= self._config.exit_s + _LEAVE_S or trip.trouble.kind in (
            IncidentKind.LOOP_STUCK,
            IncidentKind.SLOW_END,
        ):
            self._try("leave", lambda: self._hooks.leave(trip.trouble), None)

    def _dump(self, trip: Trip) -> None:
        text = self._try("dump", lambda: self._hooks.dump(trip), "the dump failed; the log says why")
        self._paused_s = self._vitals.clock.paused_s  # time that a long dump took is no pause
        self._incidents.attach(trip.incident_id, text)
        _log.error("event=engine_dump incident_id=%s\n%s", trip.incident_id, text)

    def _try(self, name: str, hook: Callable[[], _T], instead: _T) -> _T:
        """The watchdog outlives what it calls. Each hook that fails is told of once."""
        try:
            return hook()
        except Exception as error:  # allowed: without this thread nobody notices anything any more
            if name not in self._broken_hooks:
                self._broken_hooks.add(name)
                _log.critical("event=watchdog_hook_failed hook=%s: %s", name, error, exc_info=error)
            return instead


def _is_same(known: Trouble, found: Trouble) -> bool:
    """Whether it is still the same thing that does not come on."""
    if known.kind is not found.kind:
        return False
    return known.kind is not IncidentKind.FORWARD_STUCK or known.step == found.step
