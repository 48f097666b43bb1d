"""What is drawn of turns, sessions, steps and KV, with a real core telling."""

from dataclasses import replace

import pytest

from engine.core.commands import Abort, AbortReason, Close, Fork, Open, Submit, Truncate
from engine.core.config import CoreConfig
from engine.core.ids import Rid, SessionId, TurnId
from engine.core.ownership import Move
from engine.runtime.step_times import StepTimes
from telemetry.names import Attr, EventName, Relation
from telemetry.spans.context import write_caller
from telemetry.spans.record import FinishedSpan, SpanContext, SpanStatus
from telemetry.spans.session_draw import FOLLOWED_TURNS_MAX
from tests.kit.core_parts import CoreRig
from tests.kit.span_desk import SpanDesk

CALLER = SpanContext("a" * 32, "b" * 16)
CONFIG = CoreConfig(
    page_size=4, pool_pages=17, num_rows=5, context_len=60, vocab_size=1000, chunk_tokens=8, step_tokens=16
)


class Story:
    """A core and what is drawn of it."""

    def __init__(self, config: CoreConfig = CONFIG, trace_steps: int = 0) -> None:
        self.rig = CoreRig(config)
        self.desk = SpanDesk(trace_steps)

    def draw(self) -> None:
        """What one operation told is published at once."""
        told = self.rig.take()
        if told:
            self.desk.tell(*told)

    def finish(self) -> None:
        """Until nothing is left to do."""
        self.draw()
        while self.rig.core.has_work:
            if self.rig.plan() is None:
                self.rig.answer()
            self.draw()

    def open(self, name: str) -> None:
        caller = write_caller(CALLER)
        self.rig.apply(Open(SessionId(name), True, trace_id=caller.trace_id, caller_span=caller.span))

    def submit(
        self, turn: str, num_ids: int, session: str | None = None, *, max_tokens: int = 2, namespace: str = ""
    ) -> Rid:
        caller = write_caller(CALLER)
        command = replace(
            self.rig.command(turn, range(num_ids), session),
            trace_id=caller.trace_id,
            caller_span=caller.span,
            max_tokens=max_tokens,
            namespace=namespace,
        )
        return self.rig.submit(command)

    def run(self, turn: str, num_ids: int, session: str | None = None, *, namespace: str = "") -> Rid:
        rid = self.submit(turn, num_ids, session, namespace=namespace)
        self.finish()
        return rid


def test_turn_when_it_finishes_then_one_span_below_its_caller_with_its_phases() -> None:
    story = Story()
    story.run("t", 11)
    turn = story.desk.turn("t")
    assert (turn.context.trace_id, turn.parent_span_id) == (CALLER.trace_id, CALLER.span_id)
    assert turn.status is SpanStatus.OK
    phases = [story.desk.only(name) for name in ("turn.queue", "turn.prefill", "turn.decode")]
    assert {phase.parent_span_id for phase in phases} == {turn.context.span_id}
    assert [(phase.start_ns, phase.end_ns) for phase in phases] == sorted(
        (phase.start_ns, phase.end_ns) for phase in phases
    )
    chunks = [event.attributes for event in phases[1].events if event.name == EventName.CHUNK]
    assert [(chunk[Attr.START], chunk[Attr.TOKENS]) for chunk in chunks] == [(0, 8), (8, 3)]
    assert [event.name for event in turn.events] == [EventName.FIRST_TOKEN, EventName.COMMIT]
    expected = {Attr.INPUT_TOKENS: 11, Attr.OUTPUT_TOKENS: 2, Attr.CACHED_TOKENS: 0, Attr.FINISH_REASONS: ("length",)}
    assert expected.items() <= turn.attributes.items()
    assert story.desk.sink.num_open == 0


def test_turns_when_of_one_session_then_each_leads_to_the_one_before_and_to_who_held_its_kv() -> None:
    story = Story()
    story.open("s")
    for name in ("t1", "t2", "t3"):
        story.run(name, 5, "s")
    desk = story.desk
    first, second, third = map(desk.turn, ("t1", "t2", "t3"))
    assert desk.linked(first, Relation.PREVIOUS_TURN) == []
    assert desk.linked(second, Relation.PREVIOUS_TURN) == [first]
    assert desk.linked(third, Relation.PREVIOUS_TURN) == [second]
    parks, lends = desk.of("kv.park"), desk.of("kv.lend")
    assert (len(parks), len(lends)) == (3, 2)
    assert desk.linked(parks[0], Relation.PREVIOUS_HOLDER) == [first]  # it was granted the pages
    assert desk.linked(lends[0], Relation.PREVIOUS_HOLDER) == [parks[0]]
    assert desk.linked(parks[1], Relation.PREVIOUS_HOLDER) == [lends[0]]
    assert desk.linked(lends[1], Relation.PREVIOUS_HOLDER) == [parks[1]]
    assert [park.parent_span_id for park in parks] == [span.context.span_id for span in (first, second, third)]
    assert [park.attributes[Attr.KV_TOKENS] for park in parks] == [6, 13, 20]
    assert lends[0].attributes[Attr.KV_TOKENS] == 6
    assert (lends[0].attributes[Attr.FROM], lends[0].attributes[Attr.TO]) == ("session 1", "request 2")


def test_session_when_demoted_and_used_again_then_its_turn_leads_to_the_demotion() -> None:
    story = Story()
    story.open("s")
    story.run("t1", 9, "s")
    story.run("t1b", 9, "s")
    story.run("big", 50)
    demote = story.desk.only("kv.demote")
    first = story.desk.turn("t1b")
    assert demote.parent_span_id == first.context.span_id
    assert (demote.attributes[Attr.FULL_PAGES], demote.attributes[Attr.KV_TOKENS]) == (3, 21)
    assert story.desk.linked(demote, Relation.PREVIOUS_HOLDER) == story.desk.of("kv.park")[1:]
    story.run("t2", 5, "s")
    assert story.desk.linked(story.desk.turn("t2"), Relation.PREVIOUS_HOLDER) == [demote]


def test_turn_when_aborted_in_its_second_turn_then_an_error_with_its_cause_and_its_kv_returned() -> None:
    story = Story()
    story.open("s")
    story.run("t1", 5, "s")
    rid = story.submit("t2", 5, "s", max_tokens=20)
    story.rig.step(4)
    story.rig.apply(Abort(rid, AbortReason.DISCONNECT))
    story.draw()
    turn = story.desk.turn("t2")
    assert (turn.status, turn.status_message) == (SpanStatus.ERROR, "disconnect")
    assert turn.attributes[Attr.FINISH_REASONS] == ("abort",)
    assert turn.attributes[Attr.OUTPUT_TOKENS] == 4
    returned = story.desk.only("kv.return")
    assert story.desk.linked(returned, Relation.PREVIOUS_HOLDER) == story.desk.of("kv.lend")
    assert returned.attributes[Attr.KV_TOKENS] == 6
    story.run("t3", 5, "s")
    third = story.desk.turn("t3")
    assert story.desk.linked(third, Relation.PREVIOUS_TURN) == [story.desk.turn("t1")]
    assert story.desk.linked(story.desk.of("kv.lend")[1], Relation.PREVIOUS_HOLDER) == [returned]
    assert story.desk.sink.num_open == 0


def test_turn_when_retracted_then_it_queues_and_computes_again_in_spans_of_its_own() -> None:
    story = Story(replace(CONFIG, page_size=2, pool_pages=9, new_token_ratio=0.0))
    for name in ("a", "b"):
        story.submit(name, 4, max_tokens=8, namespace=name)
    story.finish()
    retracted = [span for span in story.desk.of("turn") if span.attributes[Attr.RETRACTIONS]]
    assert len(retracted) == 1
    own = [span for span in story.desk.shelf.spans if span.parent_span_id == retracted[0].context.span_id]
    names = [span.name for span in own if span.name.startswith("turn.")]
    assert names == ["turn.queue", "turn.prefill", "turn.decode", "turn.queue", "turn.prefill", "turn.decode"]
    decode = next(span for span in own if span.name == "turn.decode")
    assert [event.name for event in decode.events] == [EventName.RETRACTED]
    assert [span.attributes[Attr.ATTEMPT] for span in own if span.name == "turn.prefill"] == [1, 2]


def test_session_when_forked_then_it_and_its_first_turn_lead_to_where_they_come_from() -> None:
    story = Story()
    story.open("s")
    story.run("t1", 5, "s")
    story.run("t2", 9, "s")
    caller = write_caller(CALLER)
    story.rig.apply(Fork(SessionId("s"), SessionId("f"), trace_id=caller.trace_id, caller_span=caller.span))
    story.draw()
    last = story.desk.turn("t2")
    opened = story.desk.of("session")[1]
    assert opened.parent_span_id == CALLER.span_id
    assert story.desk.linked(opened, Relation.FORKED_FROM) == [last]
    assert (opened.attributes[Attr.HISTORY_TOKENS], opened.attributes[Attr.KV_TOKENS]) == (18, 16)
    publish = story.desk.only("kv.publish")
    assert story.desk.linked(publish, Relation.PREVIOUS_HOLDER) == story.desk.of("kv.park")[1:]
    story.run("u1", 5, "f")
    assert story.desk.linked(story.desk.turn("u1"), Relation.PREVIOUS_TURN) == [last]
    # It borrows what was published, and has nothing of its own that could be lent.
    assert story.desk.linked(story.desk.turn("u1"), Relation.PREVIOUS_HOLDER) == [publish]


@pytest.mark.parametrize(("at_len", "expected"), [(18, "t2"), (12, "t2"), (8, "t2"), (7, "t1"), (3, "t1"), (0, None)])
def test_session_when_forked_or_cut_at_a_length_then_what_comes_next_leads_to_the_turn_that_is_there(
    at_len: int, expected: str | None
) -> None:
    story = Story()
    story.open("s")
    story.run("t1", 5, "s")  # with its answer the first 7 tokens
    story.run("t2", 9, "s")
    story.rig.apply(Fork(SessionId("s"), SessionId("f"), at_len=at_len))
    story.draw()
    story.rig.apply(Truncate(SessionId("s"), at_len))
    story.draw()
    story.run("u", 5, "f")
    story.run("t3", 5, "s")
    turns = [] if expected is None else [story.desk.turn(expected)]
    assert story.desk.linked(story.desk.turn("u"), Relation.PREVIOUS_TURN) == turns
    assert story.desk.linked(story.desk.turn("t3"), Relation.PREVIOUS_TURN) == turns
    if expected is None:
        assert story.desk.linked(story.desk.turn("t3"), Relation.PREVIOUS_HOLDER) == []


def test_session_when_cut_behind_more_turns_than_are_remembered_then_no_turn_is_made_up() -> None:
    story = Story(replace(CONFIG, pool_pages=200, context_len=700))
    story.open("s")
    for number in range(FOLLOWED_TURNS_MAX + 2):
        story.run(f"t{number}", 1, "s")  # three tokens each, with its answer
    story.rig.apply(Truncate(SessionId("s"), 4))
    story.draw()
    story.run("next", 1, "s")
    assert story.desk.linked(story.desk.turn("next"), Relation.PREVIOUS_TURN) == []


def test_session_when_closed_then_a_span_with_its_totals_that_leads_to_its_turns() -> None:
    story = Story()
    story.open("s")
    story.run("t1", 5, "s")
    story.run("t2", 5, "s")
    story.rig.apply(Close(SessionId("s"), trace_id=CALLER.trace_id, caller_span=write_caller(CALLER).span))
    story.draw()
    opened, closed = story.desk.of("session")
    assert (opened.attributes[Attr.PHASE], closed.attributes[Attr.PHASE]) == ("open", "close")
    assert closed.parent_span_id == CALLER.span_id
    assert story.desk.linked(closed, Relation.OPENED) == [opened]
    assert story.desk.linked(closed, Relation.TURN) == [story.desk.turn("t1"), story.desk.turn("t2")]
    assert (closed.attributes[Attr.SESSION_TURNS], closed.attributes[Attr.HISTORY_TOKENS]) == (2, 14)
    releases = [span for span in story.desk.of("kv.release") if span.attributes[Attr.FROM] == "session 1"]
    assert releases
    assert story.desk.linked(releases[-1], Relation.PREVIOUS_HOLDER) == [story.desk.of("kv.park")[-1]]


def test_steps_when_one_of_two_is_drawn_then_a_trace_of_its_own_that_leads_to_its_turns() -> None:
    story = Story(trace_steps=2)
    story.submit("a", 5, max_tokens=4)
    for _ in range(4):
        story.rig.step()
        story.draw()
        story.desk.sink.step_timed(StepTimes(story.rig.plans[-1].step, 0.5, 0.25))
    steps = story.desk.of("step")
    assert [span.attributes[Attr.STEP] for span in steps] == [2, 4]
    assert {span.parent_span_id for span in steps} == {""}
    assert [(span.attributes[Attr.STEP_HOST_S], span.attributes[Attr.STEP_DEVICE_S]) for span in steps] == [
        (0.5, 0.25),
        (0.5, 0.25),
    ]
    assert story.desk.linked(steps[0], Relation.TURN) == [story.desk.turn("a")]


@pytest.mark.parametrize("trace_steps", [0, 1, 64])
def test_step_when_it_fails_then_drawn_as_an_error_and_its_turns_end_as_errors(trace_steps: int) -> None:
    story = Story(trace_steps=trace_steps)
    story.submit("a", 5, max_tokens=4)
    story.rig.plan()
    story.rig.answer("no such kernel")
    story.draw()
    story.desk.sink.step_timed(StepTimes(story.rig.plans[-1].step, 0.5, None))
    step, turn = story.desk.only("step"), story.desk.turn("a")
    assert (step.status_message, step.attributes[Attr.ERROR_TYPE]) == ("no such kernel", "forward_failed")
    assert story.desk.linked(step, Relation.TURN) == [turn]
    assert turn.status_message == "forward_failed: no such kernel"
    assert turn.attributes[Attr.ERROR_TYPE] == "forward_failed"


def test_engine_when_it_goes_without_an_ending_then_every_open_span_is_ended_once_as_an_error() -> None:
    story = Story(trace_steps=1)
    story.submit("a", 5, max_tokens=4)
    story.rig.plan()
    story.draw()
    assert story.desk.sink.num_open == 3
    story.desk.sink.close()
    story.desk.sink.close()
    assert story.desk.sink.num_open == 0
    assert {span.name for span in story.desk.shelf.spans} == {"turn", "turn.queue", "turn.prefill", "step"}
    assert story.desk.turn("a").status is SpanStatus.ERROR
    assert story.desk.only("step").attributes[Attr.ERROR_TYPE] == "engine_gone"


def test_sink_when_everything_is_over_then_it_remembers_nothing() -> None:
    story = Story()
    story.open("s")
    story.run("t1", 5, "s")
    story.rig.close("s")
    story.run("t2", 5)
    story.draw()
    assert story.desk.sink.num_open == 0
    assert story.desk.sink.num_known == 0


@pytest.mark.parametrize("move", [Move.GRANT, Move.DONATE, Move.EVICT])
def test_moves_when_there_is_one_a_page_then_counted_and_not_drawn(move: Move) -> None:
    story = Story(replace(CONFIG, pool_pages=10), trace_steps=1)
    for name in ("a", "b", "c"):
        story.run(name, 17, namespace=name)
    assert story.desk.of(f"kv.{move}") == []
    key = {Move.GRANT: Attr.GRANTED, Move.DONATE: Attr.DONATED, Move.EVICT: Attr.EVICTED}[move]
    open_steps = [span for span in story.desk.shelf.spans if span.name == "turn"]
    if move is not Move.EVICT:
        assert [span.attributes[key] for span in open_steps] == [5 if move is Move.GRANT else 4] * 3


def test_turn_when_nobody_called_then_the_root_of_a_trace_of_its_own() -> None:
    story = Story()
    command: Submit = story.rig.command("t", range(5))
    story.rig.submit(command)
    story.finish()
    span: FinishedSpan = story.desk.turn("t")
    assert span.parent_span_id == ""
    assert story.desk.sink.find_turn(None, TurnId("t")) is None
