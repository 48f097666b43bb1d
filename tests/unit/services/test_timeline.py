"""`tenure timeline`: what a person reads of one session."""

import re
from collections.abc import Iterable
from dataclasses import replace

import pytest

from services.cli.timeline import format_timeline, tell_fact
from services.client.history import History, SessionFact, Totals

UNIX_S = 1_700_000_000.0
TOTALS = Totals(0, {}, {}, 0, 0, 0, 0, 0, 0, 0, 0, 0, {})


def fact(
    what: str, detail: str = "", tokens: int = 0, units: int = 0, *, number: int = 7, name: str = "s"
) -> SessionFact:
    turn_id = "t1" if what.startswith("turn") else ""
    return SessionFact(UNIX_S + 0.113, name, number, what, detail, units, tokens, turn_id, 12)


def history(facts: Iterable[SessionFact], dropped: int = 0) -> History:
    return History(UNIX_S + 60.0, UNIX_S, 1.0, (), tuple(facts), dropped, TOTALS)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (fact("opened", "streaming"), "streaming"),
        (fact("turn_accepted", "new=9", 31), "context 31 tokens = 22 of history + 9 new"),
        (fact("turn_admitted", "slot=20 tree=1 computed=10", 31), "KV of 31 tokens = 20 slot + 1 tree + 10 computed"),
        (fact("turn_retracted", "", 5), "gave its KV back to make room, after 5 tokens of output"),
        (fact("turn_ended", "stop", 31), "stop, 31 generated"),
        (fact("history", "committed", 1), "1 token: the turn is a part of it"),
        (fact("history", "rolled_back", 22), "22 tokens: the turn is not a part of it"),
        (fact("kv", "held", 1234), "held, 1,234 tokens"),
        (fact("kv", "lent"), "lent"),
        (fact("park", "full", units=1), "1 page"),
        (fact("release", "full", units=4), "4 pages"),
        (fact("truncated", "", 12), "to 12 tokens, by a call of Session.Truncate"),
        (fact("forked", "old", 40), "from old, 40 tokens of history"),
        (fact("forgotten", "t2, t3"), "t2, t3"),
        (fact("closed", "session_expired", 12), "session_expired, 12 tokens of history"),
    ],
)
def test_fact_when_told_then_with_what_it_says(told: SessionFact, words: str) -> None:
    assert tell_fact(told) == words


def test_timeline_when_told_then_its_facts_alone_in_order_with_time_step_and_turn() -> None:
    facts = (fact("opened", "streaming"), fact("opened", "streaming", name="other"), fact("turn_ended", "stop", 3))
    head, columns, *rows = format_timeline(history(facts), "s").splitlines()
    assert re.fullmatch(r"session s, number 7, open; 2023-11-1[45], 0 s of it:", head)
    assert columns.split() == ["time", "step", "what", "turn"]
    assert [row.split()[1:] for row in rows] == [
        ["12", "opened", "streaming"],
        ["12", "turn", "ended", "t1", "stop,", "3", "generated"],
    ]
    assert all(re.match(r"  \d\d:\d\d:20\.113  12 ", row) for row in rows)


def kv_lines(*facts: SessionFact) -> list[str]:
    """What is told of the KV, fact by fact."""
    lines = format_timeline(history(facts), "s").splitlines()
    return [" ".join(line.split()[3:]) for line in lines if line.split()[2:3] == ["kv"]]


def test_timeline_when_a_cut_left_no_kv_then_it_is_not_told_as_given_to_the_cache() -> None:
    before = (fact("opened"), fact("kv", "held", 31), fact("release", "full", units=2))
    cut = (fact("kv", "demoted"), fact("truncated", "", 12))
    assert kv_lines(*before, *cut) == ["held, 31 tokens", "none of its own: the session was cut"]
    later = replace(cut[1], time_s=cut[1].time_s + 1)
    assert kv_lines(*before, cut[0], later) == ["held, 31 tokens", "demoted"], "it had given way before it was cut"
    gave_way = fact("demote", "full", units=1)
    assert kv_lines(*before, gave_way, *cut) == ["held, 31 tokens", "demoted"]


def test_timeline_when_held_kv_gave_way_then_demoted_also_where_its_pages_were_in_the_cache_before() -> None:
    assert kv_lines(fact("opened"), fact("kv", "held", 31), fact("kv", "demoted")) == ["held, 31 tokens", "demoted"]


@pytest.mark.parametrize("state", ["lent", "committing", "returning", "empty"])
def test_timeline_when_a_turn_or_a_fork_brought_no_kv_then_nothing_gave_way(state: str) -> None:
    assert kv_lines(fact("opened"), fact("kv", state), fact("kv", "demoted")) == [state, "none of its own"]
    assert kv_lines(fact("opened"), fact("kv", "demoted"), fact("forked", "a", 3)) == ["none of its own"]


def lines_of(*facts: SessionFact) -> list[str]:
    """All of it behind time and step."""
    lines = format_timeline(history(facts), "s").splitlines()[2:]
    return [" ".join(line.split()[2:] if line.split()[1:2] == ["12"] else line.split()) for line in lines]


BY_CALL = "by a call of Session.Truncate"


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (fact("history", "committed", 120), f"from 120 to 20 tokens, {BY_CALL}"),
        (fact("forked", "old", 40), f"from 40 to 20 tokens, {BY_CALL}"),
        (fact("turn_accepted", "new=9", 1031), f"from 1,022 to 20 tokens, {BY_CALL}"),
        (fact("truncated", "", 30), f"from 30 to 20 tokens, {BY_CALL}"),
        (fact("kv", "held", 40), f"to 20 tokens, {BY_CALL}"),
    ],
)
def test_timeline_when_a_session_was_cut_then_whence_where_it_is_known(before: SessionFact, words: str) -> None:
    assert lines_of(before, fact("truncated", "", 20))[1] == f"truncated {words}"


def test_timeline_when_a_tree_of_turns_was_cut_then_no_length_is_made_up_for_it() -> None:
    facts = (fact("opened", "ordinary"), fact("history", "committed", 120), fact("truncated", "", 20))
    assert lines_of(*facts)[2] == f"truncated to 20 tokens, {BY_CALL}"


def test_timeline_when_a_cut_took_turns_then_they_are_told_after_it_as_gone_with_it() -> None:
    older = replace(fact("forgotten", "t0"), time_s=UNIX_S)
    told = lines_of(older, fact("forgotten", "t1, t3"), fact("kv", "empty"), fact("truncated", "", 20))
    assert told == ["forgotten t0", "kv empty", f"truncated to 20 tokens, {BY_CALL}", "forgotten t1, t3 with it"]


def turn(what: str, turn_id: str) -> SessionFact:
    return replace(fact(what, "new=1", 1), turn_id=turn_id)


def test_timeline_when_turns_have_not_ended_then_its_end_says_which_wait_and_which_run() -> None:
    facts = [turn("turn_accepted", each) for each in ("t1", "t2", "t3", "t4")]
    facts += [turn("turn_admitted", each) for each in ("t1", "t2", "t3")]
    told = lines_of(*facts, turn("turn_retracted", "t2"), turn("turn_ended", "t3"))
    assert told[-3:] == ["turn t1 runs", "turn t2 waits", "turn t4 waits"]
    assert len(told) == len(facts) + 2 + 3


def test_timeline_when_it_is_not_known_what_was_before_then_as_the_server_says() -> None:
    assert kv_lines(fact("kv", "demoted")) == ["demoted"]


def test_timeline_when_a_name_was_used_again_then_each_session_has_a_part_with_its_number() -> None:
    facts = (fact("closed", "session_closed"), fact("opened", "streaming", number=9), fact("kv", "released"))
    first, older, newer = format_timeline(history(facts), "s").split("\n\n")
    assert first == "2 sessions had the name s, one after the other:"
    assert older.startswith("session s, number 7, closed (session_closed); its beginning lies further back; ")
    assert "released" in older
    assert newer.startswith("session s, number 9, open; 2023-")


def test_timeline_when_the_session_is_not_known_then_says_so_with_the_newest_that_are() -> None:
    facts = [fact("opened", "streaming", number=number, name=f"n{number}") for number in range(1, 11)]
    told = format_timeline(history(facts), "s")
    expected = "n10, n9, n8, n7, n6, n5, n4, n3 and 2 more"
    assert told == f"nothing is remembered of a session s; sessions of that time, the newest first: {expected}"
    assert format_timeline(history(()), "s").endswith("; nothing happened to any session")


def test_timeline_when_facts_were_dropped_then_says_how_many_and_where_it_begins() -> None:
    told = format_timeline(history((fact("opened", "streaming"),), dropped=3), "s")
    assert re.search(r"3 older facts of all sessions are not kept any more: what is told begins at \d\d:\d\d:20$", told)


@pytest.mark.parametrize(
    ("pool", "units", "told"), [("swa", 1, "1 SWA page"), ("swa", 2, "2 SWA pages"), ("mamba", 1, "1 state")]
)
def test_tell_fact_when_units_of_another_pool_moved_then_named(pool: str, units: int, told: str) -> None:
    assert tell_fact(fact("park", pool, units=units)) == told
