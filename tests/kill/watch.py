"""What a port's health service says, asked from threads of our own several times a second."""

import threading
import time
from dataclasses import dataclass
from enum import StrEnum

import grpc
from grpc_health.v1 import health_pb2

from services.limits import client_options
from tests.kit.health_probe import health_check

POLL_S = 0.2
TIMEOUT_S = 1.0
"""A probe that waited so long has got no answer."""
BLIP_S = 3.0
"""A port that is silent for less may have been slow: the machine is shared."""


class Condition(StrEnum):
    """What `liveness` and `readiness` say together."""

    READY = "ready"
    NOT_READY = "not ready"
    NOT_ALIVE = "not alive"
    SILENT = "no answer"
    GONE = "gone"
    """Nobody listens on the port."""


@dataclass(frozen=True, slots=True)
class Change:
    at_s: float
    """Seconds after the fault was planted."""
    condition: Condition


@dataclass(frozen=True, slots=True)
class Timeline:
    """What a port said from the moment of the fault on: the first is what it said then."""

    changes: tuple[Change, ...]

    def __str__(self) -> str:
        first, *later = self._steady
        if not later:
            return f"{first.condition} throughout"
        return " → ".join((first.condition.value, *(f"{change.at_s:.1f} s {change.condition}" for change in later)))

    @property
    def conditions(self) -> list[Condition]:
        """In their order."""
        return [change.condition for change in self._steady]

    @property
    def answers(self) -> list[Condition]:
        """In their order, without the times in which there was none: of a port that answers, if not always in time."""
        found: list[Condition] = []
        for change in self.changes:
            if change.condition is not Condition.SILENT and found[-1:] != [change.condition]:
                found.append(change.condition)
        return found

    @property
    def _steady(self) -> list[Change]:
        """Without times in which it was silent only because it was slow."""
        found: list[Change] = []
        ends_s = [change.at_s for change in self.changes[1:]]
        for change, end_s in zip(self.changes, [*ends_s, float("inf")], strict=True):
            is_blip = change.condition is Condition.SILENT and end_s - change.at_s < BLIP_S
            if not is_blip and (not found or found[-1].condition is not change.condition):
                found.append(change)
        return found

    def first_s(self, condition: Condition) -> float:
        """When it first said so. Raises AssertionError when it never did."""
        for change in self._steady:
            if change.condition is condition:
                return change.at_s
        raise AssertionError(f"never {condition}: {self}")

    def last_s(self) -> float:
        """When it last said something new."""
        return self._steady[-1].at_s


class PortWatch:
    """Asks one port from a thread of its own, until it is stopped."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=client_options())
        self._check = health_check(self._channel)
        self._lock = threading.Lock()
        self._changes: list[Change] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {address}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(3 * TIMEOUT_S)
        self._channel.close()

    @property
    def now(self) -> Condition | None:
        """What it said last; None before the first answer."""
        with self._lock:
            return self._changes[-1].condition if self._changes else None

    def since(self, moment_s: float) -> Timeline:
        """What it said from that moment on, by `time.monotonic`."""
        with self._lock:
            before = [change for change in self._changes if change.at_s <= moment_s][-1:]
            later = [change for change in self._changes if change.at_s > moment_s]
        return Timeline(tuple(Change(max(0.0, change.at_s - moment_s), change.condition) for change in before + later))

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._note(*self._ask())
            self._stopping.wait(POLL_S)

    def _ask(self) -> tuple[float, Condition]:
        """What is said, and since when: silence begins with the question that got no answer."""
        asked_s = time.monotonic()
        calls = [
            self._check.future(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S)
            for service in ("liveness", "readiness")
        ]
        try:
            is_alive, is_ready = (call.result().status == health_pb2.HealthCheckResponse.SERVING for call in calls)
        except grpc.RpcError:
            is_gone = any(call.code() is grpc.StatusCode.UNAVAILABLE for call in calls)
            return asked_s, Condition.GONE if is_gone else Condition.SILENT
        if not is_alive:
            return time.monotonic(), Condition.NOT_ALIVE
        return time.monotonic(), Condition.READY if is_ready else Condition.NOT_READY

    def _note(self, at_s: float, condition: Condition) -> None:
        with self._lock:
            if not self._changes or self._changes[-1].condition is not condition:
                self._changes.append(Change(at_s, condition))
