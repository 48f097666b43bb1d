"""Makes a dump of one engine: asked for, at a halt, or from outside when something is stuck."""

import asyncio
import threading
from dataclasses import replace

from engine.core.core import Core
from engine.runtime.clock import WallClock
from engine.runtime.dump import DumpHead, dump_engine
from engine.runtime.incidents import Incident
from engine.runtime.lifecycle import EngineState
from engine.runtime.vitals import STARTING, Phase, Trip, Vitals

_TRIES = 3
"""How often a dump is made anew because the loop changed the core meanwhile."""


class Dumps:
    """May be asked from any thread."""

    def __init__(self, core: Core | None, vitals: Vitals) -> None:
        """`core`: None while there is none yet."""
        self._core = core
        self._vitals = vitals
        self.loop: asyncio.AbstractEventLoop | None = None
        """Whose tasks are told of; None before it runs."""

    def of_now(self) -> str:
        trip = self._vitals.trip
        if trip is None:
            return self._make(self._head("somebody asked for it"))
        return self._make(self._head_of(trip))

    def of_halt(self, incident: Incident, error: Exception) -> str:
        head = self._head(incident.message)
        head = replace(head, incident_id=incident.incident_id, kind=incident.kind, state=EngineState.FAILED)
        return self._make(head, error)

    def of_trip(self, trip: Trip) -> str:
        """Not from the loop: the core is read while nothing changes it, or the dump says otherwise."""
        head = self._head_of(trip)
        if self._core is None:
            return self._make(head)
        for _ in range(_TRIES):
            changes = self._core.num_changes
            text = self._make(head)
            if changes % 2 == 0 and self._core.num_changes == changes:
                return text
        return self._make(replace(head, is_torn=True))

    def _head_of(self, trip: Trip) -> DumpHead:
        trouble = trip.trouble
        return replace(
            self._head(trouble.message),
            phase=trouble.phase,
            incident_id=trip.incident_id,
            kind=trouble.kind,
            age_s=trouble.age_s,
            limit_s=trouble.limit_s,
        )

    def _head(self, message: str) -> DumpHead:
        vitals = self._vitals
        return DumpHead(
            message=message,
            state=vitals.state,
            phase=_phase_of(vitals),
            beat=vitals.beat.number if vitals.beat is not None else 0,
            paused_s=vitals.clock.paused_s,
            taken_by=threading.current_thread().name,
            time_s=WallClock().now(),
        )

    def _make(self, head: DumpHead, failure: Exception | None = None) -> str:
        try:
            return dump_engine(self._core, head, failure, self.loop)
        except Exception as error:  # allowed: whoever needs a dump has something worse to deal with than this
            return f"books: CAN NOT BE TOLD: {type(error).__name__}: {error}\nwhy: {head.message}"


def _phase_of(vitals: Vitals) -> Phase:
    beat = vitals.beat
    if beat is None or vitals.state in STARTING:
        return STARTING.get(vitals.state, Phase.IDLE)
    return beat.oldest.phase if beat.oldest is not None else Phase.IDLE
