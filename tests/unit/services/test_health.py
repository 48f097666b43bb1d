"""What probes are told, state by state and trouble by trouble."""

import pytest

from engine.runtime.incidents import IncidentKind
from engine.runtime.lifecycle import EngineState
from engine.runtime.vitals import Phase, Severity, Trouble
from services.health import SERVICES, SERVING_IN, find_serving


def trouble(severity: Severity) -> Trouble:
    return Trouble(IncidentKind.FORWARD_STUCK, severity, Phase.DECODE, 31.0, 30.0, None, "")


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


@pytest.mark.parametrize(
    ("severity", "serving"), [(Severity.SOFT, ("startup", "liveness")), (Severity.HARD, ("startup",))]
)
def test_serving_when_in_trouble_then_no_work_should_come_and_when_lost_it_is_not_alive(
    severity: Severity, serving: tuple[str, ...]
) -> None:
    assert find_serving(EngineState.SERVING, trouble(severity)) == serving
    assert find_serving(EngineState.SERVING, None) == SERVICES


@pytest.mark.parametrize("severity", Severity)
@pytest.mark.parametrize("state", EngineState)
def test_serving_when_in_trouble_then_never_more_than_without(state: EngineState, severity: Severity) -> None:
    assert set(find_serving(state, trouble(severity))) <= set(find_serving(state, None))
