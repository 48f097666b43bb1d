"""Shrinks a schedule that breaks a law to a short one that breaks the same law: what is left is what matters."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from engine.core.commands import AbortReason, TurnMode
from engine.core.core import Core
from engine.core.sampling import GREEDY
from tests.kit.shadow_model import ShadowModel
from tests.sim.ops import (
    AbortOp,
    AckOp,
    AmbushOp,
    CloseOp,
    ExpireOp,
    FinishAtOp,
    ForkOp,
    Op,
    OpenOp,
    TurnOp,
)
from tests.sim.runner import MakeCore, SeedResult, run_scenario
from tests.sim.schedule import Scenario
from tests.sim.script import DEFAULT_CONFIG, LIMITS, SWITCHES

AnyOp = TypeVar("AnyOp", bound=Op)

RUNS_MAX = 5000
"""Runs that a search may take; what it has by then is returned."""
PAIRS_OPS_MAX = 40
"""From this many operations down, any two of them are left out together: a turn and its abort, say."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """`result` is of the short schedule. `runs`: how many were tried."""

    scenario: Scenario
    result: SeedResult
    runs: int


def shrink(failing: SeedResult, make_core: MakeCore = Core, runs_max: int = RUNS_MAX) -> Shrunk:
    """The shortest schedule found on which the same oracle fires."""
    search = _Search(failing, make_core, runs_max)
    while search.improve():
        pass
    return Shrunk(search.best, search.result, search.runs)


class _Search:
    """Greedy: whatever is simpler and fires the same oracle becomes the best so far."""

    def __init__(self, failing: SeedResult, make_core: MakeCore, runs_max: int) -> None:
        assert failing.failure is not None, f"seed {failing.seed} is clean"
        self._oracle = failing.failure.oracle
        self._make_core = make_core
        self._runs_max = runs_max
        self.runs = 0
        self.result = failing
        self.best = replace(failing.scenario, ops=failing.scenario.ops[: failing.step])

    def improve(self) -> bool:
        """One round over everything. False when nothing got simpler, or the runs are used up."""
        before = self.best
        self._leave_out_runs()
        self._leave_out_pairs()
        self._simplify_ops()
        self._simplify_limits()
        return self.best != before and self.runs < self._runs_max

    def _takes(self, scenario: Scenario) -> bool:
        """Whether the simpler scenario still fires; then it is the best, without what comes after the failure."""
        if scenario == self.best or self.runs >= self._runs_max:
            return False
        self.runs += 1
        result = run_scenario(scenario, self._make_core)
        if result.failure is None or result.failure.oracle != self._oracle:
            return False
        self.best, self.result = replace(scenario, ops=scenario.ops[: result.step]), result
        return True

    def _takes_ops(self, ops: tuple[Op, ...]) -> bool:
        return self._takes(replace(self.best, ops=ops))

    def _leave_out_runs(self) -> None:
        """Delta debugging: ever shorter runs of operations, from the end."""
        length = len(self.best.ops)
        while length >= 1:
            start = len(self.best.ops) - length
            while start > -length:
                ops = self.best.ops
                self._takes_ops(ops[: max(0, start)] + ops[max(0, start + length) :])
                start = min(start, len(self.best.ops)) - length
            length //= 2

    def _leave_out_pairs(self) -> None:
        first = 0
        while first < len(self.best.ops) <= PAIRS_OPS_MAX:
            second = first + 1
            while second < len(self.best.ops):
                ops = self.best.ops
                if not self._takes_ops(ops[:first] + ops[first + 1 : second] + ops[second + 1 :]):
                    second += 1
            first += 1

    def _simplify_ops(self) -> None:
        index = 0
        while index < len(self.best.ops):
            ops = self.best.ops
            if not any(self._takes_ops((*ops[:index], op, *ops[index + 1 :])) for op in simpler_ops(ops[index])):
                index += 1

    def _simplify_limits(self) -> None:
        for scenario in tuple(simpler_limits(self.best)):
            self._takes(replace(self.best, config=scenario.config))
        self._takes(replace(self.best, is_durable=False))
        for name in (*LIMITS.values(), *SWITCHES, "idle_timeout_s"):
            if name != "vocab_size":  # goes with the model
                with suppress(ValueError):  # limits of one kind of memory go together
                    usual = getattr(DEFAULT_CONFIG, name)
                    self._takes(replace(self.best, config=replace(self.best.config, **{name: usual})))
        model = self.best.model
        self._takes(replace(self.best, model=replace(model, eos_percent=0)))
        self._takes(replace(self.best, model=ShadowModel(model.vocab_size, model.eos_id, 0)))
        vocab_size = DEFAULT_CONFIG.vocab_size
        without_eos = replace(self.best.config, vocab_size=vocab_size, eos_ids=())
        self._takes(replace(self.best, config=without_eos, model=ShadowModel(vocab_size)))


def simpler_limits(scenario: Scenario) -> Iterator[Scenario]:
    """All limits as usual at once, but for sizes of the pools."""
    config = scenario.config
    usual = replace(DEFAULT_CONFIG, vocab_size=config.vocab_size, eos_ids=config.eos_ids)
    yield replace(scenario, config=usual)
    sizes = {name: getattr(config, name) for name in ("page_size", "pool_pages", "num_rows", "context_len")}
    yield replace(scenario, config=replace(usual, **sizes))


def simpler_ops(operation: Op) -> Iterator[Op]:
    """Operations of the same kind with less in them, the simplest first. None is as rich as the given one."""
    match operation:
        case TurnOp():
            yield from _simpler_turns(operation)
        case OpenOp():
            plain = replace(operation, idle_timeout_s=None, namespace="", priority=0)
            yield from _others(operation, plain, replace(operation, namespace=""), replace(operation, streaming=True))
        case AbortOp():
            yield from _others(operation, replace(operation, reason=AbortReason.CLIENT))
        case CloseOp():
            yield from _others(operation, replace(operation, drain=False))
        case ForkOp():
            yield from _others(operation, replace(operation, at_turn=None, at_len=None))
            yield from _others(operation, replace(operation, at_turn=None), replace(operation, at_len=None))
        case AckOp():
            yield from _others(operation, AckOp(1, fails=False), replace(operation, fails=False))
        case ExpireOp():
            yield from _others(operation, ExpireOp(0.0))
        case FinishAtOp():
            yield from _others(operation, replace(operation, back=0))
        case AmbushOp(phase="running"):
            pass
        case AmbushOp():
            yield replace(operation, phase="running")
        case _:
            pass


def _simpler_turns(turn: TurnOp) -> Iterator[TurnOp]:
    appending = replace(turn, mode=TurnMode.APPEND, offset=None, is_dropping=False)
    without = replace(appending, is_keeping=False, priority=None, draft_tokens=0)
    yield from _others(turn, replace(without, namespace="", sampling=GREEDY, ignore_eos=False, parent=None), without)
    yield from _others(turn, replace(turn, namespace=""), replace(turn, parent=None), replace(turn, ignore_eos=False))
    yield from _others(turn, appending, replace(turn, offset=None), replace(turn, is_dropping=False))
    yield from _others(turn, replace(turn, is_keeping=False), replace(turn, priority=None))
    yield from _others(turn, replace(turn, draft_tokens=min(1, turn.draft_tokens)), replace(turn, draft_tokens=0))
    if turn.max_tokens is None or turn.max_tokens > 1:
        yield replace(turn, max_tokens=1)
    if turn.max_tokens is not None and turn.max_tokens > 2:
        yield replace(turn, max_tokens=turn.max_tokens // 2)
        yield replace(turn, max_tokens=turn.max_tokens - 1)
    length = len(turn.ids)
    if length > 1:
        for shorter in (1, length // 2, length - 1):
            yield replace(turn, ids=turn.ids[:shorter])
    yield from _others(turn, replace(turn, ids=tuple(range(1, length + 1))))


def _others(operation: AnyOp, *candidates: AnyOp) -> Iterator[AnyOp]:
    return (candidate for candidate in candidates if candidate != operation)
