"""What `tenure sessions` and `tenure check` show."""

from services.cli.check import format_report
from services.cli.sessions import format_sessions
from services.client import CheckReport, SessionInfo
from services.client.model import Finding

SESSIONS = [
    SessionInfo("a", True, 120, (), "held", 119, 3),
    SessionInfo("a-long-name", False, 0, ("t1", "t2"), "none", 0, 0),
]


def test_format_sessions_when_there_are_some_then_columns_line_up() -> None:
    assert format_sessions(SESSIONS).splitlines() == [
        "session      kind       tokens  kv    kv tokens  pages  running",
        "a            streaming  120     held  119        3      -",
        "a-long-name  ordinary   -       none  0          0      t1, t2",
    ]


def test_format_sessions_when_there_is_none_then_a_line_says_so() -> None:
    assert format_sessions([]) == "no session is open"


def test_format_report_when_clean_then_one_line_with_the_count() -> None:
    assert "(7 checks passed" in format_report(CheckReport((), 7))


def test_format_report_when_something_was_found_then_a_line_for_each() -> None:
    lines = format_report(CheckReport((Finding("census", "page 3"), Finding("holders", "page 4")), 7)).splitlines()
    assert lines[1:] == ["census: page 3", "holders: page 4"]
    assert "DO NOT BALANCE" in lines[0]
