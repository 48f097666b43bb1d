"""The Nth grant, forward or commit of a run fails, for every N until none is left to fail: each such run ends clean."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.core.config import CoreConfig
from tests.sim.families import Family
from tests.sim.ops import AckOp, AnswerOp, Op
from tests.sim.runner import SeedResult, run_scenario
from tests.sim.schedule import Scenario, make_scenario

NUM_OPS = 100


def fail_each(scenario: Scenario, fail_nth: Callable[[int], Op | None]) -> list[SeedResult]:
    """A run for each operation that `fail_nth` can make fail, with that one failing and no other."""
    results: list[SeedResult] = []
    for index in range(len(scenario.ops)):
        failing = fail_nth(index)
        if failing is not None:
            ops = (*scenario.ops[:index], failing, *scenario.ops[index + 1 :])
            results.append(run_scenario(replace(scenario, ops=ops)))
    return results


def all_succeeding(scenario: Scenario) -> Scenario:
    ops = tuple(replace(op, fails=False) if isinstance(op, AnswerOp | AckOp) else op for op in scenario.ops)
    return replace(scenario, ops=ops)


@pytest.mark.parametrize("family", [Family.CROWD, Family.FORKS, Family.SPECULATIVE, Family.KINDS])
def test_forward_when_the_nth_fails_then_its_turns_end_and_nothing_else_breaks(family: Family) -> None:
    scenario = all_succeeding(make_scenario(3, NUM_OPS, family))

    def fail_nth(index: int) -> Op | None:
        return AnswerOp(fails=True) if isinstance(scenario.ops[index], AnswerOp) else None

    results = fail_each(scenario, fail_nth)
    assert [result.failure for result in results if result.failure is not None] == []
    assert sum(result.marks["end forward_failed"] for result in results) > 0


@pytest.mark.parametrize("family", [Family.MIXED, Family.FORKS, Family.BRANCHES, Family.KINDS])
def test_commit_when_the_nth_fails_then_its_turn_rolls_back_and_nothing_else_breaks(family: Family) -> None:
    scenario = replace(all_succeeding(make_scenario(5, NUM_OPS, family)), is_durable=True)
    num_acks = NUM_OPS // 8
    every: list[Op] = []
    for index, operation in enumerate(scenario.ops):
        every += [operation, AckOp(1, fails=False)] if index % 8 == 0 else [operation]
    dense = replace(scenario, ops=tuple(every))

    def fail_nth(index: int) -> Op | None:
        operation = dense.ops[index]
        return replace(operation, fails=True) if isinstance(operation, AckOp) else None

    results = fail_each(dense, fail_nth)
    assert len(results) >= num_acks
    assert [result.failure for result in results if result.failure is not None] == []
    assert sum(result.marks["end commit_failed"] for result in results) > 0


def limited(config: CoreConfig, limit: str, count: int) -> CoreConfig:
    """Raises ValueError where one turn alone needs more."""
    return replace(config, swa_pages=count) if limit == "swa_pages" else replace(config, state_slots=count)


def least_of(config: CoreConfig, limit: str) -> int:
    """With fewer no core is made: one turn alone needs so many."""
    for count in range(getattr(config, limit), 0, -1):
        try:
            limited(config, limit, count - 1)
        except ValueError:
            return count
    raise AssertionError(f"{limit} is never too low")


@pytest.mark.parametrize(("limit", "seed"), [("swa_pages", 29), ("state_slots", 2)])
def test_grant_when_ever_fewer_windows_or_states_are_there_then_each_one_is_once_the_one_refused(
    limit: str, seed: int
) -> None:
    scenario = make_scenario(seed, NUM_OPS, Family.KINDS)
    least = least_of(scenario.config, limit)
    digests: set[str] = set()
    for count in range(least + 8, least - 1, -1):
        result = run_scenario(replace(scenario, config=limited(scenario.config, limit, count)))
        assert result.failure is None, f"{count} {limit}: {result.failure}"
        digests.add(result.digest)
    assert len(digests) > 3, f"{limit} from {least} to {least + 8} make no difference"


def with_fewer_pages(scenario: Scenario, pages: int) -> Scenario:
    return replace(scenario, config=replace(scenario.config, pool_pages=pages))


@pytest.mark.parametrize("family", [Family.CROWD, Family.FORKS, Family.BRANCHES, Family.SPECULATIVE])
def test_grant_when_ever_fewer_pages_are_there_then_each_one_is_once_the_one_refused(family: Family) -> None:
    """With a page less in each run, every grant of the first run is refused in some run, the first ones last."""
    scenario = make_scenario(7, NUM_OPS, family)
    for pages in range(scenario.config.pool_pages, 1, -1):
        result = run_scenario(with_fewer_pages(scenario, pages))
        assert result.failure is None, f"{pages} pages: {result.failure}"
