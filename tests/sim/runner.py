"""Runs seeds: what each one did, and for a failing one all that is needed to see it again."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.core.commands import AbortReason, FinishReason
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.errors import RefusalReason
from engine.core.events import SlotState
from engine.core.ownership import Move
from tests.sim.records import OracleFired
from tests.sim.schedule import Family, Scenario, make_scenario
from tests.sim.world import World

LINES_SHOWN = 30
SEEDS_FOR_MARKS = 100
"""From this many seeds on, a mark without a hit is a failure: the run did not prove what it claims."""

MOVES = (Move.GRANT, Move.DONATE, Move.PARK, Move.LEND, Move.RETURN, Move.DEMOTE, Move.EVICT, Move.RELEASE)
SESSION_ENDS = (AbortReason.SESSION_CLOSED, AbortReason.SESSION_EXPIRED)
TURN_ENDS = tuple(reason for reason in AbortReason if reason is not AbortReason.SESSION_EXPIRED)
"""A session never expires during a turn, so no turn ends that way."""
PHASES = ("waiting", "running", "retracting", "committing", "rolling_back")
REQUIRED_MARKS: tuple[str, ...] = (
    *(f"move {move}" for move in MOVES),
    *(f"end {reason}" for reason in FinishReason),
    *(f"end {reason}" for reason in TURN_ENDS),
    *(f"session {reason}" for reason in SESSION_ENDS),
    *(f"abort {phase}" for phase in (*PHASES, "absent")),
    *(f"close {phase}" for phase in (*PHASES, "idle")),
    *(f"slot {SlotState.LENT} → {state}" for state in (SlotState.COMMITTING, SlotState.RETURNING)),
    *(f"slot {SlotState.RETURNING} → {state}" for state in (SlotState.HELD, SlotState.EMPTY, SlotState.DEMOTED)),
    *(f"slot {state} → {SlotState.LENT}" for state in (SlotState.EMPTY, SlotState.HELD, SlotState.DEMOTED)),
    *(f"slot {SlotState.HELD} → {state}" for state in (SlotState.DEMOTED, SlotState.RELEASED)),
    "retraction",
    "resumed",
    "chunked prompt",
    "batched rows",
    "sampled input in flight",
    "over-run",
    "draining",
    "demoted under pressure",
    "row demoted",
    "hit slot",
    "hit tree",
    "finish_at",
    "finish_at none",
    "finish_at too many",
    "early ack",
    "sampled turn",
    "refused stateless turn id",
    *(f"refused {reason}" for reason in RefusalReason),
)


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


def missing_marks(marks: Counter[str]) -> list[str]:
    """Marks that must be hit and were not."""
    return [mark for mark in REQUIRED_MARKS if marks[mark] == 0]


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
