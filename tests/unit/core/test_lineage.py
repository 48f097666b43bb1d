"""Forks and cuts: at every length and in every state of a slot, what is told is what the next turn finds.

`CoreRig` holds every step against the books, and every read of the device against the history it is of.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from engine.core.commands import Fork, Lengths, Open, Truncate
from engine.core.config import CoreConfig
from engine.core.errors import RefusalReason
from engine.core.events import (
    KvMoved,
    SessionForked,
    SessionOpened,
    SessionTruncated,
    SlotChanged,
    SlotState,
    TurnAdmitted,
    TurnsForgotten,
)
from engine.core.ids import Rid, SessionId, TurnId, count_ids, unpack_ids
from engine.core.ownership import Move, PoolKind
from engine.core.turns import Point
from tests.kit.core_parts import CoreRig
from tests.kit.shadow_model import ShadowModel

S, F = SessionId("s"), SessionId("f")
CONFIG = CoreConfig(page_size=4, pool_pages=41, num_rows=6, context_len=80, vocab_size=100)
FIRST, SECOND = [1, 2, 3, 4, 5, 6], [7, 8, 9]
LENGTH = len(FIRST) + len(SECOND) + 2 * 2
"""Tokens of a session after two turns that generated two ids each."""


def run_turn(rig: CoreRig, session: str, turn: str, ids: Sequence[int], parent: str | None = None) -> Rid:
    command = rig.command(turn, ids, session)
    rid = rig.submit(replace(command, parent=TurnId(parent) if parent is not None else None))
    rig.run()
    return rid


def make_session(page_size: int, *, streaming: bool = True, prefix_cache: bool = True) -> CoreRig:
    """Two turns, `a` then `b`: 13 tokens."""
    num_pages = 64 // page_size + 1
    rig = CoreRig(replace(CONFIG, page_size=page_size, pool_pages=num_pages, prefix_cache=prefix_cache))
    rig.open("s", streaming=streaming)
    run_turn(rig, "s", "a", FIRST)
    run_turn(rig, "s", "b", SECOND, "a")
    assert count_ids(rig.core.find_base(S, Point(TurnId("b")))) == LENGTH
    return rig


def demote(rig: CoreRig) -> None:
    """A turn without a session needs one page more than are free."""
    page_size = rig.core.config.page_size
    available = rig.core.snapshot().pools[0].available
    rig.submit(rig.command("pressure", [90] * ((available + 1) * page_size - 1)))
    rig.run()


def history(rig: CoreRig, session: SessionId = S, turn: str = "b") -> list[int]:
    parent = TurnId(turn) if session == S or rig.slot("f").history_len == 0 else None
    return list(unpack_ids(rig.core.find_base(session, Point(parent))))


def apply(rig: CoreRig, command: Fork | Truncate) -> Lengths:
    lengths = rig.apply(command)
    assert isinstance(lengths, Lengths)
    return lengths


def assert_next_turn(rig: CoreRig, session: str, base: Sequence[int], kv_len: int, parent: str | None = None) -> None:
    """The next turn takes exactly the KV that was told, and its ids are those of its history."""
    rid = run_turn(rig, session, "next", [30], parent)
    (admitted,) = (event for event in rig.of(TurnAdmitted) if event.rid == rid)
    model = ShadowModel(rig.core.config.vocab_size)
    expected = [*base, 30]
    for _ in range(2):
        expected.append(model.next_id(model.digest(expected)))
    assert rig.output(rid) == expected[-2:]
    assert (admitted.tokens_from_slot + admitted.tokens_from_tree, admitted.tokens_to_compute) == (
        kv_len,
        len(base) + 1 - kv_len,
    )


def come_back(rig: CoreRig) -> None:
    """The slot is on its way back from a turn that was aborted in flight."""
    rid = rig.submit(rig.command("aborted", [40, 41], "s"))
    assert rig.plan() is not None
    rig.cancel(rid)
    assert rig.slot("s").slot is SlotState.RETURNING


PREPARE: dict[SlotState, Callable[[CoreRig], None]] = {
    SlotState.HELD: lambda _: None,
    SlotState.DEMOTED: demote,
    SlotState.RETURNING: come_back,
}


# Truncate


@pytest.mark.parametrize("length", range(LENGTH + 1))
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("state", [SlotState.HELD, SlotState.DEMOTED])
def test_truncate_when_at_any_length_then_the_next_turn_takes_what_was_told(
    state: SlotState, page_size: int, length: int
) -> None:
    rig = make_session(page_size)
    before = history(rig)
    PREPARE[state](rig)
    assert rig.slot("s").slot is state
    lengths = apply(rig, Truncate(S, length))
    assert lengths.history_len == length
    slot = rig.slot("s")
    if state is SlotState.HELD:
        assert slot.kv_committed_len <= max(0, length - 1)
        assert lengths.kv_len > length - 1 - page_size, "no more than a page is lost to the tree's edge"
    else:
        assert lengths.kv_len == min(length, LENGTH - 2) // page_size * page_size, "one page gave way to the pressure"
    assert (slot.slot is SlotState.EMPTY) == (length == 0)
    assert slot.history_len == length
    assert rig.of(SessionTruncated)[-1].kv_len == lengths.kv_len
    assert_next_turn(rig, "s", before[:length], lengths.kv_len)


@pytest.mark.parametrize("length", range(LENGTH + 1))
@pytest.mark.parametrize("page_size", [1, 4])
def test_truncate_when_the_slot_is_on_its_way_back_then_it_is_cut_when_it_arrives(page_size: int, length: int) -> None:
    rig = make_session(page_size)
    before = history(rig)
    come_back(rig)
    assert apply(rig, Truncate(S, length)).history_len == length
    rig.answer()
    slot = rig.slot("s")
    assert slot.kv_committed_len <= max(0, length - 1)
    assert slot.slot is (SlotState.EMPTY if length == 0 else SlotState.HELD if slot.kv_committed_len else slot.slot)
    if slot.slot is SlotState.HELD:
        assert_next_turn(rig, "s", before[:length], slot.kv_committed_len)


@pytest.mark.parametrize("length", range(LENGTH + 1))
@pytest.mark.parametrize("page_size", [1, 4])
def test_truncate_when_a_committed_turn_is_still_in_flight_then_it_is_cut_when_it_arrives(
    page_size: int, length: int
) -> None:
    rig = make_session(page_size)
    overlapping = CoreRig(replace(rig.core.config, in_flight_max=2))
    overlapping.open("s", streaming=True)
    overlapping.submit(replace(overlapping.command("a", [*range(LENGTH - 1)], "s"), max_tokens=9))
    overlapping.step()
    assert overlapping.plan() is not None
    assert overlapping.plan() is not None
    overlapping.finish_at(Rid(1), 1)
    assert overlapping.slot("s").slot is SlotState.COMMITTING
    before = history(overlapping, turn="a")
    assert len(before) == LENGTH
    apply(overlapping, Truncate(S, length))
    overlapping.run()
    slot = overlapping.slot("s")
    assert (slot.slot is SlotState.EMPTY) == (length == 0)
    assert slot.kv_committed_len <= max(0, length - 1)
    if slot.slot is SlotState.HELD:
        assert_next_turn(overlapping, "s", before[:length], slot.kv_committed_len)


@pytest.mark.parametrize("length", range(LENGTH + 1))
@pytest.mark.parametrize("state", [SlotState.HELD, SlotState.RETURNING])
def test_truncate_when_there_is_no_prefix_cache_then_the_slot_alone_keeps_what_is_left(
    state: SlotState, length: int
) -> None:
    rig = make_session(4, prefix_cache=False)
    before = history(rig)
    PREPARE[state](rig)
    told = apply(rig, Truncate(S, length)).kv_len
    rig.run()
    kv_len = max(0, length - 1)
    if state is SlotState.HELD:
        assert told == kv_len
    assert rig.slot("s").kv_committed_len == kv_len
    assert_next_turn(rig, "s", before[:length], kv_len)


@pytest.mark.parametrize("length", range(LENGTH + 1))
@pytest.mark.parametrize("page_size", [1, 4])
def test_truncate_when_the_session_is_ordinary_then_the_longest_path_finds_what_was_told(
    page_size: int, length: int
) -> None:
    rig = make_session(page_size, streaming=False)
    before = history(rig)
    lengths = apply(rig, Truncate(S, length))
    assert lengths.history_len == length
    parent = None if length == 0 else "a" if length <= len(FIRST) + 2 else "b"
    assert_next_turn(rig, "s", before[:length], lengths.kv_len, parent)


@pytest.mark.parametrize(
    ("streaming", "length", "forgotten"),
    [
        (True, 13, None),
        (True, 12, ("b",)),
        (True, 8, ("b",)),
        (True, 7, ("a", "b")),
        (True, 0, ("a", "b")),
        (False, 13, None),
        (False, 12, ("b",)),
        (False, 9, ("b",)),
        (False, 8, ("b",)),
        (False, 7, ("a", "b")),
        (False, 0, ("a", "b")),
    ],
)
def test_truncate_when_turns_end_behind_the_cut_then_they_are_forgotten(
    streaming: bool, length: int, forgotten: tuple[str, ...] | None
) -> None:
    rig = make_session(4, streaming=streaming)
    rig.take()
    apply(rig, Truncate(S, length))
    told = [event.turn_ids for event in rig.of(TurnsForgotten)]
    assert told == ([] if forgotten is None else [forgotten])


def test_truncate_when_a_name_is_forgotten_then_it_is_free_unless_its_turn_was_only_cut() -> None:
    streaming, ordinary = make_session(4), make_session(4, streaming=False)
    for rig in (streaming, ordinary):
        apply(rig, Truncate(S, 12))
        assert rig.refusal(rig.command("a", [1], "s")).reason is RefusalReason.TURN_EXISTS
    run_turn(streaming, "s", "b", [1])
    assert ordinary.refusal(ordinary.command("b", [1], "s")).reason is RefusalReason.TURN_EXISTS
    apply(ordinary, Truncate(S, 8))
    run_turn(ordinary, "s", "b", [1], "a")


def test_truncate_when_it_is_refused_then_it_names_the_reason_and_changes_nothing() -> None:
    rig = make_session(4)
    assert rig.refusal(Truncate(SessionId("nobody"), 0)).reason is RefusalReason.SESSION_UNKNOWN
    for length in (-1, LENGTH + 1):
        refusal = rig.refusal(Truncate(S, length))
        assert (refusal.reason, refusal.value, refusal.limit) == (RefusalReason.LENGTH_INVALID, length, LENGTH)
    rig.submit(rig.command("live", [1], "s"))
    for _ in range(2):
        refusal = rig.refusal(Truncate(S, 3))
        assert (refusal.reason, refusal.value) == (RefusalReason.SESSION_BUSY, "live")
        assert rig.plan() is not None
        rig.answer()
    rig.run()


# Fork


@pytest.mark.parametrize("length", range(LENGTH + 1))
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("state", PREPARE)
def test_fork_when_at_any_length_then_its_next_turn_takes_what_was_told(
    state: SlotState, page_size: int, length: int
) -> None:
    rig = make_session(page_size)
    before = history(rig)
    PREPARE[state](rig)
    source = rig.slot("s")
    lengths = apply(rig, Fork(S, F, at_len=length))
    assert lengths.history_len == length
    if state is SlotState.HELD:
        assert rig.slot("f").kv_committed_len == max(0, length - 1) // page_size * page_size
        assert rig.slot("s").kv_committed_len == source.kv_committed_len, "the source keeps the right to its KV"
    assert rig.slot("s").slot is state
    if rig.core.has_work:
        rig.run()
    held_len = rig.slot("s").kv_committed_len
    assert_next_turn(rig, "f", before[:length], lengths.kv_len)
    rig.take()
    if state is not SlotState.DEMOTED:
        assert_next_turn(rig, "s", before, held_len)
        assert held_len == LENGTH - 1


@pytest.mark.parametrize("length", range(LENGTH + 1))
@pytest.mark.parametrize("page_size", [1, 4])
def test_fork_when_the_session_is_ordinary_then_every_path_is_there_up_to_the_length(
    page_size: int, length: int
) -> None:
    rig = make_session(page_size, streaming=False)
    before = history(rig)
    lengths = apply(rig, Fork(S, F, at_len=length))
    assert lengths.history_len == length
    assert history(rig) == before
    parent = None if length == 0 else "a" if length <= len(FIRST) + 2 else "b"
    assert_next_turn(rig, "f", before[:length], lengths.kv_len, parent)


@pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "ordinary"])
@pytest.mark.parametrize(
    ("at_turn", "at_len", "length"), [(None, None, 13), ("b", None, 13), ("a", None, 8), ("a", 5, 5), ("b", 9, 9)]
)
def test_fork_when_at_a_turn_then_it_has_the_path_to_its_end_cut_to_the_length(
    streaming: bool, at_turn: str | None, at_len: int | None, length: int
) -> None:
    rig = make_session(4, streaming=streaming)
    before = history(rig)
    command = Fork(S, F, TurnId(at_turn) if at_turn is not None else None, at_len, trace_id="trace")
    lengths = apply(rig, command)
    assert lengths.history_len == length
    last = "a" if length <= 8 else "b"
    assert history(rig, F, last) == before[:length]
    forked = rig.of(SessionForked)[-1]
    assert (forked.session_id, forked.source_id, forked.history_len) == (F, S, length)
    assert forked.kv_len == lengths.kv_len
    opened = rig.of(SessionOpened)[-1]
    assert (opened.uid, opened.streaming, opened.trace_id) == (forked.uid, streaming, "trace")


def test_fork_when_at_a_turn_of_a_tree_then_branches_off_its_path_are_not_there() -> None:
    rig = make_session(4, streaming=False)
    run_turn(rig, "s", "side", [50], "a")
    apply(rig, Fork(S, F, TurnId("b")))
    for turn in ("a", "b"):
        assert rig.core.find_base(F, Point(TurnId(turn))) == rig.core.find_base(S, Point(TurnId(turn)))
    command = replace(rig.command("t", [1], "f"), parent=TurnId("side"))
    assert rig.refusal(command).reason is RefusalReason.PARENT_UNKNOWN
    apply(rig, Fork(S, SessionId("whole")))
    assert rig.core.find_base(SessionId("whole"), Point(TurnId("side"))) != b""


def test_fork_when_the_slot_is_held_then_its_full_pages_are_published_and_none_is_copied() -> None:
    rig = make_session(4)
    rig.take()
    free = rig.core.snapshot().pools[0].available
    apply(rig, Fork(S, F))
    moves = [(event.pool, event.move, len(event.pages)) for event in rig.of(KvMoved)]
    assert moves == [(PoolKind.FULL, Move.PUBLISH, 2)], "the first page was the tree's since the first prompt"
    assert rig.core.snapshot().pools[0].available == free
    (changed,) = rig.of(SlotChanged)
    assert (changed.session_id, changed.source, changed.target) == (F, SlotState.EMPTY, SlotState.HELD)
    order = [type(event) for event in rig.told if isinstance(event, SessionOpened | SlotChanged | SessionForked)]
    assert order == [SessionOpened, SlotChanged, SessionForked]
    rig.take()
    apply(rig, Fork(S, SessionId("again")))
    assert rig.of(KvMoved) == []


@pytest.mark.parametrize("stage", ["waits", "runs", "comes back"])
def test_fork_when_the_slot_is_away_then_nothing_is_published_and_the_running_turn_is_not_disturbed(stage: str) -> None:
    rig = make_session(4)
    before = history(rig)
    rid = rig.submit(replace(rig.command("live", [60], "s"), max_tokens=3))
    if stage != "waits":
        assert rig.plan() is not None
    if stage == "comes back":
        rig.cancel(rid)
    rig.take()
    lengths = apply(rig, Fork(S, F))
    assert [event.move for event in rig.of(KvMoved)] == ([Move.PUBLISH] if stage == "waits" else [])
    assert lengths.kv_len == (12 if stage == "waits" else 4), "what the first prompt left in the tree"
    rig.run()
    assert_next_turn(rig, "f", before, lengths.kv_len)
    assert len(rig.output(rid)) == (0 if stage == "comes back" else 3)


def test_fork_when_the_source_goes_on_or_closes_then_neither_touches_the_other() -> None:
    rig = make_session(4)
    before = history(rig)
    lengths = apply(rig, Fork(S, F))
    run_turn(rig, "s", "more", [70, 71])
    assert history(rig, F) == before
    apply(rig, Truncate(S, 3))
    rig.close("s")
    assert_next_turn(rig, "f", before, lengths.kv_len)
    rig.close("f")
    pool = rig.core.snapshot().pools[0]
    assert (pool.session_held, pool.uncached, pool.protected) == (0, 0, 0)


def test_fork_when_it_is_refused_then_it_names_the_reason_and_nothing_is_opened() -> None:
    for streaming in (True, False):
        rig = make_session(4, streaming=streaming)
        rig.apply(Open(SessionId("taken"), streaming=True))
        cases = [
            (Fork(SessionId("nobody"), F), RefusalReason.SESSION_UNKNOWN),
            (Fork(S, S), RefusalReason.SESSION_EXISTS),
            (Fork(S, SessionId("taken")), RefusalReason.SESSION_EXISTS),
            (Fork(S, F, TurnId("nobody")), RefusalReason.PARENT_UNKNOWN),
            (Fork(S, F, at_len=-1), RefusalReason.LENGTH_INVALID),
            (Fork(S, F, at_len=LENGTH + 1), RefusalReason.LENGTH_INVALID),
            (Fork(S, F, TurnId("a"), 9), RefusalReason.LENGTH_INVALID),
        ]
        for command, reason in cases:
            assert rig.refusal(command).reason is reason
        rig.submit(rig.command("live", [1], "s"))
        assert rig.refusal(Fork(S, F, TurnId("live"))).reason is RefusalReason.PARENT_UNKNOWN
        rig.run()
