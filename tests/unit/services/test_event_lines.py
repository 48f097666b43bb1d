"""What `tenure events` and `tenure flush` print, and which places they take."""

import argparse

import pytest

from services.cli.arguments import read_place
from services.cli.event_lines import format_event, format_image, format_units
from services.cli.events import Verification, format_verification
from services.cli.flush import format_flushed
from services.cli.main import build_parser
from services.client import Flushed, KvBooksImage, KvEventInfo, KvWhat, PoolImage, UnitOwner

FREE, TURN, SESSION = UnitOwner("free"), UnitOwner("request", 2), UnitOwner("session", 1)


def told(line: str) -> str:
    """Without the time."""
    time, _, rest = line.partition("  ")
    assert time.count(":") == 2
    return rest


def moved(session_id: str = "chat", turn_id: str = "t1", *units: int) -> KvEventInfo:
    return KvEventInfo(
        sequence=17,
        time_s=1.5,
        step=3,
        pool="full",
        units=units or (4, 5, 6),
        what=KvWhat.MOVED,
        move="parked",
        source=TURN,
        target=SESSION,
        session_id=session_id,
        turn_id=turn_id,
    )


def test_event_when_a_move_then_how_many_from_whom_to_whom_and_the_names() -> None:
    assert told(format_event(moved())) == (
        "#17  full   parked       3 pages 4-6  request 2 -> session 1  [session chat, turn t1]"
    )


def test_event_when_of_nobody_then_no_names() -> None:
    assert told(format_event(moved("", ""))).endswith("session 1")
    assert told(format_event(moved("chat", ""))).endswith("[session chat]")


def test_event_when_there_is_not_much_room_then_long_names_lose_their_middle_and_short_ones_nothing() -> None:
    turn_id = "0123456789abcdef0123456789abcdef"
    event = moved("geography-of", turn_id)
    assert told(format_event(event, is_short=True)).endswith("[session geography-of, turn 012345…bcdef]")
    assert told(format_event(event)).endswith(f"[session geography-of, turn {turn_id}]")


def test_event_when_of_locks_or_draining_then_what_and_until_when() -> None:
    locked = KvEventInfo(1, 1.5, 3, "swa", (9,), KvWhat.PROTECTED)
    assert told(format_event(locked)) == "#1  swa    protected    1 SWA page 9"
    draining = KvEventInfo(2, 1.5, 3, "rows", (1,), KvWhat.DRAINING, source=TURN, until_step=8)
    assert told(format_event(draining)) == "#2  rows   draining     1 row 1  of request 2 until step 8"


def test_event_when_names_have_controls_then_nothing_in_them_acts() -> None:
    line = format_event(moved("a\x1b[31mb\r\nc", "\u202egnp"))
    assert line.isprintable()
    assert "\x1b" not in line
    assert "\n" not in line


def test_units_when_many_then_ranges_and_a_count_of_the_rest() -> None:
    assert format_units((9, 4, 6, 5)) == "4-6, 9"
    assert format_units(range(1, 40, 2)) == "1, 3, 5, 7, 9, 11 and 14 more ranges"
    assert format_units(()) == ""


def test_image_when_shown_then_the_place_and_who_owns_how_much() -> None:
    full = PoolImage("full", (FREE, FREE, TURN, SESSION, UnitOwner("cache")), frozenset(), frozenset())
    rows = PoolImage("rows", (FREE, UnitOwner("quarantined"), FREE), frozenset(), frozenset())
    line = told(format_image(KvBooksImage("log-1", 42, 1.5, (full, rows))))
    assert line == ("books after 42@log-1  full: free 1, request 1, session 1, cache 1; rows: free 1, quarantined 1")


def test_place_when_as_a_line_of_books_has_it_then_read() -> None:
    assert read_place("42@log-1") == (42, "log-1")
    assert read_place("0@a@b") == (0, "a@b")


@pytest.mark.parametrize("text", ["", "42", "42@", "@log", "-1@log", "x@log", "1@a\x1b", f"{2**63}@log", "²@log"])
def test_place_when_it_is_none_then_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        read_place(text)


def test_verification_when_all_is_equal_or_not_then_said_with_the_counts() -> None:
    assert format_verification(Verification(12, 3456)) == (
        "the books by the events are the server's in every pool (12 comparisons, 3,456 events)"
    )
    wrong = format_verification(Verification(2, 9, 1, "full: available 3, but 2 by the events"))
    assert wrong.startswith("THE EVENTS DO NOT LEAD TO THE BOOKS")
    assert "2 comparisons, 9 events, 1 times too slow: books anew" in wrong
    assert wrong.endswith("full: available 3, but 2 by the events")


def test_flushed_when_pools_had_something_then_each_is_told() -> None:
    assert format_flushed(Flushed(12, 0, 1)) == "freed 12 pages, 1 state"
    assert format_flushed(Flushed(0, 0, 0)).startswith("nothing to free")


def test_commands_when_parsed_then_since_and_verify_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    parsed = build_parser().parse_args(["events", "--since", "3@log"])
    assert (parsed.since, parsed.verify) == ((3, "log"), False)
    assert build_parser().parse_args(["events", "--verify", "--seconds", "2m"]).seconds == 120
    with pytest.raises(SystemExit):
        build_parser().parse_args(["events", "--verify", "--since", "3@log"])
    alone = build_parser().parse_args(["events", "--seconds", "5"])
    assert alone.run(alone) == 2
    assert "--seconds: is for --verify" in capsys.readouterr().err
