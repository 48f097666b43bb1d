"""A failing schedule is shrunk to a short one that breaks the same law, and a script says all that there is to it."""

from pathlib import Path

import pytest

from tests.kit.transcript import trace_failure
from tests.sim.__main__ import replay
from tests.sim.families import Family
from tests.sim.runner import MakeCore, find_failure, run_scenario
from tests.sim.schedule import make_scenario
from tests.sim.script import ScriptError, read_script, render_op, render_script
from tests.sim.shrink import shrink, simpler_ops
from tests.sim.test_oracles import CommitsFailures, ForgetsSlots, HidesFailures, RefusesAtRandom, ShiftsStarts

SHORT_OPS_MAX = 12


@pytest.mark.parametrize("make_core", [ForgetsSlots, HidesFailures, CommitsFailures, ShiftsStarts, RefusesAtRandom])
def test_shrink_when_defect_is_planted_then_schedule_is_short_and_breaks_the_same_law(make_core: MakeCore) -> None:
    failing = find_failure(range(40), make_core, Family.MIXED)
    assert failing is not None
    assert failing.failure is not None
    shrunk = shrink(failing, make_core)
    assert len(shrunk.scenario.ops) <= SHORT_OPS_MAX < len(failing.scenario.ops) / 10
    script = render_script(shrunk.scenario)
    again = run_scenario(read_script(script), make_core).failure
    assert again is not None
    assert again.oracle == failing.failure.oracle
    assert f"! {again}" in trace_failure(script, make_core).splitlines()[-1]
    assert run_scenario(shrunk.scenario).failure is None, "it is the defect that breaks the law"


@pytest.mark.parametrize("family", Family)
def test_script_when_read_again_then_is_the_same_scenario(family: Family) -> None:
    for seed in range(5):
        scenario = make_scenario(seed, family=family)
        again = read_script(render_script(scenario))
        assert repr(again.ops) == repr(scenario.ops)  # not `==`: some numbers are not a number
        assert (again.config, again.model, again.is_durable) == (scenario.config, scenario.model, scenario.is_durable)


def test_script_when_read_again_then_leaves_the_same_events() -> None:
    scenario = make_scenario(2)
    assert run_scenario(read_script(render_script(scenario))).digest == run_scenario(scenario).digest


@pytest.mark.parametrize(
    "script", ["", "open s streaming", "config colour=red", "config\nfly", "config\nturn"], ids=lambda text: repr(text)
)
def test_script_when_it_makes_no_sense_then_raises(script: str) -> None:
    with pytest.raises(ScriptError):
        read_script(script)


def test_operations_when_simplified_over_and_over_then_come_to_an_end() -> None:
    for operation in make_scenario(4).ops:
        seen = 0
        left = [operation]
        while left and seen < 200:
            seen += 1
            left = list(simpler_ops(left[0]))[:1]
        assert not left, f"{render_op(operation)} gets simpler for ever"


def test_replay_when_script_is_clean_then_prints_its_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "schedule.txt"
    path.write_text("config\nturn - t ids=1..3 max=2\ndrain\n", "utf-8")
    assert replay(path, is_shrinking=True) == 0
    printed = capsys.readouterr().out
    assert "ended t: length" in printed
    assert printed.endswith("# clean\n")
