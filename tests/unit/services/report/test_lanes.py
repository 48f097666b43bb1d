"""Lanes: what became of a session's KV, and how it is drawn."""

import re
from xml.etree import ElementTree as ET

import pytest

from services.client.history import SessionFact
from services.report.lane_picture import draw_lanes, tell_fact
from services.report.lanes import UNKNOWN, Lanes, build_lanes
from services.report.scales import LEFT, RIGHT
from tests.unit.services.report.histories import (
    START_S,
    fact,
    find_all,
    history,
    idle,
    read_picture,
    timeline_of,
    titles,
    words,
)


def lanes_of(*facts: SessionFact, seconds: float = 10, lanes_max: int = 60) -> Lanes:
    return build_lanes(facts, START_S, START_S + seconds, lanes_max)


def states_of(*facts: SessionFact) -> list[tuple[str, float, float]]:
    [lane] = lanes_of(*facts).shown
    return [(part.state, part.start_s - START_S, part.end_s - START_S) for part in lane.segments]


def draw(*facts: SessionFact) -> ET.Element:
    return read_picture(draw_lanes(timeline_of(history(idle(10), facts)), lanes_of(*facts).shown))


def test_build_lanes_when_a_session_lives_in_the_span_then_its_states_follow_each_other() -> None:
    assert states_of(
        fact(1, "opened", "streaming"),
        fact(2, "kv", "lent"),
        fact(4, "kv", "committing"),
        fact(5, "kv", "held", tokens=32),
        fact(7, "kv", "demoted", tokens=32),
        fact(8, "kv", "released"),
        fact(8, "closed", "session_closed"),
    ) == [("none", 1, 2), ("lent", 2, 4), ("committing", 4, 5), ("held", 5, 7), ("demoted", 7, 8)]


def test_build_lanes_when_a_session_was_open_before_then_its_state_is_unknown_until_told() -> None:
    assert states_of(fact(2, "turn_accepted"), fact(3, "kv", "lent")) == [(UNKNOWN, 0, 3), ("lent", 3, 10)]


def test_build_lanes_when_the_first_turn_rolls_back_then_there_is_no_kv_again() -> None:
    told = states_of(fact(1, "opened"), fact(2, "kv", "lent"), fact(3, "kv", "empty"))
    assert told == [("none", 1, 2), ("lent", 2, 3), ("none", 3, 10)]


def test_build_lanes_when_kv_outlives_its_session_then_it_is_shown_until_it_is_released() -> None:
    told = states_of(fact(1, "opened"), fact(4, "closed"), fact(4, "kv", "returning"), fact(6, "kv", "released"))
    assert told == [("none", 1, 4), ("returning", 4, 6)]


def test_build_lanes_when_a_fact_is_older_than_the_span_then_segments_begin_with_it() -> None:
    assert states_of(fact(-5, "opened"), fact(-4, "kv", "held")) == [("held", 0, 10)]


def test_build_lanes_when_a_name_is_used_again_then_it_is_another_lane() -> None:
    told = lanes_of(fact(1, "opened", number=1), fact(2, "closed", number=1), fact(3, "opened", number=2))
    assert [(lane.number, lane.session_id) for lane in told.shown] == [(1, "chat"), (2, "chat")]


def test_build_lanes_when_there_are_too_many_then_the_most_active_in_order_of_opening() -> None:
    facts = [fact(n / 10, "turn_accepted", number=number) for number in (1, 2, 3, 4) for n in range(number % 4 + 1)]
    told = lanes_of(*facts, lanes_max=2)
    assert [lane.number for lane in told.shown] == [2, 3]
    assert told.num_left_out == 2


def test_draw_lanes_when_turns_end_then_those_broken_off_have_a_mark_of_their_own() -> None:
    tree = draw(
        fact(1, "turn_accepted"),
        fact(2, "turn_ended", "stop"),
        fact(3, "turn_ended", "length"),
        fact(4, "turn_ended", "deadline"),
        fact(5, "turn_retracted"),
    )
    counts = {
        kind: [node.attrib["d"].count("M") for node in find_all(tree, f"mark-{kind}")]
        for kind in ("turn-in", "turn-out", "turn-cut", "turn-back")
    }
    assert counts == {"turn-in": [1], "turn-out": [2], "turn-cut": [1], "turn-back": [1]}
    assert any("turn ended: deadline [t1]" in told for told in titles(tree))
    assert "3 turns" in words(tree)


def test_draw_lanes_when_turns_overlap_or_go_on_then_each_has_its_line() -> None:
    [line] = find_all(
        draw(
            fact(1, "turn_ended", "stop", turn_id="before"),
            fact(2, "turn_accepted", turn_id="a"),
            fact(3, "turn_accepted", turn_id="b"),
            fact(5, "turn_ended", "stop", turn_id="a"),
        ),
        "mark-turn",
    )
    ends = [tuple(map(float, told)) for told in re.findall(r"M([\d.]+) [\d.]+H([\d.]+)", line.attrib["d"])]
    width = RIGHT - LEFT
    expected = [(LEFT + a / 10 * width, LEFT + b / 10 * width) for a, b in ((0, 1), (2, 5), (3, 10))]
    assert ends == [pytest.approx(pair, abs=0.06) for pair in expected]


def test_draw_lanes_when_units_move_then_ticks_have_the_colour_of_whom_they_go_to() -> None:
    tree = draw(fact(1, "park", "full", units=3), fact(2, "lend", units=3), fact(3, "demote", units=2))
    assert [node.attrib["class"] for node in find_all(tree, "mark-move")] == [
        "mark-move session",
        "mark-move request",
        "mark-move evictable",
    ]


def test_draw_lanes_when_a_state_is_not_known_to_the_picture_then_it_is_drawn_as_unknown() -> None:
    tree = draw(fact(0, "opened"), fact(0, "kv", 'odd"><b>'))
    assert [node.attrib["class"] for node in find_all(tree, "kv-unknown")] == ["kv-unknown"]


def test_draw_lanes_when_facts_are_close_together_then_one_title_tells_them_in_order() -> None:
    tree = draw(*(fact(1 + n / 1000, "park", units=n + 1) for n in range(6)))
    [strip] = find_all(tree, "clear")
    [told] = titles(strip)
    assert told.split(" ", 1)[1] == "park 1 unit; park 2 units; park 3 units\nand 3 more"


def test_draw_lanes_when_a_fact_is_outside_the_span_then_it_has_no_mark() -> None:
    tree = draw(fact(-3, "turn_accepted"), fact(20, "turn_accepted"), fact(5, "forked", "other"))
    assert find_all(tree, "mark-turn-in") == []
    assert len(find_all(tree, "mark-forked")) == 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (fact(0, "park", "full", units=12), "park 12 pages"),
        (fact(0, "kv", "lent", tokens=1512), "KV lent, 1,512 tokens"),
        (fact(0, "turn_ended", "stop", tokens=40), "turn ended: stop, 40 tokens [t1]"),
        (fact(0, "turn_accepted", tokens=9), "turn accepted, 9 tokens"),
        (
            fact(0, "forked", "a name that is very, very long", tokens=9),
            "forked from a name that is very, ve…, 9 tokens",
        ),
        (fact(0, "closed", "session_expired"), "closed: session_expired"),
    ],
)
def test_tell_fact_when_of_any_kind_then_in_words(given: SessionFact, told: str) -> None:
    assert tell_fact(given) == told
