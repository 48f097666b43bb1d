"""What probes are told, state by state."""

import pytest

from engine.runtime.lifecycle import EngineState
from services.health import SERVICES, SERVING_IN


def test_table_when_listed_then_every_state_has_a_line() -> None:
    assert set(SERVING_IN) == set(EngineState)


@pytest.mark.parametrize("state", EngineState)
def test_table_when_any_state_then_the_whole_server_is_as_readiness(state: EngineState) -> None:
    assert ("" in SERVING_IN[state]) == ("readiness" in SERVING_IN[state]) == (state is EngineState.SERVING)
    assert set(SERVING_IN[state]) <= set(SERVICES)


def test_liveness_when_loading_or_draining_then_alive_and_when_failed_then_not() -> None:
    """WDG-05 (sgl-project/sglang#3752): a slow start is no hang."""
    alive = [state for state in EngineState if "liveness" in SERVING_IN[state]]
    assert alive == [state for state in EngineState if state is not EngineState.FAILED]
