"""Seeds over several processes: the same result with any number of them, stopped by the first failure, told in full."""

import pytest

from tests.sim.campaign import describe_tally, run_range, soak
from tests.sim.marks import REQUIRED_MARKS
from tests.sim.runner import SeedResult


def ignore(result: SeedResult) -> None:
    assert result.failure is None, f"seed {result.seed}: {result.failure}"


def test_range_when_split_over_processes_then_tally_is_the_same() -> None:
    tallies = [run_range(range(12), None, jobs, ignore, keeps_going=False) for jobs in (1, 2)]
    assert tallies[0].marks == tallies[1].marks
    assert tallies[0].steps == tallies[1].steps
    assert tallies[0].seeds == tallies[1].seeds == 12


def test_table_when_marks_are_rare_then_names_them() -> None:
    tally = run_range(range(2), None, 1, ignore, keeps_going=False)
    table, rare = describe_tally(tally, 10**6, is_of_all=True)
    assert rare == list(REQUIRED_MARKS)
    assert "2 seeds" in table
    assert describe_tally(tally, None, is_of_all=True)[1] == []


def test_soak_when_time_is_over_then_stops_behind_whole_seeds() -> None:
    tally = soak(500, 0.01, 1, ignore)
    assert tally.seeds == len(tally.steps) > 0


@pytest.mark.parametrize("first_seed", [0, 7])
def test_range_when_run_again_then_reports_each_seed_in_order(first_seed: int) -> None:
    seen: list[int] = []
    run_range(range(first_seed, first_seed + 3), None, 1, lambda result: seen.append(result.seed), keeps_going=True)
    assert seen == [first_seed, first_seed + 1, first_seed + 2]
