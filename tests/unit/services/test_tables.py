"""What `tenure sessions`, `check`, `explain`, `health` and `snapshot` show."""

import re
from dataclasses import replace

from services.cli.check import format_report
from services.cli.explain import format_history
from services.cli.health import format_health
from services.cli.sessions import describe_lengths, format_sessions
from services.cli.snapshot import format_state
from services.client import (
    CheckReport,
    Finding,
    Lengths,
    OwnershipChange,
    Plan,
    PlanRow,
    Pool,
    ServerState,
    SessionInfo,
    TurnInfo,
    UnitHistory,
    UnitOwner,
)
from tests.kit.readings import FULL, ROWS, STATES, SWA, make_turn

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
    assert format_report(CheckReport((), 7)) == ("every page has exactly one owner (7 checks since the server started)")


def test_format_report_when_units_are_quarantined_then_loud() -> None:
    told = format_report(CheckReport((), 7), num_quarantined=2).splitlines()[1]
    assert "OUT OF CIRCULATION: 2" in told
    assert "`tenure incidents`" in told
    assert "`tenure explain`" in told


def test_format_report_when_something_was_found_then_a_line_for_each() -> None:
    leak = Finding("holders", "lost", "leak", "full", (4, 5))
    lines = format_report(CheckReport((Finding("census", "page 3"), leak), 7)).splitlines()
    assert lines[1:] == ["conflict: census: page 3", "leak: holders: lost [full 4, 5]"]
    assert "DO NOT BALANCE" in lines[0]


def test_describe_lengths_when_told_then_both_are() -> None:
    assert describe_lengths(Lengths(120, 112)) == "120 tokens, of which 112 need not be computed again"


def test_format_history_when_it_has_moves_then_owner_step_and_trace_of_each_newest_first() -> None:
    request = UnitOwner("request", 5)
    changes = (
        OwnershipChange("quarantine", UnitOwner("free"), UnitOwner("quarantined"), 12, ""),
        OwnershipChange("grant", UnitOwner("free"), request, 9, "4bf92f3577b34da6a3ce929d0e0e4736"),
    )
    assert format_history(UnitHistory("full", 7, UnitOwner("quarantined"), changes)).splitlines() == [
        "full page 7: quarantined; newest move first:",
        "  step 12  quarantine  free -> quarantined",
        "  step 9   grant       free -> request 5    trace 4bf92f3577b34da6a3ce929d0e0e4736",
    ]


def test_format_history_when_names_of_sessions_are_known_then_they_stand_beside_their_numbers() -> None:
    request, nine, five = UnitOwner("request", 9), UnitOwner("session", 9), UnitOwner("session", 5)
    changes = (OwnershipChange("park", request, nine, 8, ""), OwnershipChange("lend", five, request, 7, ""))
    assert format_history(UnitHistory("full", 7, nine, changes), {9: "user-0-3"}).splitlines() == [
        "full page 7: session 9 (user-0-3); newest move first:",
        "  step 8  park  request 9 -> session 9 (user-0-3)",
        "  step 7  lend  session 5 -> request 9",
    ]


def test_format_health_when_told_then_each_line_is_worded_by_its_answer() -> None:
    assert format_health({"startup": True, "liveness": True, "readiness": True}).splitlines() == [
        "startup    yes  it has begun to serve",
        "liveness   yes  it is alive",
        "readiness  yes  it takes work",
    ]
    assert format_health({"startup": False, "liveness": False, "readiness": False}).splitlines() == [
        "startup    NO  it has not begun to serve yet",
        "liveness   NO  it is lost: start it anew if it does not end by itself",
        "readiness  NO  it takes no work now: tenure incidents or its log says why",
    ]


def test_format_history_when_nobody_had_it_then_said_so() -> None:
    assert format_history(UnitHistory("rows", 7, UnitOwner("free"), ())) == "row 7: free; nobody ever had it"


def test_format_state_when_turns_run_then_pools_turns_sessions_and_steps_in_flight() -> None:
    state = ServerState(
        steps=31,
        pools=(Pool("full", 256, 248, 0, 0, 0, 8, draining=0, quarantined=0, page_size=16),),
        turns=(TurnInfo(5, "t1", None, "running", 90, 4, 93, 8, 1),),
        sessions=(),
        plans=(Plan(31, (PlanRow(5, 2, 93, 1, 1),)),),
    )
    pools, turns, sessions, plans = format_state(state).split("\n\n")
    assert "".join(pools.splitlines()[1].split()).endswith("248+0+0+0+8=256")
    assert turns.splitlines()[1].split() == ["5", "t1", "-", "running", "90", "4", "93", "8", "1"]
    assert sessions == "no session is open"
    assert plans.splitlines() == ["31 steps so far; in flight:", "  step 31: turn 5 computes tokens 93 to 93"]


def test_format_state_when_idle_then_each_part_says_so() -> None:
    idle = ServerState(3, (Pool("rows", 4, 4, 0, 0, 0, 0, draining=0, quarantined=0, page_size=0),), (), (), ())
    assert format_state(idle).split("\n\n")[1:] == [
        "no turn runs or waits",
        "no session is open",
        "3 steps so far, none in flight",
    ]


def test_format_sessions_when_the_server_has_windows_and_states_then_what_is_held_of_them() -> None:
    held = replace(SESSIONS[0], swa_pages=3, states=2)
    for kinds, columns in ((("full", "swa", "rows"), ["SWA pages"]), (("full", "mamba", "rows"), ["states"])):
        heads, row = format_sessions([held], kinds).splitlines()
        assert re.search(rf"pages +{columns[0]} +running", heads)
        assert row.split()[-2] == ("3" if columns == ["SWA pages"] else "2")


def test_format_state_when_the_server_has_all_pools_then_turns_show_what_they_hold() -> None:
    turn = replace(make_turn(1), swa_pages=23, states=4)
    pools, turns, sessions, plans = format_state(ServerState(7, (FULL, SWA, STATES, ROWS), (turn,), (), ())).split(
        "\n\n"
    )
    assert [line.split("  ")[0] for line in pools.splitlines()] == [
        "pool",
        "full (pages of 16)",
        "swa (pages of 16)",
        "mamba (states)",
        "rows",
    ]
    head, row = turns.splitlines()
    assert re.search(r"kv tokens +pages +SWA pages +states +in flight$", head)
    assert row.split()[-4:] == [str(turn.kv_pages), "23", "4", "1"]
    assert (sessions, plans) == ("no session is open", "7 steps so far, none in flight")
