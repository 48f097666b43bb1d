"""How a turn comes in: what it takes the place of, in which order that is told, and refusals that change nothing.

`CoreRig.refusal` compares snapshots, owners and events around each refused command.
"""

from dataclasses import replace

import pytest

from engine.core.commands import Abort, AbortReason, CommitAck, FinishReason, OnAbort, Submit, TurnMode
from engine.core.config import CoreConfig
from engine.core.errors import Refusal, RefusalReason
from engine.core.events import CommitRequested, CoreEvent, TurnAccepted, TurnEnded, TurnsForgotten
from engine.core.ids import Rid, SessionId, TurnId, unpack_ids
from engine.core.turns import Point
from tests.kit.core_parts import CoreRig

CONFIG = CoreConfig(page_size=4, pool_pages=41, num_rows=9, context_len=64, vocab_size=100)
S = SessionId("s")


def grow(rig: CoreRig, *edges: tuple[str, str | None]) -> None:
    """Finished turns of session `s`, by name and parent."""
    for name, parent in edges:
        rig.submit(below(rig.command(name, [len(name), 7], "s"), parent))
        rig.run()
    rig.take()


def below(command: Submit, parent: str | None, mode: TurnMode = TurnMode.APPEND) -> Submit:
    return replace(command, parent=TurnId(parent) if parent is not None else None, mode=mode)


def replacing(rig: CoreRig, name: str, parent: str | None) -> Submit:
    return below(rig.command(name, [9], "s"), parent, TurnMode.REPLACE)


def make_rig(config: CoreConfig = CONFIG) -> CoreRig:
    """An ordinary session: a, below it b with c, and d; and a second root e."""
    rig = CoreRig(config)
    rig.open("s")
    grow(rig, ("a", None), ("b", "a"), ("c", "b"), ("d", "a"), ("e", None))
    return rig


def path(rig: CoreRig, name: str) -> list[int]:
    return list(unpack_ids(rig.core.find_base(S, Point(TurnId(name)))))


def turn_events(rig: CoreRig) -> list[CoreEvent]:
    return [event for event in rig.told if isinstance(event, TurnEnded | TurnsForgotten | TurnAccepted)]


@pytest.mark.parametrize("stage", ["waits", "runs", "is in flight"])
@pytest.mark.parametrize("on_abort", OnAbort)
@pytest.mark.parametrize(
    ("parent", "live_below", "forgotten"),
    [
        (None, ["a", "b", "e"], ("a", "b", "c", "d", "e")),
        ("a", ["a", "b"], ("b", "c", "d")),
        ("b", ["b"], ("c",)),
        ("e", ["e"], ()),
    ],
)
def test_replace_when_accepted_then_live_turns_end_first_then_finished_ones_go_then_it_is_accepted(
    parent: str | None, live_below: list[str], forgotten: tuple[str, ...], on_abort: OnAbort, stage: str
) -> None:
    rig = make_rig()
    live = {}
    for name in ("a", "b", "e"):
        command = below(rig.command(f"below {name}", [11], "s"), name)
        live[name] = rig.submit(replace(command, on_abort=on_abort, max_tokens=9))
    if stage != "waits":
        rig.step(2)
    if stage == "is in flight":
        assert rig.plan() is not None
    rig.take()
    rid = rig.submit(replacing(rig, "new", parent))
    told = turn_events(rig)
    ended = [event for event in told if isinstance(event, TurnEnded)]
    assert [event.rid for event in ended] == [live[name] for name in live_below]
    assert {(event.outcome, event.is_committed) for event in ended} == {(AbortReason.REPLACED, False)}
    gone = [TurnsForgotten(S, tuple(map(TurnId, forgotten)))] if forgotten else []
    assert told[len(ended) : -1] == gone
    assert isinstance(told[-1], TurnAccepted)
    rig.run()
    assert rig.ending(rid).outcome is FinishReason.LENGTH
    for name in set(live) - set(live_below):
        assert rig.ending(live[name]).outcome is FinishReason.LENGTH, "it hangs elsewhere, and goes on undisturbed"
    for name in forgotten:
        with pytest.raises(Refusal, match="no finished turn"):
            rig.core.find_base(S, Point(TurnId(name)))


def test_replace_when_the_parent_runs_then_it_is_rolled_back_and_its_input_goes_on() -> None:
    rig = make_rig()
    victim = rig.submit(replace(below(rig.command("victim", [20, 21], "s"), "b"), max_tokens=9))
    rig.step(3)
    assert len(rig.output(victim)) == 3
    rid = rig.submit(replacing(rig, "new", "victim"))
    assert rig.ending(victim).outcome is AbortReason.REPLACED
    rig.run()
    assert path(rig, "new") == [*path(rig, "b"), 20, 21, 9, *rig.output(rid)]
    rig.submit(replacing(rig, "newest", "b"))
    assert rig.of(TurnsForgotten)[-1].turn_ids == ("c", "new"), "it hangs below the parent of the one that ran"


def test_replace_when_a_name_was_forgotten_then_it_is_free_again() -> None:
    rig = make_rig()
    assert rig.refusal(rig.command("c", [1], "s")).reason is RefusalReason.TURN_EXISTS
    rig.submit(replacing(rig, "new", "b"))
    rig.submit(below(rig.command("c", [1], "s"), "b"))
    rig.run()
    assert path(rig, "c")[:-3] == path(rig, "b")


def test_replace_when_refused_then_nothing_at_all_has_changed() -> None:
    config = replace(CONFIG, session_turns_max=4, waiting_max=4)
    rig = make_rig(config)
    for name in ("a", "b", "e"):
        rig.submit(replace(below(rig.command(f"below {name}", [11], "s"), name), max_tokens=9))
    rig.step(2)
    for command, reason in (
        (replace(replacing(rig, "new", "a"), offset=10_000), RefusalReason.OFFSET_INVALID),
        (replace(replacing(rig, "new", "a"), offset=-1), RefusalReason.OFFSET_INVALID),
        (replacing(rig, "new", "nobody"), RefusalReason.PARENT_UNKNOWN),
        (replace(replacing(rig, "new", None), drop_previous_output=True), RefusalReason.PARENT_REQUIRED),
        (replace(replacing(rig, "new", "a"), input_ids=bytes(4 * 64)), RefusalReason.PROMPT_EXCEEDS_CONTEXT),
        (replace(replacing(rig, "new", "a"), input_ids=b""), RefusalReason.EMPTY_PROMPT),
        (replace(replacing(rig, "new", "a"), max_tokens=0), RefusalReason.MAX_TOKENS_INVALID),
        (replace(replacing(rig, "new", "a"), priority=1001), RefusalReason.PRIORITY_INVALID),
        (replace(replacing(rig, "new", "a"), draft_tokens=99), RefusalReason.DRAFT_TOKENS_INVALID),
        (replacing(rig, "b", "a"), RefusalReason.TURN_EXISTS),
        (replacing(rig, "below e", None), RefusalReason.TURN_EXISTS),
    ):
        assert rig.refusal(command).reason is reason
    rig.run()
    assert {event.outcome for event in rig.of(TurnEnded)} == {FinishReason.LENGTH}
    assert rig.of(TurnsForgotten) == []


def test_replace_when_the_queue_is_full_then_it_is_refused_though_its_own_victims_wait_there() -> None:
    rig = make_rig(replace(CONFIG, waiting_max=2, running_max=1))
    rig.submit(rig.command("running", [1], "s"))
    assert rig.plan() is not None
    for name in ("x", "y"):
        rig.submit(below(rig.command(name, [2], "s"), "a"))
    refusal = rig.refusal(replacing(rig, "new", "a"))
    assert (refusal.reason, refusal.value, refusal.limit) == (RefusalReason.QUEUE_FULL, 2, 2)
    rig.answer()
    rig.run()
    assert [event.outcome for event in rig.of(TurnEnded)] == [FinishReason.LENGTH] * 3


def test_replace_when_a_victim_is_being_committed_then_it_is_refused_and_afterwards_it_is_not() -> None:
    rig = CoreRig(CONFIG, is_ack_automatic=False)
    rig.open("s")
    committing = rig.submit(rig.command("t", [1, 2], "s"))
    rig.step(2)
    assert [event.rid for event in rig.of(CommitRequested)] == [committing]
    running = rig.submit(replace(rig.command("u", [1, 2], "s"), max_tokens=9))
    for command in (replacing(rig, "new", "t"), replacing(rig, "new", None)):
        refusal = rig.refusal(command)
        assert (refusal.reason, refusal.value) == (RefusalReason.PARENT_UNFINISHED, "t")
    assert [event.rid for event in rig.of(TurnEnded)] == []
    rig.apply(CommitAck(committing))
    rig.submit(replacing(rig, "new", None))
    assert [event.rid for event in rig.of(TurnEnded)] == [committing, running]
    assert rig.ending(committing).outcome is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("limit", "field_value"), [("session_turns_max", 2), ("session_nodes_max", 7)], ids=["turns", "nodes"]
)
def test_limits_when_a_turn_replaces_then_only_what_would_remain_counts(limit: str, field_value: int) -> None:
    config = replace(CONFIG, session_turns_max=2) if limit == "session_turns_max" else CONFIG
    config = replace(config, session_nodes_max=7) if limit == "session_nodes_max" else config
    rig = make_rig(config)
    for name in ("x", "y"):
        rig.submit(below(rig.command(name, [2], "s"), "b"))
    refusal = rig.refusal(below(rig.command("z", [3], "s"), "b"))
    assert (refusal.reason, refusal.limit) == (RefusalReason.SESSION_TURNS_LIMIT, field_value)
    rig.submit(replacing(rig, "new", "b"))
    rig.run()
    assert rig.ending(Rid(rig.of(TurnAccepted)[-1].rid)).outcome is FinishReason.LENGTH


def test_limits_when_what_remains_is_still_too_much_then_a_replace_is_refused_too() -> None:
    rig = make_rig(replace(CONFIG, session_turns_max=2))
    for name in ("x", "y"):
        rig.submit(below(rig.command(name, [2], "s"), "b"))
    assert rig.refusal(replacing(rig, "new", "e")).reason is RefusalReason.SESSION_TURNS_LIMIT


@pytest.mark.parametrize(("lane", "other"), [("s", None), (None, "s")], ids=["sessions", "plain"])
def test_queue_when_one_lane_is_full_then_the_other_still_takes_turns(lane: str | None, other: str | None) -> None:
    rig = make_rig(replace(CONFIG, waiting_max=3))
    for number in range(3):
        rig.submit(rig.command(f"w{number}", [1], lane))
    refusal = rig.refusal(rig.command("one more", [1], lane))
    assert (refusal.reason, refusal.value, refusal.limit) == (RefusalReason.QUEUE_FULL, 3, 3)
    for number in range(3):
        rig.submit(rig.command(f"o{number}", [1], other))
    assert rig.refusal(rig.command("another", [1], other)).reason is RefusalReason.QUEUE_FULL
    rig.apply(Abort(Rid(rig.of(TurnAccepted)[0].rid)))
    rig.submit(rig.command("freed", [1], lane))


def test_turns_when_they_append_with_offset_or_dropped_output_then_the_session_has_exactly_those_paths() -> None:
    rig = make_rig()
    b, b_input = path(rig, "b"), path(rig, "b")[:-2]
    cases = {
        "all": (replace(below(rig.command("all", [30], "s"), "b")), b),
        "cut": (replace(below(rig.command("cut", [30], "s"), "b"), offset=3), b[:3]),
        "none": (replace(below(rig.command("none", [30], "s"), "b"), offset=0), []),
        "drop": (replace(below(rig.command("drop", [30], "s"), "b"), drop_previous_output=True), b_input),
        "both": (replace(below(rig.command("both", [30], "s"), "b"), drop_previous_output=True, offset=4), b[:4]),
    }
    for name, (command, base) in cases.items():
        rid = rig.submit(command)
        accepted = rig.of(TurnAccepted)[-1]
        assert (accepted.context_len, accepted.new_len) == (len(base) + 1, 1)
        rig.run()
        assert path(rig, name) == [*base, 30, *rig.output(rid)]
        assert rig.ending(rid).history_len == len(base) + 3
