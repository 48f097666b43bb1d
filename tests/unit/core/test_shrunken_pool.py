"""A quarantine makes the pool smaller while turns run: what can still end does, and nobody waits for ever."""

from dataclasses import replace

import pytest

from engine.core.commands import AbortReason, CommitAck, FinishReason, Submit
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.errors import InvariantViolation, Refusal, RefusalReason
from engine.core.events import CommitRequested, TurnEnded, TurnRetracted
from engine.core.faults import Fault
from engine.core.findings import CheckLevel
from engine.core.ids import Rid, TurnId, pack_ids
from engine.core.plan import StepResult

CONFIG = CoreConfig(
    page_size=4,
    pool_pages=11,
    num_rows=9,
    context_len=64,
    vocab_size=100,
    retractions_max=1,
    new_token_ratio=0.0,
    prefix_cache=False,
)
STEPS_MAX = 300


class Engine:
    """A core that is answered with the same id over and over, and acknowledged at once."""

    def __init__(self, config: CoreConfig) -> None:
        self.core = Core(config)
        self.ended: dict[Rid, TurnEnded] = {}
        self.retracted: list[Rid] = []

    def submit(self, rid: int, max_tokens: int, priority: int = 0, num_ids: int = 2) -> Rid:
        ids = pack_ids([rid] * num_ids)
        command = Submit(Rid(rid), TurnId(f"t{rid}"), ids, max_tokens=max_tokens, priority=priority)
        self.core.apply(command, 0.0)
        return command.rid

    def step(self) -> bool:
        plan = self.core.next_plan(0.0)
        if plan is not None:
            self.core.advance(StepResult(plan.step, tuple((5,) * row.num_samples for row in plan.rows)), 0.0)
        self.take()
        return plan is not None

    def take(self) -> None:
        for numbered in self.core.take_events():
            match numbered.event:
                case CommitRequested(rid):
                    self.core.apply(CommitAck(rid), 0.0)
                    self.take()
                case TurnEnded() as end:
                    self.ended[end.rid] = end
                case TurnRetracted(rid):
                    self.retracted.append(rid)
                case _:
                    pass

    def lose_pages(self, count: int) -> None:
        """So many pages leak, are found, and go into quarantine."""
        for _ in range(count):
            self.core.plant(Fault.LEAK)
        report = self.core.check(CheckLevel.FULL)
        assert sum(len(history.moves) > 0 for history in self.core.quarantine(report)) == count
        assert self.core.check(CheckLevel.FULL).is_clean
        self.take()

    def run(self) -> None:
        for _ in range(STEPS_MAX):
            if not self.core.has_work:
                return
            assert self.step(), "turns are alive, and nothing is planned"
        raise AssertionError(f"still busy after {STEPS_MAX} steps")


def test_last_attempts_when_they_no_longer_fit_together_then_one_gives_way_and_all_end() -> None:
    engine = Engine(CONFIG)
    long = [engine.submit(rid, max_tokens=18) for rid in (1, 2)]
    short = [engine.submit(rid, max_tokens=11, priority=1) for rid in (3, 4, 5)]
    while not all(rid in engine.ended for rid in short) or not _both_run(engine, long):
        assert engine.step()
    assert sorted(set(engine.retracted)) == long, "both are on their last attempt"
    engine.lose_pages(2)
    engine.run()
    assert [engine.ended[rid].outcome for rid in long] == [FinishReason.LENGTH] * 2
    assert engine.ended[long[0]].usage.output_len == engine.ended[long[1]].usage.output_len == 18


def _both_run(engine: Engine, rids: list[Rid]) -> bool:
    phases = {turn.rid: turn.phase for turn in engine.core.snapshot().turns}
    return all(phases.get(rid) == "running" for rid in rids)


def test_turn_when_the_pool_no_longer_holds_all_of_it_then_it_is_cut_to_what_it_holds() -> None:
    engine = Engine(CONFIG)
    engine.submit(1, max_tokens=30)
    engine.run()
    whole = engine.submit(2, max_tokens=38)
    engine.step()
    engine.lose_pages(2)
    engine.run()
    assert engine.ended[whole].outcome is FinishReason.LENGTH
    assert engine.ended[whole].usage.output_len == 8 * 4 - 2


def test_turn_when_the_pool_no_longer_holds_its_prompt_then_it_ends_and_the_next_is_refused() -> None:
    engine = Engine(CONFIG)
    engine.submit(1, max_tokens=30)
    engine.run()
    waiting = engine.submit(2, max_tokens=2, num_ids=37)
    engine.lose_pages(2)
    assert engine.ended[waiting].outcome is AbortReason.FORWARD_FAILED
    assert "shrank to 32" in engine.ended[waiting].detail
    with pytest.raises(Refusal) as caught:
        engine.submit(3, max_tokens=2, num_ids=37)
    assert (caught.value.reason, caught.value.limit) == (RefusalReason.PROMPT_EXCEEDS_POOL, 32)


def test_quarantine_when_nothing_is_left_to_serve_with_then_it_is_no_state_to_go_on_in() -> None:
    engine = Engine(replace(CONFIG, pool_pages=3))
    engine.submit(1, max_tokens=5)
    engine.run()
    for _ in range(2):
        engine.core.plant(Fault.LEAK)
    report = engine.core.check(CheckLevel.FULL)
    with pytest.raises(InvariantViolation, match="too little is left in circulation"):
        engine.core.quarantine(report)
