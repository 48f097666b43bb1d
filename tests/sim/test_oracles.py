"""The oracles can fail: each planted defect must be caught, by the oracle that is there for it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.core.commands import (
    Abort,
    Applied,
    Close,
    Command,
    CommitAck,
    CommitFailed,
    FinishAt,
    Flush,
    Flushed,
    Fork,
    OnAbort,
    Submit,
)
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.errors import Refusal, RefusalReason
from engine.core.events import (
    CoreEvent,
    Draining,
    KvMoved,
    Numbered,
    Protected,
    SessionForked,
    SessionTruncated,
    TokensSampled,
    TurnAdmitted,
    TurnEnded,
    TurnsForgotten,
)
from engine.core.invariants import CheckLevel, Finding, Report
from engine.core.ownership import Move
from engine.core.plan import StepFailure, StepOutcome, StepPlan, StepResult
from tests.kit.shadow_device import ShadowDevice
from tests.sim.records import OracleFired
from tests.sim.runner import find_failure, run_seed
from tests.sim.schedule import make_scenario
from tests.sim.world import World

SEEDS = range(40)
"""Enough that each defect has met its chance."""
LONG = 10_000


class EditsEvents(Core):
    """A core whose events pass through `edit`; None drops one, and the numbers are closed up behind it."""

    def __init__(self, config: CoreConfig) -> None:
        super().__init__(config)
        self._told = 0

    def edit(self, event: CoreEvent) -> CoreEvent | None:
        raise NotImplementedError

    def take_events(self) -> tuple[Numbered, ...]:
        edited = [self.edit(numbered.event) for numbered in super().take_events()]
        told = [event for event in edited if event is not None]
        kept = tuple(Numbered(self._told + index, event) for index, event in enumerate(told, 1))
        self._told += len(kept)
        return kept


class TellsOtherIds(EditsEvents):
    def edit(self, event: CoreEvent) -> CoreEvent:
        if isinstance(event, TokensSampled) and event.output_start == 3:
            return event._replace(token_ids=tuple((token + 1) % 40 for token in event.token_ids))
        return event


class DropsGrants(EditsEvents):
    def edit(self, event: CoreEvent) -> CoreEvent | None:
        return None if isinstance(event, KvMoved) and event.move is Move.GRANT else event


class DropsLocks(EditsEvents):
    def edit(self, event: CoreEvent) -> CoreEvent | None:
        return None if isinstance(event, Protected) else event


class DropsEnds(EditsEvents):
    def edit(self, event: CoreEvent) -> CoreEvent | None:
        return None if isinstance(event, TurnEnded) else event


class MiscountsUsage(EditsEvents):
    def edit(self, event: CoreEvent) -> CoreEvent:
        if isinstance(event, TurnEnded):
            return replace(event, usage=replace(event.usage, tokens_computed=event.usage.tokens_computed + 1))
        return event


class InventsHits(EditsEvents):
    """Tells of one token more from the tree than there was, wherever the turn's usage is told."""

    def edit(self, event: CoreEvent) -> CoreEvent:
        if isinstance(event, TurnAdmitted) and event.attempt == 1 and event.tokens_to_compute > 1:
            computed = event.tokens_to_compute - 1
            return replace(event, tokens_from_tree=event.tokens_from_tree + 1, tokens_to_compute=computed)
        if isinstance(event, TurnEnded) and event.usage.tokens_computed > 1:
            from_tree, computed = event.usage.tokens_from_tree + 1, event.usage.tokens_computed - 1
            return replace(event, usage=replace(event.usage, tokens_from_tree=from_tree, tokens_computed=computed))
        return event


class ForgetsSlots(EditsEvents):
    def edit(self, event: CoreEvent) -> CoreEvent:
        if isinstance(event, TurnAdmitted) and event.tokens_from_slot > 1:
            computed = event.tokens_to_compute + 1
            return replace(event, tokens_from_slot=event.tokens_from_slot - 1, tokens_to_compute=computed)
        return event


class MovesDrafted(EditsEvents):
    """Tells of one draft fewer than there were."""

    def edit(self, event: CoreEvent) -> CoreEvent:
        return (
            event._replace(drafted=event.drafted - 1) if isinstance(event, TokensSampled) and event.drafted else event
        )


class ForgetsDrains(EditsEvents):
    def edit(self, event: CoreEvent) -> CoreEvent | None:
        return None if isinstance(event, Draining) else event


class ForgetsForgotten(EditsEvents):
    def edit(self, event: CoreEvent) -> CoreEvent | None:
        return None if isinstance(event, TurnsForgotten) else event


class PromisesKv(EditsEvents):
    """Says of a fork or a cut that one token more has its KV."""

    def edit(self, event: CoreEvent) -> CoreEvent:
        return replace(event, kv_len=event.kv_len + 1) if isinstance(event, SessionForked | SessionTruncated) else event


class IgnoresPriorities(Core):
    def apply(self, command: Command, now: float) -> Applied:
        return super().apply(replace(command, priority=0) if isinstance(command, Submit) else command, now)


class IgnoresKeep(Core):
    def apply(self, command: Command, now: float) -> Applied:
        if isinstance(command, Submit):
            command = replace(command, on_abort=OnAbort.ROLL_BACK)
        return super().apply(command, now)


class ClosesAtOnce(Core):
    def apply(self, command: Command, now: float) -> Applied:
        return super().apply(replace(command, drain=False) if isinstance(command, Close) else command, now)


class SkipsCheckpoints(Core):
    """A core that never ends a chunk where a state is to be kept."""

    def __init__(self, config: CoreConfig) -> None:
        super().__init__(replace(config, state_interval=LONG) if config.state_slots else config)
        self.config = config


class DropsOffsets(Core):
    def apply(self, command: Command, now: float) -> Applied:
        return super().apply(replace(command, offset=None) if isinstance(command, Submit) else command, now)


class ForksAll(Core):
    """Takes a fork at a point for one of everything."""

    def apply(self, command: Command, now: float) -> Applied:
        return super().apply(replace(command, at_len=None) if isinstance(command, Fork) else command, now)


class SkipsNumbers(Core):
    def take_events(self) -> tuple[Numbered, ...]:
        events = super().take_events()
        return events[1:] if len(events) > 1 else events


class DropsAborts(Core):
    def apply(self, command: Command, now: float) -> Applied:
        return None if isinstance(command, Abort) else super().apply(command, now)


class DropsFlushes(Core):
    def apply(self, command: Command, now: float) -> Applied:
        return Flushed(0) if isinstance(command, Flush) else super().apply(command, now)


class DropsCuts(Core):
    def apply(self, command: Command, now: float) -> Applied:
        return None if isinstance(command, FinishAt) else super().apply(command, now)


class CommitsFailures(Core):
    def apply(self, command: Command, now: float) -> Applied:
        return super().apply(CommitAck(command.rid) if isinstance(command, CommitFailed) else command, now)


class RefusesAtRandom(Core):
    def apply(self, command: Command, now: float) -> Applied:
        if isinstance(command, Submit) and command.rid % 5 == 0:
            raise Refusal(RefusalReason.QUEUE_FULL, "no reason at all")
        return super().apply(command, now)


class AcceptsThenRefuses(Core):
    def apply(self, command: Command, now: float) -> Applied:
        lengths = super().apply(command, now)
        if isinstance(command, Submit):
            raise Refusal(RefusalReason.SESSION_UNKNOWN, "too late")
        return lengths


class HidesFailures(Core):
    """Takes a failed forward for one that ran."""

    def __init__(self, config: CoreConfig) -> None:
        super().__init__(config)
        self._plans: list[StepPlan] = []

    def next_plan(self, now: float) -> StepPlan | None:
        plan = super().next_plan(now)
        if plan is not None:
            self._plans.append(plan)
        return plan

    def advance(self, outcome: StepOutcome, now: float) -> None:
        plan = self._plans.pop(0)
        if isinstance(outcome, StepFailure):
            outcome = StepResult(plan.step, tuple((0,) * row.num_samples for row in plan.rows))
        super().advance(outcome, now)


class SwapsAnswers(Core):
    """Gives each row the answer of its neighbour."""

    def advance(self, outcome: StepOutcome, now: float) -> None:
        if isinstance(outcome, StepResult) and () not in outcome.sampled:
            outcome = replace(outcome, sampled=(*outcome.sampled[1:], outcome.sampled[0]))
        super().advance(outcome, now)


class ShiftsStarts(Core):
    """Plans a chunk one position early, over what was written before."""

    def next_plan(self, now: float) -> StepPlan | None:
        plan = super().next_plan(now)
        if plan is None or plan.rows[0].start_len == 0:
            return plan
        first = plan.rows[0]
        return replace(plan, rows=(first._replace(start_len=first.start_len - 1), *plan.rows[1:]))


class NeverPlans(Core):
    def next_plan(self, now: float) -> StepPlan | None:
        return None


class NeverExpires(Core):
    def expire(self, now: float) -> None:
        return


class FindsSomething(Core):
    def check(self, level: CheckLevel) -> Report:
        return Report(level, (Finding("census", "planted"),))


@pytest.mark.parametrize(
    ("make_core", "oracles"),
    [
        (TellsOtherIds, {"exact"}),
        (SwapsAnswers, {"exact"}),
        (ShiftsStarts, {"exact", "device"}),
        (HidesFailures, {"exact", "device", "ending"}),
        (DropsGrants, {"book"}),
        (DropsLocks, {"book", "device"}),
        (DropsEnds, {"ending"}),
        (DropsAborts, {"ending"}),
        (DropsFlushes, {"flush"}),
        (DropsCuts, {"ending"}),
        (CommitsFailures, {"ending"}),
        (SkipsNumbers, {"events"}),
        (MiscountsUsage, {"usage"}),
        (InventsHits, {"match"}),
        (ForgetsSlots, {"rollback"}),
        (RefusesAtRandom, {"refusal"}),
        (AcceptsThenRefuses, {"refusal"}),
        (NeverPlans, {"progress"}),
        (NeverExpires, {"expiry"}),
        (FindsSomething, {"check"}),
        (MovesDrafted, {"draft"}),
        (ForgetsDrains, {"book"}),
        (ForgetsForgotten, {"forget"}),
        (PromisesKv, {"fork", "truncate"}),
        (IgnoresPriorities, {"fair", "refusal"}),
        (IgnoresKeep, {"ending", "refusal"}),
        (ClosesAtOnce, {"ending"}),
        (SkipsCheckpoints, {"plan"}),
        (DropsOffsets, {"usage", "refusal"}),
        (ForksAll, {"fork", "refusal"}),
    ],
)
def test_oracle_when_defect_is_planted_then_fires(make_core: Callable[[CoreConfig], Core], oracles: set[str]) -> None:
    failing = find_failure(SEEDS, make_core)
    assert failing is not None, f"{len(SEEDS)} seeds are clean in spite of the defect"
    fired = failing.failure
    assert fired is not None
    assert fired.oracle in oracles, f"{fired}"


class Lies(ShadowDevice):
    """A device whose answers, from the fifth step on, give other ids than its pages do."""

    def answer(self) -> StepResult:
        result = super().answer()
        lies = tuple(tuple((token + 1) % 40 for token in told) for told in result.sampled)
        return replace(result, sampled=lies) if result.step >= 5 else result


class ForgetsPages(ShadowDevice):
    """A device that loses what was written to page 1."""

    def answer(self) -> StepResult:
        result = super().answer()
        self.poison((1,))
        return result


def fired_by(make_device: type[ShadowDevice], seed: int) -> OracleFired | None:
    """The oracle that fires on a world with this device, if one does."""
    scenario = make_scenario(seed)
    config = scenario.config
    device = make_device(
        scenario.model,
        page_size=config.page_size,
        pool_pages=config.pool_pages,
        num_rows=config.num_rows,
        swa_pages=config.swa_pages,
        state_slots=config.state_slots,
    )
    world = World(Core(config), scenario.model, is_durable=scenario.is_durable, device=device)
    try:
        for operation in scenario.ops:
            world.run(operation)
    except OracleFired as fired:
        return fired
    return None


@pytest.mark.parametrize(("make_device", "oracle"), [(Lies, "exact"), (ForgetsPages, "device")])
def test_oracle_when_device_is_wrong_then_fires(make_device: type[ShadowDevice], oracle: str) -> None:
    fired = next((failure for seed in SEEDS if (failure := fired_by(make_device, seed))), None)
    assert fired is not None, f"{len(SEEDS)} seeds are clean in spite of the device"
    assert fired.oracle == oracle, f"{fired}"


def test_oracle_when_nothing_is_planted_then_is_silent() -> None:
    assert run_seed(SEEDS[1]).failure is None
