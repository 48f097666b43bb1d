"""The session controller: names, the right to run, limits, expiry; and the compiling of turns."""

from dataclasses import replace

import pytest

from engine.core.commands import AbortReason, Open, Submit
from engine.core.config import CoreConfig
from engine.core.errors import Refusal, RefusalReason
from engine.core.events import EventLog
from engine.core.ids import Rid, SessionId, TurnId, pack_ids
from engine.core.sessions import Session, SessionController
from engine.core.turns import compile_turn

S = SessionId("s")


CONFIG = CoreConfig(page_size=4, pool_pages=9, num_rows=4, context_len=64, vocab_size=100)


def make_controller(config: CoreConfig = CONFIG) -> SessionController:
    return SessionController(config, EventLog())


def submit(turn: str, parent: str | None = None, session: SessionId | None = S) -> Submit:
    return Submit(Rid(1), TurnId(turn), pack_ids([1]), session, TurnId(parent) if parent is not None else None)


def refusal(controller: SessionController, command: Submit) -> Refusal:
    with pytest.raises(Refusal) as caught:
        controller.find_admissible(command)
    return caught.value


def finish(
    controller: SessionController, session: Session, turn: str, ids: list[int], parent: str | None = None
) -> None:
    """`ids` are the turn's own, behind its parent's path or the streaming session's history."""
    compiled = compile_turn(session, TurnId(parent) if parent is not None else None, pack_ids(ids))
    controller.begin_turn(session, TurnId(turn), Rid(1))
    controller.commit_turn(
        session, TurnId(turn), TurnId(parent) if parent is not None else None, compiled.base_len, compiled.ids
    )
    controller.end_turn(session, TurnId(turn), Rid(1), 0.0)


def test_open_when_the_name_is_taken_or_the_limit_reached_then_it_is_refused() -> None:
    controller = make_controller(replace(CONFIG, sessions_max=2))
    controller.open(Open(S, streaming=True), 0.0)
    with pytest.raises(Refusal) as twice:
        controller.open(Open(S, streaming=False), 0.0)
    assert twice.value.reason is RefusalReason.SESSION_EXISTS
    controller.open(Open(SessionId("t"), streaming=False), 0.0)
    with pytest.raises(Refusal) as full:
        controller.open(Open(SessionId("u"), streaming=False), 0.0)
    assert (full.value.reason, full.value.limit) == (RefusalReason.SESSION_LIMIT, 2)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan"), float("inf")])
def test_open_when_the_timeout_is_not_a_positive_number_then_it_is_refused(timeout_s: float) -> None:
    with pytest.raises(Refusal) as caught:
        make_controller().open(Open(S, streaming=True, idle_timeout_s=timeout_s), 0.0)
    assert caught.value.reason is RefusalReason.IDLE_TIMEOUT_INVALID


def test_open_when_streaming_sessions_are_off_then_it_is_refused_by_name() -> None:
    controller = make_controller(replace(CONFIG, streaming_sessions=False))
    with pytest.raises(Refusal) as caught:
        controller.open(Open(S, streaming=True), 0.0)
    assert caught.value.reason is RefusalReason.STREAMING_DISABLED
    controller.open(Open(S, streaming=False), 0.0)


def test_lease_when_a_second_and_a_third_turn_are_refused_then_the_first_keeps_it() -> None:
    controller = make_controller()
    session = controller.open(Open(S, streaming=True), 0.0)
    controller.begin_turn(session, TurnId("b"), Rid(5))
    for turn in ("c", "d"):
        busy = refusal(controller, submit(turn))
        assert (busy.reason, busy.value) == (RefusalReason.SESSION_BUSY, "b")
    assert session.live == {"b": 5}
    controller.end_turn(session, TurnId("b"), Rid(5), 1.0)
    assert controller.find_admissible(submit("c")) is session


def test_branches_when_more_than_allowed_then_the_next_is_refused() -> None:
    controller = make_controller(replace(CONFIG, session_turns_max=2))
    session = controller.open(Open(S, streaming=False), 0.0)
    controller.begin_turn(session, TurnId("a"), Rid(1))
    controller.begin_turn(session, TurnId("b"), Rid(2))
    assert refusal(controller, submit("c")).reason is RefusalReason.SESSION_TURNS_LIMIT


def test_nodes_when_an_ordinary_session_is_full_then_refused_and_a_streaming_one_forgets_its_oldest() -> None:
    controller = make_controller(replace(CONFIG, session_nodes_max=2))
    ordinary = controller.open(Open(S, streaming=False), 0.0)
    streaming = controller.open(Open(SessionId("t"), streaming=True), 0.0)
    for turn in ("a", "b"):
        finish(controller, ordinary, turn, [1])
        finish(controller, streaming, turn, [1])
    assert refusal(controller, submit("c")).reason is RefusalReason.SESSION_TURNS_LIMIT
    finish(controller, streaming, "c", [1])
    assert list(streaming.nodes) == ["b", "c"]


@pytest.mark.parametrize("turn", ["live", "done"])
def test_turn_ids_when_used_in_the_session_then_they_are_refused(turn: str) -> None:
    controller = make_controller()
    session = controller.open(Open(S, streaming=False), 0.0)
    finish(controller, session, "done", [1])
    controller.begin_turn(session, TurnId("live"), Rid(2))
    assert refusal(controller, submit(turn)).reason is RefusalReason.TURN_EXISTS


def test_find_when_unknown_or_closing_then_it_is_refused() -> None:
    controller = make_controller()
    assert refusal(controller, submit("a")).reason is RefusalReason.SESSION_UNKNOWN
    session = controller.open(Open(S, streaming=True), 0.0)
    session.closing = AbortReason.SESSION_CLOSED
    assert refusal(controller, submit("a")).reason is RefusalReason.SESSION_UNKNOWN


def test_turn_ids_when_stateless_and_live_then_they_are_refused_until_that_turn_ends() -> None:
    controller = make_controller()
    controller.begin_turn(None, TurnId("a"), Rid(1))
    assert refusal(controller, submit("a", session=None)).reason is RefusalReason.TURN_EXISTS
    controller.end_turn(None, TurnId("a"), Rid(1), 0.0)
    assert controller.find_admissible(submit("a", session=None)) is None


def test_parent_when_there_is_no_session_then_it_is_refused() -> None:
    command = submit("a", parent="p", session=None)
    assert refusal(make_controller(), command).reason is RefusalReason.PARENT_WITHOUT_SESSION


def test_expiry_when_a_turn_runs_or_ended_lately_then_the_session_stays() -> None:
    controller = make_controller()
    session = controller.open(Open(S, streaming=True, idle_timeout_s=10.0), 0.0)
    controller.begin_turn(session, TurnId("a"), Rid(1))
    assert controller.find_expired(50.0) == []
    controller.end_turn(session, TurnId("a"), Rid(1), 55.0)
    assert controller.find_expired(64.0) == []
    assert controller.find_expired(65.0) == [session]


def test_expiry_when_the_name_was_opened_again_then_the_old_watch_does_not_count() -> None:
    controller = make_controller()
    controller.remove(controller.open(Open(S, streaming=True, idle_timeout_s=10.0), 0.0))
    controller.open(Open(S, streaming=True, idle_timeout_s=100.0), 5.0)
    assert controller.find_expired(50.0) == []


def test_compile_when_streaming_then_the_whole_history_comes_first() -> None:
    controller = make_controller()
    session = controller.open(Open(S, streaming=True), 0.0)
    finish(controller, session, "a", [1, 2, 3])
    turn = compile_turn(session, None, pack_ids([9]))
    assert (turn.ids, turn.base_len) == (pack_ids([1, 2, 3, 9]), 3)
    assert compile_turn(session, TurnId("a"), pack_ids([9])) == turn
    with pytest.raises(Refusal) as caught:
        compile_turn(session, TurnId("other"), pack_ids([9]))
    assert caught.value.reason is RefusalReason.STREAMING_APPENDS_ONLY


def test_compile_when_ordinary_then_the_parents_path_comes_first_and_none_is_a_new_root() -> None:
    controller = make_controller()
    session = controller.open(Open(S, streaming=False), 0.0)
    finish(controller, session, "a", [1, 2])
    finish(controller, session, "b", [3, 4], parent="a")
    assert compile_turn(session, TurnId("a"), pack_ids([9])).ids == pack_ids([1, 2, 9])
    assert compile_turn(session, TurnId("b"), pack_ids([9])).base_len == 4
    assert compile_turn(session, None, pack_ids([9])).ids == pack_ids([9])


def test_compile_when_the_parent_is_unknown_or_runs_then_it_is_refused() -> None:
    controller = make_controller()
    session = controller.open(Open(S, streaming=False), 0.0)
    controller.begin_turn(session, TurnId("live"), Rid(1))
    for parent, reason in (("x", RefusalReason.PARENT_UNKNOWN), ("live", RefusalReason.PARENT_UNFINISHED)):
        with pytest.raises(Refusal) as caught:
            compile_turn(session, TurnId(parent), pack_ids([9]))
        assert caught.value.reason is reason
