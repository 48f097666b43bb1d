"""Turns and sessions: order, what fits, and names that are none of a terminal's business."""

import re
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.text import Text

from services.cli.top_view.inert import crop, fit, tame, to_encoding
from services.cli.top_view.tables import render_sessions, render_turns, share_height, sort_sessions, sort_turns
from tests.kit.readings import make_session, make_turn

HOSTILE = [
    "\x1b[2J\x1b[31mgone",
    "[bold red]loud[/] [link=file:///etc/passwd]x[/link]",
    "two\nlines\r\tand a tab",
    "\u202etxet\u2066",
    "\x9b31m\x07\x00\x7f",
    "e" + "\u0301" * 40,
    "漢字" * 60,
    "👩\u200d👩\u200d👧",
    "x" * 128,
    "",
]
WIDTHS = [20, 40, 80, 120, 200]


@pytest.mark.parametrize("name", HOSTILE)
def test_tame_when_a_name_is_hostile_then_all_of_it_is_there_to_look_at_and_nothing_acts(name: str) -> None:
    tamed = tame(name)
    assert tamed.isprintable()
    assert "\x1b" not in tamed
    assert cell_len(tamed) >= len(tamed), "no character without a cell of its own"


def test_tame_when_letters_have_their_accents_then_as_they_are() -> None:
    assert tame("Zoë, n°5 — 漢字") == "Zoë, n°5 — 漢字"
    assert tame("e\u0301") == "é"


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("cells", [0, 1, 2, 3, 8, 40])
def test_fit_when_cut_then_never_wider(name: str, cells: int) -> None:
    assert cell_len(fit(tame(name), cells)) <= cells


def test_fit_when_too_long_then_both_ends_are_left() -> None:
    assert fit("conversation-0001", 9) == "conv…0001"
    assert fit("short", 9) == "short"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", HOSTILE)
def test_tables_when_names_are_hostile_then_one_line_each_and_never_wider(name: str, width: int) -> None:
    turns = render_turns([make_turn(1, turn_id=name, session_id=name)], "pages", width, 5)
    sessions = render_sessions([make_session(1, session_id=name, kv_state="lent")], "pages", width, 5)
    assert (len(turns), len(sessions)) == (2, 2)
    for line in (*turns, *sessions):
        assert line.cell_len <= width
        assert line.plain.isprintable()


def test_tables_when_a_name_is_markup_then_shown_as_it_is() -> None:
    line = render_sessions([make_session(1, session_id="[bold red]loud[/]")], "pages", 120, 5)[1]
    assert line.plain.startswith("[bold red]loud[/]")
    assert not any("bold" in str(span.style) for span in line.spans)


def test_sort_turns_when_some_wait_then_running_ones_first_and_the_largest_of_them() -> None:
    waiting = replace(make_turn(1), phase="waiting", kv_pages=90)
    turns = [waiting, make_turn(2), replace(make_turn(3), kv_pages=50), replace(make_turn(4), phase="done")]
    assert [turn.number for turn in sort_turns(turns, "pages")] == [3, 2, 1, 4]


def test_sort_sessions_when_by_another_order_then_so() -> None:
    sessions = [replace(make_session(1), session_id="b", kv_tokens=9000), make_session(7, session_id="c")]
    sessions.append(make_session(3, session_id="a"))
    assert [session.session_id for session in sort_sessions(sessions, "pages")] == ["c", "a", "b"]
    assert [session.session_id for session in sort_sessions(sessions, "tokens")] == ["b", "c", "a"]
    assert [session.session_id for session in sort_sessions(sessions, "name")] == ["a", "b", "c"]


@pytest.mark.parametrize("height", range(8))
def test_render_sessions_when_there_are_too_many_then_told_how_many_more(height: int) -> None:
    lines = [line.plain for line in render_sessions([make_session(n) for n in range(1, 6)], "pages", 80, height)]
    assert len(lines) == min(height, 6)
    if height >= 6:
        assert lines[-1].startswith("session-1 ")
    elif height >= 3:
        assert lines[-1] == f"and {5 - (height - 2)} more sessions"
    elif height == 2:
        assert lines[-1] == "5 sessions"


def test_render_sessions_when_several_turns_run_in_one_then_the_first_and_how_many_more() -> None:
    session = replace(make_session(1), live_turn_ids=("first", "second", "third"))
    assert render_sessions([session], "pages", 80, 5)[1].plain.split()[-2:] == ["first", "+2"]


def test_render_tables_when_there_is_nothing_then_said_so() -> None:
    assert [line.plain for line in render_turns([], "pages", 80, 5)] == ["no turn runs or waits"]
    assert [line.plain for line in render_sessions([], "pages", 80, 5)] == ["no session is open"]


@pytest.mark.parametrize(
    ("num_turns", "num_sessions", "height", "shares"),
    [(0, 0, 10, (1, 1)), (50, 50, 10, (5, 5)), (2, 50, 10, (3, 7)), (50, 2, 10, (7, 3)), (2, 3, 10, (3, 4))],
)
def test_share_height_when_one_needs_less_then_the_other_has_it(
    num_turns: int, num_sessions: int, height: int, shares: tuple[int, int]
) -> None:
    assert share_height(num_turns, num_sessions, height) == shares


def test_to_encoding_when_the_terminal_has_only_ascii_then_our_signs_have_stand_ins() -> None:
    line = Text("···▁▅█ cut…", style="bold")
    assert to_encoding(line, "ascii").plain == "..._=# cut~"
    assert to_encoding(line, "utf-8").plain == line.plain


def test_crop_when_a_line_is_too_long_then_cut_with_a_sign() -> None:
    assert crop(Text("abcdef"), 4).plain == "abc…"
    assert crop(Text("abcd"), 4).plain == "abcd"


def test_tables_when_the_server_has_more_pools_then_a_column_for_each_and_only_those() -> None:
    turn = replace(make_turn(1), swa_pages=23, states=4)
    session = replace(make_session(1), swa_pages=5, states=2)
    for kinds, heads in (
        (("full", "rows"), ["pages"]),
        (("full", "swa", "rows"), ["pages", "SWA pages"]),
        (("full", "mamba", "rows"), ["pages", "states"]),
        (("full", "swa", "mamba", "rows"), ["pages", "SWA pages", "states"]),
    ):
        turn_head, turn_row = (line.plain for line in render_turns([turn], "pages", 200, 5, kinds))
        session_head, session_row = (line.plain for line in render_sessions([session], "pages", 200, 5, kinds))
        for head, row, (swa, states) in ((turn_head, turn_row, ("23", "4")), (session_head, session_row, ("5", "2"))):
            found = re.findall(r"(?:(?:SWA )?pages|states)", head)
            assert found == heads
            counts = dict(zip(heads, row.split()[-1 - len(heads) : -1], strict=True))
            assert counts.get("SWA pages", swa) == swa
            assert counts.get("states", states) == states
