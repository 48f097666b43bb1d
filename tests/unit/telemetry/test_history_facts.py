"""What became of sessions and of their KV: named rightly, bounded, and those that are gone counted."""

from engine.core.commands import AbortReason, FinishReason
from engine.core.events import (
    KvMoved,
    SessionClosed,
    SessionForked,
    SessionOpened,
    SessionTruncated,
    SlotChanged,
    SlotState,
    StepPlanned,
    TurnAccepted,
    TurnAdmitted,
    TurnEnded,
    TurnsForgotten,
    Usage,
)
from engine.core.ids import Rid, SessionId, StepNo, TurnId
from engine.core.ownership import CACHE, FREE, Move, Owner, OwnerKind, PoolKind
from telemetry.history_facts import FACTS_MAX
from telemetry.history_records import SessionFact
from tests.unit.telemetry.history_desk import UNIX_S, Desk

SID = SessionId("s")
REQUEST = Owner(OwnerKind.REQUEST, 1)


def opened(uid: int, name: SessionId = SID) -> SessionOpened:
    return SessionOpened(name, True, "", uid)


def closed(uid: int) -> SessionClosed:
    return SessionClosed(SID, AbortReason.SESSION_EXPIRED, 12, uid)


def slot(uid: int, target: SlotState, source: SlotState = SlotState.HELD, kv_len: int = 0) -> SlotChanged:
    return SlotChanged(SID, source, target, kv_len, uid)


def moved(move: Move, source: Owner, target: Owner, *units: int, pool: PoolKind = PoolKind.FULL) -> KvMoved:
    return KvMoved(pool, move, source, target, units, StepNo(1), "")


def accepted() -> TurnAccepted:
    return TurnAccepted(Rid(1), TurnId("t"), SID, context_len=9, new_len=4, max_tokens=4, trace_id="")


def admitted() -> TurnAdmitted:
    return TurnAdmitted(Rid(1), 1, tokens_from_slot=4, tokens_from_tree=0, tokens_to_compute=5)


def ended(outcome: FinishReason | AbortReason = AbortReason.CLIENT, *, history_len: int = 5) -> TurnEnded:
    usage = Usage(9, 4, 0, 5, output_len=3)
    is_committed = isinstance(outcome, FinishReason)
    return TurnEnded(Rid(1), TurnId("t"), SID, outcome, usage, history_len, is_committed)


def session(uid: int) -> Owner:
    return Owner(OwnerKind.SESSION, uid)


def short(fact: SessionFact) -> tuple[str, str, int, int, str]:
    return fact.what, fact.detail, fact.units, fact.tokens, fact.turn_id


def test_facts_when_a_session_has_a_turn_then_all_of_it_in_order() -> None:
    desk = Desk()
    desk.tell(opened(3), accepted(), admitted(), StepPlanned(StepNo(7), 1, 9))
    desk.tell(moved(Move.GRANT, FREE, REQUEST, 1, 2), moved(Move.GRANT, FREE, REQUEST, 1, pool=PoolKind.ROWS))
    desk.tell(slot(3, SlotState.COMMITTING, SlotState.LENT), moved(Move.DONATE, REQUEST, CACHE, 1))
    desk.tell(moved(Move.PARK, REQUEST, session(3), 2), moved(Move.PARK, REQUEST, session(3), 1, pool=PoolKind.ROWS))
    desk.tell(slot(3, SlotState.HELD, SlotState.COMMITTING, kv_len=11), ended(), after_s=0.5)
    facts = desk.sink.read().facts
    assert [short(fact) for fact in facts] == [
        ("opened", "streaming", 0, 0, ""),
        ("turn_accepted", "new=4", 0, 9, "t"),
        ("turn_admitted", "slot=4 tree=0 computed=5", 0, 9, "t"),
        ("kv", "committing", 0, 0, ""),
        ("donate", "full", 1, 0, "t"),
        ("park", "full", 1, 0, "t"),
        ("kv", "held", 0, 11, ""),
        ("turn_ended", "client", 0, 3, "t"),
        ("history", "rolled_back", 0, 5, "t"),
    ]
    assert {(fact.session_id, fact.session_number) for fact in facts} == {("s", 3)}
    assert [fact.step for fact in facts] == [0, 0, 0, 7, 7, 7, 7, 7, 7]
    assert [fact.time_s - UNIX_S for fact in facts] == [0.0] * 6 + [0.5] * 3


def test_facts_when_pages_drain_behind_the_end_of_a_turn_then_their_release_is_the_sessions() -> None:
    desk = Desk()
    desk.tell(opened(3), accepted(), moved(Move.GRANT, FREE, REQUEST, 1, 2), ended())
    desk.tell(moved(Move.RELEASE, REQUEST, FREE, 1))
    desk.tell(moved(Move.RELEASE, REQUEST, FREE, 2))
    assert [short(fact) for fact in desk.sink.read().facts[-2:]] == [("release", "full", 1, 0, "t")] * 2


def test_facts_when_a_name_is_opened_again_then_the_pages_of_its_predecessor_keep_their_number() -> None:
    desk = Desk()
    desk.tell(opened(3), closed(3), opened(4))
    desk.tell(moved(Move.RELEASE, session(3), FREE, 1, 2), slot(3, SlotState.RELEASED))
    assert [(fact.what, fact.session_number) for fact in desk.sink.read().facts] == [
        ("opened", 3),
        ("closed", 3),
        ("opened", 4),
        ("release", 3),
        ("kv", 3),
    ]
    desk.tell(accepted())
    assert desk.sink.read().facts[-1].session_number == 4
    assert desk.sink.read().samples[-1].sessions_open == 1


def test_facts_when_a_turn_finishes_then_its_session_is_so_long_and_has_it() -> None:
    desk = Desk()
    desk.tell(opened(3), accepted(), admitted(), ended(FinishReason.STOP, history_len=12))
    told = [short(fact) for fact in desk.sink.read().facts[-2:]]
    assert told == [("turn_ended", "stop", 0, 3, "t"), ("history", "committed", 0, 12, "t")]


def test_facts_when_turns_are_forgotten_then_the_first_are_named_and_the_others_counted() -> None:
    desk = Desk()
    names = tuple(TurnId(f"t{number}") for number in range(6))
    desk.tell(opened(3), TurnsForgotten(SID, names[:1]), TurnsForgotten(SID, names))
    facts = desk.sink.read().facts[1:]
    assert [fact.detail for fact in facts] == ["t0", "t0, t1, t2, t3 and 2 more"]
    assert {(fact.what, fact.session_number) for fact in facts} == {("forgotten", 3)}


def test_facts_when_forked_and_cut_then_told_with_source_and_length() -> None:
    desk = Desk()
    desk.tell(opened(3), SessionForked(SID, 3, SessionId("old"), 2, 40, 32), SessionTruncated(SID, 3, 20, 16))
    assert [short(fact) for fact in desk.sink.read().facts[1:]] == [
        ("forked", "old", 0, 40, ""),
        ("truncated", "", 0, 20, ""),
    ]


def test_facts_when_there_are_too_many_then_the_oldest_go_and_are_counted() -> None:
    desk = Desk()
    for number in range(FACTS_MAX + 30):
        desk.tell(slot(3, SlotState.HELD, SlotState.LENT, kv_len=number), after_s=2.0 if number == 20 else 0.0)
    history = desk.sink.read()
    assert (len(history.facts), history.facts_dropped) == (FACTS_MAX, 30)
    assert (history.facts[0].tokens, history.facts[-1].tokens) == (30, FACTS_MAX + 29)
    lately = desk.sink.read(0.5)
    assert (len(lately.facts), lately.facts_dropped) == (FACTS_MAX, 10), "20 of the 30 are not of that time"


def test_facts_when_a_time_is_asked_for_then_those_of_its_samples() -> None:
    desk = Desk()
    for number in range(5):
        desk.tell(slot(3, SlotState.HELD, SlotState.LENT, kv_len=number), after_s=1.0)
    history = desk.sink.read(1.5)
    assert [fact.tokens for fact in history.facts] == [2, 3, 4]
    assert (len(history.samples), history.facts_dropped) == (3, 0)


def test_demotions_when_a_cut_leaves_a_slot_without_kv_then_not_counted() -> None:
    desk = Desk()
    desk.tell(opened(3), slot(3, SlotState.DEMOTED), SessionTruncated(SID, 3, 2, 0))
    assert desk.sink.read().totals.demotions == 0
    desk.tell(slot(3, SlotState.DEMOTED))
    desk.tell(SessionTruncated(SID, 3, 1, 0))
    desk.tell(slot(3, SlotState.DEMOTED, SlotState.RETURNING))
    assert desk.sink.read().totals.demotions == 1


def test_facts_when_windows_and_states_move_then_named_by_their_pool_but_for_what_a_running_turn_leaves() -> None:
    desk = Desk(dict.fromkeys(PoolKind, 11))
    desk.tell(opened(7), accepted())
    for pool in (PoolKind.SWA, PoolKind.MAMBA):
        desk.tell(
            moved(Move.GRANT, FREE, REQUEST, 1, 2, 3, pool=pool),
            moved(Move.RELEASE, REQUEST, FREE, 1, pool=pool),
            moved(Move.PARK, REQUEST, session(7), 2, 3, pool=pool),
            moved(Move.RELEASE, session(7), FREE, 3, pool=pool),
        )
    told = [(fact.what, fact.detail, fact.units) for fact in desk.sink.read().facts if fact.units]
    assert told == [("park", "swa", 2), ("release", "swa", 1), ("park", "mamba", 2), ("release", "mamba", 1)]
