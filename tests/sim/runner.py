"""Runs seeds: what each one did, and for a failing one all that is needed to see it again."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.core.config import CoreConfig
from engine.core.core import Core
from tests.sim.families import Family
from tests.sim.records import OracleFired
from tests.sim.schedule import Scenario, make_scenario
from tests.sim.world import World

LINES_SHOWN = 30


@dataclass(frozen=True, slots=True)
class SeedResult:
    """`failure` is None for a clean run. `step` counts the operations done, `lines` are the last ones."""

    scenario: Scenario
    step: int
    digest: str
    marks: Counter[str]
    failure: OracleFired | None
    lines: tuple[str, ...]

    @property
    def seed(self) -> int:
        return self.scenario.seed


MakeCore = Callable[[CoreConfig], Core]


def run_seed(seed: int, make_core: MakeCore = Core, family: Family | None = None) -> SeedResult:
    """Runs one seed to its end or to the first law that is broken."""
    return run_scenario(make_scenario(seed, family=family), make_core)


def find_failure(seeds: Iterable[int], make_core: MakeCore = Core, family: Family | None = None) -> SeedResult | None:
    """The first of these seeds on which a law is broken."""
    return next((result for seed in seeds if (result := run_seed(seed, make_core, family)).failure is not None), None)


def run_scenario(scenario: Scenario, make_core: MakeCore = Core) -> SeedResult:
    """Runs a scenario's operations, then drains it."""
    world = World(make_core(scenario.config), scenario.model, is_durable=scenario.is_durable)
    step = 0
    failure: OracleFired | None = None
    try:
        for operation in scenario.ops:
            step += 1
            world.run(operation)
        step += 1
        world.drain()
    except OracleFired as fired:
        failure = fired
    return SeedResult(scenario, step, world.digest, world.marks, failure, tuple(world.lines[-LINES_SHOWN:]))


def describe_failure(result: SeedResult) -> str:
    """For people: the oracle, the operation, the last lines, and the command that shrinks it."""
    assert result.failure is not None, f"seed {result.seed} is clean"
    scenario = result.scenario
    again = f"python -m tests.sim --seeds 1 --first-seed {result.seed} --family {scenario.family}"
    return "\n".join(
        (
            f"seed {result.seed}, operation {result.step} of {len(scenario.ops)}: {result.failure}",
            f"    {scenario.config}",
            *(f"    {line}" for line in result.lines),
            f"replay: {again}",
            f"shrink: {again} --shrink",
        )
    )
