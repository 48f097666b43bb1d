"""The picture as a whole: what it says of the server, and that it fits any terminal."""

from dataclasses import replace

import pytest

from services.cli.books import format_pools
from services.cli.top_view.frame import View, render_frame
from services.cli.top_view.reading import Reading
from tests.kit.readings import INCIDENT, NOW_S, STATS, make_reading, make_session, make_turn

TARGET = "127.0.0.1:50051"
BUSY = make_reading(
    tuple(make_turn(number, session_id=f"session-{number}") for number in range(1, 30)),
    tuple(make_session(number) for number in range(1, 1001)),
    incidents=(INCIDENT,),
)
KEYS = "q quit"


def show(reading: Reading | None, *, width: int = 120, height: int = 40) -> str:
    return "\n".join(line.plain for line in render_frame(View(TARGET, reading, "pages"), width, height, KEYS))


@pytest.mark.parametrize("size", [(1, 1), (10, 3), (40, 10), (80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize("reading", [None, Reading(False, refusal="SERVER_LOADING"), make_reading(), BUSY])
def test_render_frame_when_a_terminal_is_of_any_size_then_it_fits(
    reading: Reading | None, size: tuple[int, int]
) -> None:
    width, height = size
    for silent_s in (None, 3.0):
        lines = render_frame(View(TARGET, reading, "name", silent_s=silent_s, silence="gone"), width, height, KEYS)
        assert len(lines) == height
        assert all(line.cell_len <= width for line in lines)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_render_frame_when_the_server_is_busy_then_every_part_is_there(size: tuple[int, int]) -> None:
    shown = show(BUSY, width=size[0], height=size[1])
    for part in (
        TARGET,
        "ready",
        "books balance",
        "full ",
        "rows ",
        "steps/s",
        "moves/s",
        "more turns",
        "session-1000",
    ):
        assert part in shown, part
    assert shown.endswith(KEYS)
    if size[1] < 60:
        assert "more sessions" in shown


def test_render_frame_when_there_are_no_keys_then_no_line_for_them_and_no_blank_ones() -> None:
    lines = render_frame(View(TARGET, make_reading(), "pages"), 100, 80)
    assert lines[-1].plain == "no session is open"


def test_render_frame_when_served_for_two_hours_then_says_so_and_since_when() -> None:
    assert "up 2 h 1 min, since 15 Jan 05:58 UTC" in show(make_reading())


def test_render_frame_when_an_incident_came_then_its_kind_id_and_age_in_red() -> None:
    lines = render_frame(View(TARGET, BUSY, "pages"), 120, 40)
    line = next(line for line in lines if INCIDENT.incident_id in line.plain)
    assert line.plain.startswith("incident inc-7f3a9c forward_stuck, 3 min ago: step 4182")
    assert all("red" in str(span.style) for span in line.spans)


@pytest.mark.parametrize(
    ("length_s", "expected"),
    [
        (None, ""),
        (0.0, ", over at once"),
        (0.3, ", over after 0.3 s"),
        (9.94, ", over after 9.9 s"),
        (42.0, ", over after 42 s"),
        (125.0, ", over after 2 min"),
    ],
)
def test_render_frame_when_an_incident_is_over_then_always_said_and_after_how_long(
    length_s: float | None, expected: str
) -> None:
    over = replace(INCIDENT, over_s=None if length_s is None else INCIDENT.time_s + length_s)
    assert f"3 min ago{expected}: step 4182 " in show(make_reading(incidents=(over,)))


def test_render_frame_when_sessions_have_kv_then_told_as_by_pools_and_how_many_of_them_are_lent() -> None:
    sessions = (make_session(1, kv_state="lent"), make_session(2, kv_state="lent"), make_session(3))
    assert STATS.slots_held == 10
    assert "sessions 3 (with KV 10, 2 of them lent, demoted 2)" in show(make_reading((), sessions))
    assert "sessions 1 (with KV 10, demoted 2)" in show(make_reading((), sessions[2:]))
    assert "with KV 10, demoted 2" in format_pools(STATS)


def test_render_frame_when_not_ready_then_why_where_it_is_known() -> None:
    assert "NOT READY: forward_stuck" in show(make_reading(incidents=(INCIDENT,), is_ready=False))
    assert "NOT READY: SERVER_LOADING" in show(Reading(False, refusal="SERVER_LOADING"))
    later = replace(INCIDENT, kind="leak")
    assert "NOT READY: forward_stuck" in show(make_reading(incidents=(INCIDENT, later), is_ready=False))
    over = replace(INCIDENT, over_s=NOW_S)
    assert "NOT READY  " in show(make_reading(incidents=(over,), is_ready=False))


def test_render_frame_when_books_do_not_balance_then_said_loudly() -> None:
    reading = replace(make_reading(), stats=replace(STATS, balanced=False))
    assert "THE BOOKS DO NOT BALANCE" in show(reading)
    assert "books balance" not in show(reading)


def test_render_frame_when_nobody_answers_then_the_last_reading_stays_and_for_how_long_is_told() -> None:
    view = View(TARGET, BUSY, "pages", silent_s=34.2, silence="no server answers there")
    shown = "\n".join(line.plain for line in render_frame(view, 120, 40))
    for part in ("NOT ANSWERING for 34 s", "no server answers there", "session-1000", "steps/s"):
        assert part in shown


def test_render_frame_when_paused_then_said_so() -> None:
    lines = render_frame(View(TARGET, BUSY, "pages", is_paused=True), 120, 40)
    assert "paused" in lines[0].plain
