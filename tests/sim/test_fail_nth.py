"""The Nth forward of a run fails, for every N until one is past the end: each of these runs ends clean."""

from dataclasses import replace

import pytest

from tests.sim.ops import AnswerOp
from tests.sim.runner import run_scenario
from tests.sim.schedule import make_scenario

NUM_OPS = 120


@pytest.mark.parametrize("seed", [3, 7, 12])
def test_forward_when_the_nth_fails_then_its_turns_end_and_nothing_else_breaks(seed: int) -> None:
    scenario = make_scenario(seed, NUM_OPS)
    answers = [index for index, operation in enumerate(scenario.ops) if isinstance(operation, AnswerOp)]
    reached = 0
    for failing in answers:
        ops = tuple(
            AnswerOp(fails=index == failing) if isinstance(operation, AnswerOp) else operation
            for index, operation in enumerate(scenario.ops)
        )
        result = run_scenario(replace(scenario, ops=ops))
        assert result.failure is None, f"answer {failing} fails: {result.failure}"
        reached += result.marks["end forward_failed"]
    assert reached > 0
