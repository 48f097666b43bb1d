"""The sink in busy worlds of every kind: one ended span a turn, whatever ends it; no span left open; no link astray."""

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

import pytest

from engine.core.commands import AbortReason, FinishReason
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.events import CoreEvent, KvMoved, Numbered, StepAnswered, TurnAccepted, TurnEnded
from engine.core.ownership import Move
from engine.runtime.step_times import StepTimes
from telemetry.names import Attr, Relation
from telemetry.spans.record import FinishedSpan, SpanStatus
from tests.kit.span_desk import SpanDesk, find_linked
from tests.sim.runner import run_seed

SEEDS = range(30)
Told = TypeVar("Told")


class DrawnCore(Core):
    """Tells a sink all that it tells its world."""

    def __init__(self, config: CoreConfig) -> None:
        super().__init__(config)
        self.desk = SpanDesk(trace_steps=3)
        self.told: list[CoreEvent] = []

    def take_events(self) -> tuple[Numbered, ...]:
        events = super().take_events()
        told = [numbered.event for numbered in events]
        self.told += told
        self.desk.tell(*told)
        for event in told:
            if isinstance(event, StepAnswered):
                self.desk.sink.step_timed(StepTimes(event.step, 0.001, None))
        return events

    def of(self, kind: type[Told]) -> list[Told]:
        return [event for event in self.told if isinstance(event, kind)]


def run_drawn(seed: int) -> DrawnCore:
    cores: list[DrawnCore] = []

    def make(config: CoreConfig) -> Core:
        cores.append(DrawnCore(config))
        return cores[0]

    result = run_seed(seed, make)
    assert result.failure is None, result.failure
    return cores[0]


@pytest.fixture(scope="module")
def worlds() -> list[DrawnCore]:
    return [run_drawn(seed) for seed in SEEDS]


def test_turns_when_they_end_in_any_way_then_one_ended_span_each_with_its_cause(worlds: list[DrawnCore]) -> None:
    seen: Counter[str] = Counter()
    for world in worlds:
        spans = {span.attributes[Attr.TURN_NUMBER]: span for span in world.desk.of("turn")}
        assert len(spans) == len(world.desk.of("turn")) == len(world.of(TurnAccepted))
        for end in world.of(TurnEnded):
            span = spans[end.rid]
            assert span.attributes[Attr.OUTCOME] == end.outcome
            assert span.attributes[Attr.OUTPUT_TOKENS] == end.usage.output_len
            assert span.attributes[Attr.COMMITTED] == end.is_committed
            if isinstance(end.outcome, FinishReason):
                assert span.status is SpanStatus.OK
            else:
                assert span.status is SpanStatus.ERROR
                assert span.status_message.startswith(end.outcome)
            seen[end.outcome] += 1
    # A session expires only when it has no turn.
    assert seen.keys() == {*FinishReason, *AbortReason} - {AbortReason.SESSION_EXPIRED}


def test_worlds_when_all_is_over_then_no_span_is_open_and_nothing_is_remembered(worlds: list[DrawnCore]) -> None:
    for world in worlds:
        assert world.desk.sink.num_open == 0
        assert world.desk.sink.num_known == 0


def test_spans_when_drawn_then_ids_are_unique_and_parents_and_links_are_there(worlds: list[DrawnCore]) -> None:
    for world in worlds:
        spans = world.desk.shelf.spans
        ids = {span.context.span_id for span in spans}
        assert len(ids) == len(spans)
        assert {span.parent_span_id for span in spans} - {""} <= ids
        assert all(link.context.span_id in ids for span in spans for link in span.links)
        assert all(span.start_ns <= span.end_ns for span in spans)


def test_hand_overs_when_drawn_then_each_leads_to_a_span_that_held_the_units(worlds: list[DrawnCore]) -> None:
    num_links = 0
    for world in worlds:
        spans = world.desk.shelf.spans
        for span in spans:
            if not span.name.startswith("kv."):
                continue
            holders = find_linked(spans, span, Relation.PREVIOUS_HOLDER)
            assert len(holders) <= 1
            if not holders:
                assert span.attributes[Attr.FROM] in ("cache", "free"), span
                continue
            assert is_holder(holders[0], str(span.attributes[Attr.FROM])), (span, holders[0])
            num_links += 1
    assert num_links > 500


def is_holder(span: FinishedSpan, owner: str) -> bool:
    """Whether that owner got units in the span."""
    if span.name == "turn":
        return owner == f"request {span.attributes[Attr.TURN_NUMBER]}"
    return span.attributes[Attr.TO] == owner


def test_hand_overs_when_drawn_then_they_tell_of_every_unit_that_a_slot_or_a_lease_moved(
    worlds: list[DrawnCore],
) -> None:
    drawn = (Move.PARK, Move.LEND, Move.RETURN, Move.DEMOTE, Move.PUBLISH)
    total = 0
    for world in worlds:
        for move in drawn:
            moved = sum(len(event.pages) for event in world.of(KvMoved) if event.move is move)
            told = sum(units_of(span) for span in world.desk.of(f"kv.{move}"))
            assert told == moved, move
            total += moved
    assert total > 800


def units_of(span: FinishedSpan) -> int:
    return sum(
        int(str(span.attributes.get(key, 0))) for key in (Attr.FULL_PAGES, Attr.SWA_PAGES, Attr.STATES, Attr.ROWS)
    )


def names(spans: Iterable[FinishedSpan]) -> set[str]:
    return {span.name for span in spans}


def test_worlds_when_drawn_then_every_kind_of_span_is_met(worlds: list[DrawnCore]) -> None:
    met = set().union(*(names(world.desk.shelf.spans) for world in worlds))
    moves = {f"kv.{move}" for move in (Move.PARK, Move.LEND, Move.RETURN, Move.DEMOTE, Move.PUBLISH, Move.RELEASE)}
    assert met == {"session", "turn", "turn.queue", "turn.prefill", "turn.decode", "step", *moves}
