"""The session controller: names, the right to run, limits, expiry; and the compiling of turns."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from engine.core.commands import AbortReason, CommitAck, FinishReason, Fork, Lengths, Open, Submit
from engine.core.config import CoreConfig
from engine.core.errors import Refusal, RefusalReason
from engine.core.events import EventLog, SessionClosed, TurnEnded
from engine.core.ids import Rid, SessionId, TurnId, pack_ids
from engine.core.sessions import Session, SessionController
from engine.core.turn_tree import LiveTurn
from engine.core.turns import CompiledTurn, compile_turn
from tests.kit.core_parts import CoreRig

S = SessionId("s")


CONFIG = CoreConfig(page_size=4, pool_pages=9, num_rows=4, context_len=64, vocab_size=100)
RIG_CONFIG = replace(CONFIG, pool_pages=17)


def make_controller(config: CoreConfig = CONFIG) -> SessionController:
    return SessionController(config, EventLog())


def submit(turn: str, parent: str | None = None, session: SessionId | None = S, ids: Sequence[int] = (1,)) -> Submit:
    return Submit(Rid(1), TurnId(turn), pack_ids(ids), session, TurnId(parent) if parent is not None else None)


def refusal(controller: SessionController, command: Submit) -> Refusal:
    with pytest.raises(Refusal) as caught:
        controller.find_admissible(command)
    return caught.value


def finish(
    controller: SessionController, session: Session, turn: str, ids: list[int], parent: str | None = None
) -> None:
    """`ids` are the turn's own, behind its parent's path or the streaming session's history."""
    compiled = compile_turn(session, submit(turn, parent, ids=ids))
    begin(controller, session, turn, 1, compiled)
    controller.commit_turn(session, TurnId(turn), compiled.ids)
    controller.end_turn(session, TurnId(turn), Rid(1), 0.0)


NO_INPUT = CompiledTurn(b"", 0)


def begin(
    controller: SessionController, session: Session | None, turn: str, rid: int, compiled: CompiledTurn = NO_INPUT
) -> None:
    controller.begin_turn(session, TurnId(turn), LiveTurn(Rid(rid), compiled.place, compiled.ids))


def compile_ids(session: Session, parent: str | None) -> CompiledTurn:
    """A turn with one new id, 9."""
    return compile_turn(session, submit("next", parent, ids=[9]))


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
    begin(controller, session, "b", 5)
    for turn in ("c", "d"):
        busy = refusal(controller, submit(turn))
        assert (busy.reason, busy.value) == (RefusalReason.SESSION_BUSY, "b")
    assert {name: live.rid for name, live in session.live.items()} == {"b": 5}
    controller.end_turn(session, TurnId("b"), Rid(5), 1.0)
    assert controller.find_admissible(submit("c")) is session


def test_branches_when_more_than_allowed_then_the_next_is_refused() -> None:
    controller = make_controller(replace(CONFIG, session_turns_max=2))
    session = controller.open(Open(S, streaming=False), 0.0)
    begin(controller, session, "a", 1)
    begin(controller, session, "b", 2)
    with pytest.raises(Refusal) as caught:
        controller.check_room(session, num_aborted=0, num_forgotten=0)
    assert (caught.value.reason, caught.value.limit) == (RefusalReason.SESSION_TURNS_LIMIT, 2)
    controller.check_room(session, num_aborted=1, num_forgotten=0)


def test_nodes_when_an_ordinary_session_is_full_then_refused_and_a_streaming_one_forgets_its_oldest() -> None:
    controller = make_controller(replace(CONFIG, session_nodes_max=2))
    ordinary = controller.open(Open(S, streaming=False), 0.0)
    streaming = controller.open(Open(SessionId("t"), streaming=True), 0.0)
    for turn in ("a", "b"):
        finish(controller, ordinary, turn, [1])
        finish(controller, streaming, turn, [1])
    with pytest.raises(Refusal) as caught:
        controller.check_room(ordinary, num_aborted=0, num_forgotten=0)
    assert (caught.value.reason, caught.value.limit) == (RefusalReason.SESSION_TURNS_LIMIT, 2)
    controller.check_room(ordinary, num_aborted=0, num_forgotten=1)
    controller.check_room(streaming, num_aborted=0, num_forgotten=0)
    finish(controller, streaming, "c", [1])
    assert list(streaming.ends.items()) == [("b", 2), ("c", 3)]


@pytest.mark.parametrize("turn", ["live", "done"])
def test_turn_ids_when_used_in_the_session_then_they_are_refused(turn: str) -> None:
    controller = make_controller()
    session = controller.open(Open(S, streaming=False), 0.0)
    finish(controller, session, "done", [1])
    begin(controller, session, "live", 2)
    assert refusal(controller, submit(turn)).reason is RefusalReason.TURN_EXISTS


def test_find_when_unknown_or_closing_then_it_is_refused() -> None:
    controller = make_controller()
    assert refusal(controller, submit("a")).reason is RefusalReason.SESSION_UNKNOWN
    session = controller.open(Open(S, streaming=True), 0.0)
    session.closing = AbortReason.SESSION_CLOSED
    assert refusal(controller, submit("a")).reason is RefusalReason.SESSION_CLOSING


def test_turn_ids_when_stateless_and_live_then_they_are_refused_until_that_turn_ends() -> None:
    controller = make_controller()
    begin(controller, None, "a", 1)
    assert refusal(controller, submit("a", session=None)).reason is RefusalReason.TURN_EXISTS
    controller.end_turn(None, TurnId("a"), Rid(1), 0.0)
    assert controller.find_admissible(submit("a", session=None)) is None


def test_parent_when_there_is_no_session_then_it_is_refused() -> None:
    command = submit("a", parent="p", session=None)
    with pytest.raises(Refusal) as caught:
        compile_turn(None, command)
    assert (caught.value.reason, caught.value.field) == (RefusalReason.SESSION_REQUIRED, "parent_turn_id")


def test_expiry_when_a_turn_runs_or_ended_lately_then_the_session_stays() -> None:
    controller = make_controller()
    session = controller.open(Open(S, streaming=True, idle_timeout_s=10.0), 0.0)
    begin(controller, session, "a", 1)
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
    turn = compile_ids(session, None)
    assert (turn.ids, turn.base_len) == (pack_ids([1, 2, 3, 9]), 3)
    assert compile_ids(session, "a") == turn
    with pytest.raises(Refusal) as caught:
        compile_ids(session, "other")
    assert caught.value.reason is RefusalReason.STREAMING_APPENDS_ONLY


def test_compile_when_ordinary_then_the_parents_path_comes_first_and_none_is_a_new_root() -> None:
    controller = make_controller()
    session = controller.open(Open(S, streaming=False), 0.0)
    finish(controller, session, "a", [1, 2])
    finish(controller, session, "b", [3, 4], parent="a")
    assert compile_ids(session, "a").ids == pack_ids([1, 2, 9])
    assert compile_ids(session, "b").base_len == 4
    assert compile_ids(session, None).ids == pack_ids([9])


def test_compile_when_the_parent_is_unknown_or_runs_then_it_is_refused() -> None:
    controller = make_controller()
    session = controller.open(Open(S, streaming=False), 0.0)
    begin(controller, session, "live", 1)
    for parent, reason in (("x", RefusalReason.PARENT_UNKNOWN), ("live", RefusalReason.PARENT_UNFINISHED)):
        with pytest.raises(Refusal) as caught:
            compile_ids(session, parent)
        assert caught.value.reason is reason


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (replace(RIG_CONFIG, sessions_max=1), RefusalReason.SESSION_LIMIT),
        (replace(RIG_CONFIG, history_tokens_max=20), RefusalReason.HISTORY_LIMIT),
    ],
)
@pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "ordinary"])
def test_fork_when_a_limit_is_reached_then_it_is_refused(
    config: CoreConfig, reason: RefusalReason, streaming: bool
) -> None:
    rig = CoreRig(config)
    rig.open("s", streaming=streaming)
    rig.submit(rig.command("a", range(11), "s"))
    rig.run()
    assert rig.refusal(Fork(S, SessionId("f"))).reason is reason
    if reason is RefusalReason.HISTORY_LIMIT:
        lengths = rig.apply(Fork(S, SessionId("f"), at_len=7))
        assert isinstance(lengths, Lengths), "thirteen and seven are allowed"
        assert lengths.history_len == 7


# Closing


def wait(rig: CoreRig) -> None:
    rig.submit(replace(rig.command("t", [1, 2, 3], "s"), max_tokens=4))


def run_some(rig: CoreRig) -> None:
    wait(rig)
    rig.step(2)


def fly(rig: CoreRig) -> None:
    run_some(rig)
    assert rig.plan() is not None


STAGES: dict[str, Callable[[CoreRig], None]] = {"waits": wait, "runs": run_some, "in flight": fly}


@pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "ordinary"])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("drains", [(True,), (True, True), (True, True, True)])
def test_close_when_it_drains_then_the_turn_finishes_and_then_the_session_is_gone_however_often_it_is_told(
    drains: tuple[bool, ...], stage: str, streaming: bool
) -> None:
    rig = CoreRig(RIG_CONFIG)
    rig.open("s", streaming=streaming)
    STAGES[stage](rig)
    for drain in drains:
        rig.close("s", drain=drain)
        assert rig.refusal(rig.command("more", [1], "s")).reason is RefusalReason.SESSION_CLOSING
    assert rig.of(SessionClosed) == []
    rig.run()
    (end,) = rig.of(TurnEnded)
    assert (end.outcome, end.usage.output_len) == (FinishReason.LENGTH, 4)
    (closed,) = rig.of(SessionClosed)
    assert closed.reason is AbortReason.SESSION_CLOSED
    assert closed.history_len == (7 if streaming else 0)
    assert rig.told.index(end) < rig.told.index(closed)
    rig.open("s", streaming=streaming)


@pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "ordinary"])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("drains", [(False,), (True, False), (True, True, False), (False, True), (False, False)])
def test_close_when_it_does_not_drain_then_the_turn_ends_now_though_it_was_to_drain_before(
    drains: tuple[bool, ...], stage: str, streaming: bool
) -> None:
    rig = CoreRig(RIG_CONFIG)
    rig.open("s", streaming=streaming)
    STAGES[stage](rig)
    for drain in drains:
        rig.close("s", drain=drain)
    (end,) = rig.of(TurnEnded)
    assert (end.outcome, end.is_committed) == (AbortReason.SESSION_CLOSED, False)
    assert [event.reason for event in rig.of(SessionClosed)] == [AbortReason.SESSION_CLOSED]
    rig.run()
    pool = rig.core.snapshot().pools[0]
    assert (pool.session_held, pool.uncached, pool.protected) == (0, 0, 0)


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "ordinary"])
def test_close_when_nothing_runs_then_the_session_is_gone_at_once_and_a_second_close_tells_nothing(
    streaming: bool, drain: bool
) -> None:
    rig = CoreRig(RIG_CONFIG)
    rig.open("s", streaming=streaming)
    wait(rig)
    rig.run()
    rig.close("s", drain=drain)
    assert len(rig.of(SessionClosed)) == 1
    rig.take()
    rig.close("s", drain=drain)
    rig.close("never opened", drain=drain)
    assert rig.take() == []


@pytest.mark.parametrize("drain", [True, False])
def test_close_when_a_turn_is_committing_then_it_commits_first(drain: bool) -> None:
    rig = CoreRig(RIG_CONFIG, is_ack_automatic=False)
    rig.open("s", streaming=True)
    rid = rig.submit(replace(rig.command("t", [1, 2, 3], "s"), max_tokens=1))
    rig.step()
    rig.close("s", drain=drain)
    rig.close("s")
    assert rig.of(SessionClosed) == []
    rig.apply(CommitAck(rid))
    assert rig.ending(rid).outcome is FinishReason.LENGTH
    assert [event.history_len for event in rig.of(SessionClosed)] == [4]


def test_close_when_some_branches_are_done_then_a_session_drains_until_the_last_one() -> None:
    rig = CoreRig(RIG_CONFIG)
    rig.open("s")
    for number, max_tokens in enumerate((1, 3, 6)):
        rig.submit(replace(rig.command(f"t{number}", [number], "s"), max_tokens=max_tokens))
    rig.close("s", drain=True)
    rig.run()
    assert [event.outcome for event in rig.of(TurnEnded)] == [FinishReason.LENGTH] * 3
    assert isinstance(rig.told[-1], SessionClosed)


def test_expiry_when_a_session_drains_then_it_is_not_closed_before_its_turn_ends() -> None:
    rig = CoreRig(RIG_CONFIG)
    rig.open("s", streaming=True)
    wait(rig)
    rig.close("s", drain=True)
    rig.now = 2 * RIG_CONFIG.idle_timeout_s
    rig.core.expire(rig.now)
    rig.run()
    assert [event.outcome for event in rig.of(TurnEnded)] == [FinishReason.LENGTH]
    assert [event.reason for event in rig.of(SessionClosed)] == [AbortReason.SESSION_CLOSED]
