"""The table of states."""

import pytest

from engine.runtime.lifecycle import NEXT_STATES, EngineState, Lifecycle

STATES = (
    EngineState.COMPILING,
    EngineState.WARMING,
    EngineState.SERVING,
    EngineState.DRAINING,
    EngineState.STOPPED,
)


def test_next_states_when_listed_then_every_state_has_a_line() -> None:
    assert set(NEXT_STATES) == set(EngineState)


def test_move_when_allowed_then_listeners_hear_of_it() -> None:
    lifecycle = Lifecycle()
    heard: list[EngineState] = []
    lifecycle.add_listener(heard.append)
    for state in STATES:
        lifecycle.move(state)
    assert heard == list(STATES)
    assert lifecycle.is_over


def test_move_when_not_in_the_table_then_refused() -> None:
    lifecycle = Lifecycle()
    with pytest.raises(AssertionError, match="loading can not become serving"):
        lifecycle.move(EngineState.SERVING)
    assert lifecycle.state is EngineState.LOADING
