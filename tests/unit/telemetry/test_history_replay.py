"""The sink against the core, in busy worlds: its books are the core's after each call, and its totals the events'."""

import gc
from collections import Counter
from collections.abc import Iterable

import pytest

from engine.core.commands import Submit
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.events import (
    CoreEvent,
    KvMoved,
    Numbered,
    SessionClosed,
    SessionOpened,
    StepAnswered,
    TokensSampled,
    TurnAccepted,
    TurnAdmitted,
    TurnEnded,
    TurnRetracted,
)
from engine.core.faults import Fault
from engine.core.findings import CheckLevel
from engine.core.ids import Rid, TurnId, pack_ids
from engine.core.ownership import Move, PoolKind
from telemetry.history import HistorySink
from telemetry.history_facts import SessionFacts
from tests.kit.busy_core import CONFIG, run_step
from tests.sim.runner import run_seed

STEP_S = 0.1
SEEDS = range(12)


class TurningClock:
    """Goes on by itself each time that the core tells something."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s


def pool_sizes(config: CoreConfig) -> dict[PoolKind, int]:
    """In the order of the core's pools."""
    sizes = {
        PoolKind.FULL: config.pool_pages,
        PoolKind.SWA: config.swa_pages,
        PoolKind.MAMBA: config.state_slots,
        PoolKind.ROWS: config.num_rows,
    }
    return {pool: size for pool, size in sizes.items() if size}


class ToldCore(Core):
    """Tells a sink all that it tells its world, and holds the sink's books against its own each time."""

    def __init__(self, config: CoreConfig) -> None:
        super().__init__(config)
        self.clock = TurningClock()
        self.sink = HistorySink(pool_sizes(config), self.clock, self.clock)
        self.told: list[CoreEvent] = []
        self.compared = 0

    def take_events(self) -> tuple[Numbered, ...]:
        events = super().take_events()
        self.told += [numbered.event for numbered in events]
        self.sink.publish(events, self.clock.now_s)
        snapshot, sample = self.snapshot(), self.sink.read(STEP_S).samples[-1]
        assert sample.pools == snapshot.pools
        assert sample.sessions_open == len(snapshot.sessions)
        self.compared += 1
        self.clock.now_s += STEP_S
        return events


def count(events: Iterable[CoreEvent], kind: type) -> int:
    return sum(isinstance(event, kind) for event in events)


@pytest.fixture(scope="module")
def worlds() -> list[ToldCore]:
    """Simulated servers, from their first session until everything is free again."""
    cores: list[ToldCore] = []

    def make(config: CoreConfig) -> Core:
        cores.append(ToldCore(config))
        return cores[-1]

    for seed in SEEDS:
        result = run_seed(seed, make)
        assert result.failure is None
    return cores


def test_books_when_a_world_is_busy_then_equal_to_the_cores_after_every_call(worlds: list[ToldCore]) -> None:
    assert sum(core.compared for core in worlds) > 1000
    told = Counter(event.move for core in worlds for event in core.told if isinstance(event, KvMoved))
    assert set(told) == set(Move) - {Move.QUARANTINE}, "the worlds have to show every move"
    pools = {event.pool for core in worlds for event in core.told if isinstance(event, KvMoved)}
    assert pools == set(PoolKind), "the worlds have to show every pool"


def test_totals_when_a_world_has_ended_then_those_of_its_events(worlds: list[ToldCore]) -> None:
    for core in worlds:
        told, totals = core.told, core.sink.read().totals
        assert totals.turns_accepted == count(told, TurnAccepted) == sum(totals.endings.values())
        assert totals.endings == Counter(event.outcome for event in told if isinstance(event, TurnEnded))
        assert totals.moves == Counter(event.move for event in told if isinstance(event, KvMoved))
        assert totals.tokens_generated == sum(len(e.token_ids) for e in told if isinstance(e, TokensSampled))
        assert totals.steps == count(told, StepAnswered)
        assert totals.steps_failed == sum(e.failure is not None for e in told if isinstance(e, StepAnswered))
        assert totals.retractions == count(told, TurnRetracted)
        assert totals.sessions_opened == count(told, SessionOpened) == sum(totals.sessions_closed.values())
        assert totals.sessions_closed == Counter(event.reason for event in told if isinstance(event, SessionClosed))


def test_contexts_when_a_world_has_ended_then_each_admitted_one_is_slot_tree_and_computed(
    worlds: list[ToldCore],
) -> None:
    for core in worlds:
        lengths = {event.rid: event.context_len for event in core.told if isinstance(event, TurnAccepted)}
        admitted = {event.rid for event in core.told if isinstance(event, TurnAdmitted)}
        totals = core.sink.read().totals
        parts = totals.tokens_from_slot, totals.tokens_from_tree, totals.tokens_to_compute
        assert sum(parts) == sum(lengths[rid] for rid in admitted)
        usages = [event.usage for event in core.told if isinstance(event, TurnEnded)]
        assert parts == (
            sum(usage.tokens_from_slot for usage in usages),
            sum(usage.tokens_from_tree for usage in usages),
            sum(usage.tokens_computed for usage in usages),
        )


def test_samples_when_a_world_has_ended_then_they_add_up_to_the_totals(worlds: list[ToldCore]) -> None:
    for core in worlds:
        history = core.sink.read()
        moves: Counter[str] = Counter()
        for sample in history.samples:
            moves.update(sample.moves)
        assert moves == history.totals.moves
        assert sum(sample.turns_ended for sample in history.samples) == history.totals.turns_accepted
        assert sum(sample.tokens_generated for sample in history.samples) == history.totals.tokens_generated
        assert sum(sample.steps for sample in history.samples) == history.totals.steps
        last = history.samples[-1]
        assert (last.turns_running, last.turns_waiting, last.sessions_open) == (0, 0, 0)
        assert history.facts_dropped == 0
        assert len(history.facts) == sum(sample.num_facts for sample in history.samples)


def test_sink_when_a_world_has_ended_then_no_turn_and_no_session_is_kept(worlds: list[ToldCore]) -> None:
    assert all(not core.has_work and not core.snapshot().sessions for core in worlds)
    gc.collect()
    kept = {type(each) for each in gc.get_objects() if type(each).__module__ == SessionFacts.__module__}
    assert kept == {SessionFacts}, "what a sink knows of turns and sessions goes with them"


def test_books_when_a_leaked_page_is_quarantined_then_equal_to_the_cores() -> None:
    core = ToldCore(CONFIG)
    core.apply(Submit(Rid(1), TurnId("t"), pack_ids(range(10)), max_tokens=2), 0.0)
    while core.has_work:
        run_step(core)
    core.plant(Fault.LEAK)
    assert core.quarantine(core.check(CheckLevel.FULL))
    core.take_events()
    (full, _rows) = core.sink.read().samples[-1].pools
    assert (full.quarantined, full.total, full.is_balanced) == (1, CONFIG.pool_pages - 2, True)
