"""Broken off in every phase, with `on_abort=keep` and without: what stays, and what the next turn finds."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.core.commands import AbortReason, CommitAck, CommitFailed, FinishReason, OnAbort, Submit
from engine.core.config import CoreConfig
from engine.core.events import CommitRequested, SessionClosed, TurnAdmitted, TurnEnded
from engine.core.ids import Rid, SessionId, TurnId, count_ids, unpack_ids
from engine.core.request import Phase
from engine.core.snapshot import TurnState
from engine.core.turns import Point
from tests.kit.core_parts import CoreRig
from tests.kit.shadow_model import ShadowModel

S = SessionId("s")
CONFIG = CoreConfig(
    page_size=4, pool_pages=33, num_rows=6, context_len=64, vocab_size=100, chunk_tokens=4, new_token_ratio=0.0
)
FIRST = [1, 2, 3, 4, 5]
NEW = [20, 21, 22, 23, 24, 25]
KINDS = pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "ordinary"])


def make_rig(streaming: bool, config: CoreConfig = CONFIG) -> CoreRig:
    """A session with one finished turn, `a`."""
    rig = CoreRig(config)
    rig.open("s", streaming=streaming)
    rig.submit(rig.command("a", FIRST, "s"))
    rig.run()
    return rig


def turn(rig: CoreRig, on_abort: OnAbort = OnAbort.KEEP, max_tokens: int = 30) -> Submit:
    """A turn that follows `a`."""
    return replace(rig.command("b", NEW, "s"), parent=TurnId("a"), on_abort=on_abort, max_tokens=max_tokens)


def path(rig: CoreRig, name: str) -> list[int]:
    return list(unpack_ids(rig.core.find_base(S, Point(TurnId(name)))))


def assert_kept(rig: CoreRig, rid: Rid, reason: AbortReason, before: list[int]) -> None:
    """The session goes on behind the ids that the turn was given, and has the KV of all but the last."""
    rig.run()
    kept = rig.output(rid)
    assert kept != []
    end = rig.ending(rid)
    assert (end.outcome, end.is_committed) == (reason, True)
    assert end.usage.output_len == len(kept)
    assert end.history_len == len(before) + len(NEW) + len(kept)
    assert path(rig, "b") == [*before, *NEW, *kept]
    model = ShadowModel(100)
    for count in range(len(kept)):
        assert kept[count] == model.next_id(model.digest([*before, *NEW, *kept[:count]]))
    follow_up = rig.submit(replace(rig.command("c", [30], "s"), parent=TurnId("b")))
    rig.run()
    context = [*before, *NEW, *kept, 30]
    assert rig.output(follow_up)[0] == model.next_id(model.digest(context))


def assert_rolled_back(rig: CoreRig, rid: Rid, reason: AbortReason, before: list[int]) -> None:
    """The session is as if the turn had never been; its name is free."""
    rig.run()
    end = rig.ending(rid)
    assert (end.outcome, end.is_committed, end.history_len) == (reason, False, len(before))
    assert path(rig, "a") == before
    again = rig.submit(turn(rig, max_tokens=2))
    rig.run()
    admitted = next(event for event in rig.of(TurnAdmitted) if event.rid == again)
    assert admitted.tokens_to_compute < len(NEW) + 5, "the history's KV is still there"
    assert path(rig, "b") == [*before, *NEW, *rig.output(again)]


# By phase


def submit(rig: CoreRig, on_abort: OnAbort) -> Rid:
    return rig.submit(turn(rig, on_abort))


def reach_nothing(rig: CoreRig, on_abort: OnAbort) -> Rid:
    return submit(rig, on_abort)


def reach_first_chunk(rig: CoreRig, on_abort: OnAbort) -> Rid:
    rid = submit(rig, on_abort)
    assert rig.plan() is not None
    return rid


def reach_second_chunk(rig: CoreRig, on_abort: OnAbort) -> Rid:
    rid = submit(rig, on_abort)
    rig.step()
    return rid


def reach_first_id_in_flight(rig: CoreRig, on_abort: OnAbort) -> Rid:
    rid = reach_second_chunk(rig, on_abort)
    while rig.plan() is not None:
        pass
    return rid


def reach_first_id(rig: CoreRig, on_abort: OnAbort) -> Rid:
    rid = submit(rig, on_abort)
    while not rig.output(rid):
        rig.step()
    assert len(rig.output(rid)) == 1
    return rid


def reach_decoding(rig: CoreRig, on_abort: OnAbort) -> Rid:
    rid = submit(rig, on_abort)
    rig.step(5)
    return rid


def reach_decoding_in_flight(rig: CoreRig, on_abort: OnAbort) -> Rid:
    rid = reach_decoding(rig, on_abort)
    while rig.plan() is not None:
        pass
    return rid


NOTHING_GIVEN = (reach_nothing, reach_first_chunk, reach_second_chunk, reach_first_id_in_flight)
SOME_GIVEN = (reach_first_id, reach_decoding, reach_decoding_in_flight)


@KINDS
@pytest.mark.parametrize("in_flight_max", [1, 2])
@pytest.mark.parametrize("on_abort", OnAbort)
@pytest.mark.parametrize("reach", [*NOTHING_GIVEN, *SOME_GIVEN])
def test_abort_when_in_any_phase_then_what_was_given_is_kept_if_asked_for_and_else_nothing(
    reach: Callable[[CoreRig, OnAbort], Rid], on_abort: OnAbort, in_flight_max: int, streaming: bool
) -> None:
    rig = make_rig(streaming, replace(CONFIG, in_flight_max=in_flight_max))
    before = path(rig, "a")
    rid = reach(rig, on_abort)
    given = len(rig.output(rid))
    assert (given > 0) == (reach in SOME_GIVEN)
    rig.cancel(rid)
    if on_abort is OnAbort.KEEP and given:
        assert_kept(rig, rid, AbortReason.CLIENT, before)
        assert len(rig.output(rid)) == given, "what was in flight came too late"
    else:
        assert_rolled_back(rig, rid, AbortReason.CLIENT, before)


@KINDS
@pytest.mark.parametrize("on_abort", OnAbort)
@pytest.mark.parametrize("phase", [Phase.RETRACTING, Phase.WAITING], ids=str)
def test_abort_when_the_turn_was_retracted_then_its_ids_are_kept_all_the_same(
    phase: Phase, on_abort: OnAbort, streaming: bool
) -> None:
    config = replace(CONFIG, pool_pages=13, in_flight_max=2)
    rig = make_rig(streaming, config)
    before = path(rig, "a")
    older = rig.submit(replace(rig.command("older", range(50, 56)), max_tokens=34))
    rid = submit(rig, on_abort)
    state = reach_phase(rig, rid, phase)
    assert state.output_len > 0
    assert state.phase == phase
    rig.cancel(rid)
    if on_abort is OnAbort.KEEP:
        assert_kept(rig, rid, AbortReason.CLIENT, before)
    else:
        assert_rolled_back(rig, rid, AbortReason.CLIENT, before)
    assert rig.ending(rid).usage.retractions == 1
    assert len(rig.output(older)) == 34


def reach_phase(rig: CoreRig, rid: Rid, phase: Phase) -> TurnState:
    """Plans and answers until a turn that was given something is in that phase."""
    for number in range(400):
        state = next(state for state in rig.core.snapshot().turns if state.rid == rid)
        if state.output_len > 0 and state.phase == phase:
            return state
        if number % 3 < 2:
            rig.plan()  # maybe nothing: two are in flight, or pages are on their way
        elif rig.core.num_in_flight > 0:
            rig.answer()
    raise AssertionError(f"never {phase}")


# By reason


@KINDS
@pytest.mark.parametrize("reason", AbortReason)
def test_abort_when_for_any_reason_then_those_that_end_the_session_or_the_turns_place_are_never_kept(
    reason: AbortReason, streaming: bool
) -> None:
    never = {"session_closed", "session_expired", "commit_failed", "replaced"}
    rig = make_rig(streaming)
    before = path(rig, "a")
    rid = reach_decoding(rig, OnAbort.KEEP)
    rig.cancel(rid, reason)
    if reason in never:
        assert_rolled_back(rig, rid, reason, before)
    else:
        assert_kept(rig, rid, reason, before)


@KINDS
@pytest.mark.parametrize("on_abort", OnAbort)
@pytest.mark.parametrize("in_flight_max", [1, 2])
def test_failure_when_a_forward_fails_then_what_was_given_before_is_kept_if_asked_for(
    in_flight_max: int, on_abort: OnAbort, streaming: bool
) -> None:
    rig = make_rig(streaming, replace(CONFIG, in_flight_max=in_flight_max))
    before = path(rig, "a")
    rid = reach_decoding_in_flight(rig, on_abort)
    rig.answer(failure="device lost")
    if on_abort is OnAbort.KEEP:
        assert_kept(rig, rid, AbortReason.FORWARD_FAILED, before)
    else:
        assert_rolled_back(rig, rid, AbortReason.FORWARD_FAILED, before)
    assert rig.ending(rid).detail == "device lost"


def test_close_when_a_turn_would_keep_then_it_is_rolled_back_all_the_same() -> None:
    for streaming in (True, False):
        rig = make_rig(streaming)
        rid = reach_decoding(rig, OnAbort.KEEP)
        rig.close("s")
        assert (rig.ending(rid).outcome, rig.ending(rid).is_committed) == (AbortReason.SESSION_CLOSED, False)
        assert [event.reason for event in rig.of(SessionClosed)] == [AbortReason.SESSION_CLOSED]


# While it is being stored


def start_keeping(streaming: bool) -> tuple[CoreRig, Rid, int]:
    """A turn that was aborted and waits for its acknowledgement, and how many ids it was given."""
    rig = CoreRig(CONFIG, is_ack_automatic=False)
    rig.open("s", streaming=streaming)
    rid = rig.submit(replace(rig.command("a", FIRST, "s"), on_abort=OnAbort.KEEP, max_tokens=30))
    rig.step(5)
    rig.cancel(rid, AbortReason.DEADLINE)
    return rig, rid, len(rig.output(rid))


@KINDS
def test_keep_when_it_begins_then_the_commit_names_the_abort_and_the_end_comes_with_the_acknowledgement(
    streaming: bool,
) -> None:
    rig, rid, given = start_keeping(streaming)
    assert rig.of(CommitRequested) == [CommitRequested(rid, AbortReason.DEADLINE, given)]
    assert rig.of(TurnEnded) == []
    rig.apply(CommitAck(rid))
    end = rig.ending(rid)
    assert (end.outcome, end.is_committed) == (AbortReason.DEADLINE, True)
    assert end.history_len == len(FIRST) + given


@KINDS
@pytest.mark.parametrize("reason", AbortReason)
def test_keep_when_it_is_aborted_again_then_the_first_reason_stands(reason: AbortReason, streaming: bool) -> None:
    rig, rid, given = start_keeping(streaming)
    rig.cancel(rid, reason)
    rig.close("s")
    assert len(rig.of(CommitRequested)) == 1
    assert rig.of(TurnEnded) == []
    rig.apply(CommitAck(rid))
    assert (rig.ending(rid).outcome, rig.ending(rid).history_len) == (AbortReason.DEADLINE, len(FIRST) + given)
    assert len(rig.of(SessionClosed)) == 1


@KINDS
def test_keep_when_the_store_fails_then_nothing_is_kept(streaming: bool) -> None:
    rig, rid, _ = start_keeping(streaming)
    rig.apply(CommitFailed(rid))
    end = rig.ending(rid)
    assert (end.outcome, end.is_committed, end.history_len) == (AbortReason.COMMIT_FAILED, False, 0)
    rig.run()
    assert count_ids(rig.core.find_base(S, Point())) == 0
    again = rig.submit(rig.command("a", FIRST, "s"))
    rig.step(2)
    rig.apply(CommitAck(again))
    assert rig.ending(again).outcome is FinishReason.LENGTH


@KINDS
def test_abort_when_a_turn_is_finished_and_committing_then_it_ends_as_finished(streaming: bool) -> None:
    rig = CoreRig(CONFIG, is_ack_automatic=False)
    rig.open("s", streaming=streaming)
    rid = rig.submit(replace(rig.command("a", FIRST, "s"), on_abort=OnAbort.KEEP))
    rig.step(3)
    assert [event.reason for event in rig.of(CommitRequested)] == [FinishReason.LENGTH]
    for reason in AbortReason:
        rig.cancel(rid, reason)
    rig.apply(CommitAck(rid))
    assert (rig.ending(rid).outcome, rig.ending(rid).is_committed) == (FinishReason.LENGTH, True)
    for reason in AbortReason:
        rig.cancel(rid, reason)
    assert len(rig.of(TurnEnded)) == 1
