"""The states of an engine, from loading to its end, and who wants to know."""

from collections.abc import Callable
from enum import StrEnum


class EngineState(StrEnum):
    LOADING = "loading"
    """The model is being read."""
    COMPILING = "compiling"
    """The executor makes what its first forwards need."""
    WARMING = "warming"
    """The first turn runs; nothing is taken from outside."""
    SERVING = "serving"
    DRAINING = "draining"
    """Nothing new is taken; what runs is being ended."""
    STOPPED = "stopped"
    FAILED = "failed"
    """The engine halted by itself. The process has to end with an error."""


NEXT_STATES: dict[EngineState, tuple[EngineState, ...]] = {
    EngineState.LOADING: (EngineState.COMPILING, EngineState.STOPPED, EngineState.FAILED),
    EngineState.COMPILING: (EngineState.WARMING, EngineState.DRAINING, EngineState.FAILED),
    EngineState.WARMING: (EngineState.SERVING, EngineState.DRAINING, EngineState.FAILED),
    EngineState.SERVING: (EngineState.DRAINING, EngineState.FAILED),
    EngineState.DRAINING: (EngineState.STOPPED, EngineState.FAILED),
    EngineState.STOPPED: (),
    EngineState.FAILED: (),
}

StateListener = Callable[[EngineState], None]


class Lifecycle:
    """One engine's state. Listeners are called in the order in which they came, at each change, and must not raise."""

    def __init__(self) -> None:
        self._state = EngineState.LOADING
        self._listeners: list[StateListener] = []

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def is_over(self) -> bool:
        return self._state in (EngineState.STOPPED, EngineState.FAILED)

    def add_listener(self, listener: StateListener) -> None:
        self._listeners.append(listener)

    def move(self, state: EngineState) -> None:
        """Goes on to `state`, which the table must allow."""
        assert state in NEXT_STATES[self._state], f"an engine that is {self._state} can not become {state}"
        self._state = state
        for listener in self._listeners:
            listener(state)
