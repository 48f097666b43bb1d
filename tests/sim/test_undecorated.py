"""Without the session-aware decorator everything but streaming sessions is as ever, byte for byte."""

from dataclasses import replace

import pytest

from tests.sim.families import Family
from tests.sim.ops import Op, OpenOp
from tests.sim.runner import run_scenario, run_seed
from tests.sim.schedule import Scenario, make_scenario

SEEDS = range(20)


def without_streaming(scenario: Scenario) -> Scenario:
    """Every session is an ordinary one."""

    def as_ordinary(operation: Op) -> Op:
        return replace(operation, streaming=False) if isinstance(operation, OpenOp) else operation

    return replace(scenario, ops=tuple(as_ordinary(operation) for operation in scenario.ops))


def test_seeds_when_cache_has_no_slots_then_no_law_is_broken_and_streaming_is_refused() -> None:
    results = [run_seed(seed, family=Family.UNDECORATED) for seed in SEEDS]
    assert [result.failure for result in results if result.failure is not None] == []
    assert sum(result.marks["refused STREAMING_DISABLED"] for result in results) > 0
    assert sum(result.marks["retraction"] for result in results) > 0
    assert sum(result.marks["hit tree"] for result in results) > 0
    assert not any(mark.startswith("slot ") for result in results for mark in result.marks)


@pytest.mark.parametrize("family", [Family.MIXED, Family.CROWD])
def test_events_when_no_session_streams_then_are_the_same_with_and_without_slots(family: Family) -> None:
    for seed in range(5):
        scenario = without_streaming(make_scenario(seed, family=family))
        digests = [
            run_scenario(replace(scenario, config=replace(scenario.config, streaming_sessions=has_slots))).digest
            for has_slots in (True, False)
        ]
        assert digests[0] == digests[1], f"seed {seed}"
