"""The watchdog: a thread that looks at the signs of life, dumps what is stuck, and says when all is lost."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from engine.runtime.incidents import Incidents
from engine.runtime.vitals import Severity, Trip, Trouble, Vitals, WatchdogConfig, judge

_log = logging.getLogger(__name__)

_STOP_S = 1.0
"""How long `stop` waits for a look that is under way."""


@dataclass(frozen=True, slots=True)
class WatchdogHooks:
    """What the watchdog does about trouble. All are called in its own thread."""

    dump: Callable[[Trip], str]
    """All that is known, as lines of text. Must not need the event loop."""
    on_change: Callable[[Trouble | None], None]
    """Trouble began, became worse, or is over."""
    on_lost: Callable[[Trouble], None]
    """The engine is lost for good: the process should end. Called once."""
    on_tick: Callable[[], None] = lambda: None
    """Each time that it looks: this thread can still run."""


class Watchdog:
    """Looks several times a second. Needs nothing of the loop, and holds nothing that the loop needs."""

    def __init__(self, vitals: Vitals, incidents: Incidents, config: WatchdogConfig, hooks: WatchdogHooks) -> None:
        self._vitals = vitals
        self._incidents = incidents
        self._config = config
        self._hooks = hooks
        self._lost_at_s: float | None = None
        self._has_told_lost = False
        self._paused_s = 0.0
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
        self._hooks.on_tick()
        trouble = judge(self._vitals, self._config)
        self._tell_pause()
        trip = self._vitals.trip
        if trip is not None and (trouble is None or not _is_same(trip.trouble, trouble)):
            self._recover(trip)
            trip = None
        if trouble is None:
            return
        if trip is None:
            self._trip(trouble)
        elif trouble.severity is not trip.trouble.severity:
            self._worsen(Trip(trip.incident_id, trouble))
        if trouble.severity is Severity.HARD:
            self._tell_lost(trouble)

    def _run(self) -> None:
        while not self._stopping.wait(self._config.tick_s):
            self.look()

    def _tell_pause(self) -> None:
        paused_s = self._vitals.clock.paused_s
        if paused_s > self._paused_s:
            _log.warning(
                "event=process_paused seconds=%.1f: it was stopped, or nothing of it could run; that is not counted",
                paused_s - self._paused_s,
            )
            self._paused_s = paused_s

    def _trip(self, trouble: Trouble) -> None:
        incident = self._incidents.open(trouble.kind, trouble.message)
        trip = Trip(incident.incident_id, trouble)
        _log.error(
            "event=watchdog_tripped severity=%s incident_id=%s kind=%s phase=%s age_s=%.1f limit_s=%g: %s",
            *(trouble.severity, trip.incident_id, trouble.kind, trouble.phase, trouble.age_s, trouble.limit_s),
            trouble.message,
        )
        self._dump(trip)
        # Only now: the loop ends the turns of a stuck forward when it sees this, and the dump has to show them.
        self._vitals.trip = trip
        self._hooks.on_change(trouble)

    def _worsen(self, trip: Trip) -> None:
        self._vitals.trip = trip
        _log.critical(
            "event=watchdog_gave_up incident_id=%s kind=%s age_s=%.1f: %s",
            *(trip.incident_id, trip.trouble.kind, trip.trouble.age_s, trip.trouble.message),
        )
        self._dump(trip)
        self._hooks.on_change(trip.trouble)

    def _recover(self, trip: Trip) -> None:
        self._vitals.trip = None
        self._lost_at_s = None
        self._incidents.end(trip.incident_id)
        _log.warning("event=watchdog_recovered incident_id=%s kind=%s", trip.incident_id, trip.trouble.kind)
        self._hooks.on_change(None)

    def _tell_lost(self, trouble: Trouble) -> None:
        now_s = self._vitals.clock.now()
        if self._lost_at_s is None:
            self._lost_at_s = now_s
        due = self._config.exit_s > 0 and now_s - self._lost_at_s >= self._config.exit_s
        if due and not self._has_told_lost:
            self._has_told_lost = True
            _log.critical("event=watchdog_exit kind=%s: %s", trouble.kind, trouble.message)
            self._hooks.on_lost(trouble)

    def _dump(self, trip: Trip) -> None:
        text = self._hooks.dump(trip)
        self._incidents.attach(trip.incident_id, text)
        _log.error("event=engine_dump incident_id=%s\n%s", trip.incident_id, text)


def _is_same(known: Trouble, found: Trouble) -> bool:
    """Whether it is still the same thing that does not come on."""
    return known.kind is found.kind and known.step == found.step and known.phase is found.phase
