"""What `tenure plant`, `tenure incidents` and `tenure dump` say."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import pytest
from grpc import aio

from engine.executor.device_faults import DeviceFaults, ForwardDrill, ForwardFault
from engine.runtime.handle import EngineHandle
from protos.v1 import faults_pb2, faults_pb2_grpc
from services.backend import Backend, BackendCell
from services.cli.arguments import DEFAULT_TARGET, USAGE_CODE
from services.cli.dump import describe_state, format_incidents, format_time
from services.cli.fault_kinds import ENDING, KINDS, TIMED
from services.cli.plant import run_plant
from services.cli.planting import format_planted, plant
from services.client import UnitHistory
from services.client.faults import FAULT_KINDS, FaultOrder
from services.client.incidents import Incident
from services.client.inspection import UnitOwner
from services.faults import FaultsServicer
from services.tokenization.tokenizer import Tokenizer

ELSEWHERE = "127.0.0.1:9"


def test_kinds_when_compared_with_the_protocol_then_each_has_its_name_and_text() -> None:
    assert list(FAULT_KINDS) == list(KINDS)
    assert sorted(FAULT_KINDS.values()) == sorted(set(faults_pb2.FaultKind.values()) - {0})
    assert set(TIMED) == {kind for kind, text in KINDS.items() if "--seconds" in text}


@pytest.mark.parametrize("kind", TIMED)
def test_run_plant_when_a_length_is_missing_then_it_is_asked_for_and_no_server(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_plant(ELSEWHERE, kind, seconds=None, count=1, every=1) == USAGE_CODE
    assert f"--seconds: {kind} needs it" in capsys.readouterr().err


def test_run_plant_when_no_server_answers_then_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_plant(ELSEWHERE, "forward-raises", seconds=None, count=1, every=1) == 1
    assert f"no server answers at {ELSEWHERE}" in capsys.readouterr().err


@asynccontextmanager
async def serving(servicer: FaultsServicer | None) -> AsyncIterator[str]:
    """The target of a server with these faults, or without any."""
    server = aio.server()
    if servicer is not None:
        faults_pb2_grpc.add_FaultsServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_plant_when_the_server_lets_nobody_break_it_then_how_to_start_one_that_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with serving(None) as target:
        assert await plant(target, FaultOrder("leak")) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"tenure: the server at {target} lets nobody break it: start one with --fault-injection\n"


def filled_cell(faults: DeviceFaults) -> BackendCell:
    cell = BackendCell()
    cell.fill(Backend(cast("EngineHandle", None), cast("Tokenizer", None), None, device_faults=faults))
    return cell


async def test_plant_when_the_server_takes_it_then_what_goes_wrong_is_armed_and_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    faults = DeviceFaults()
    faults.arm(ForwardDrill(ForwardFault.NAN))
    async with serving(FaultsServicer(filled_cell(faults))) as target:
        assert await plant(target, FaultOrder("none")) == 0
    assert faults.armed is None
    assert capsys.readouterr().out == "planted none: no forward goes wrong on purpose any more\n"


@pytest.mark.parametrize(
    ("target", "pool", "name", "expected"),
    [
        (DEFAULT_TARGET, "full", "full page 17", "next: tenure explain 17"),
        (ELSEWHERE, "full", "full page 17", "next: tenure explain 17 --target 127.0.0.1:9"),
        (ELSEWHERE, "rows", "row 17", "next: tenure explain 17 --rows --target 127.0.0.1:9"),
    ],
)
def test_format_planted_when_a_page_was_broken_then_the_next_step_explains_it(
    target: str, pool: str, name: str, expected: str
) -> None:
    unit = UnitHistory(pool, 17, UnitOwner("session", 3), ())
    first, second = format_planted(FaultOrder("leak", 0.0, 1, 1), unit, target).splitlines()
    assert first.startswith(f"planted leak: {name}, which belongs to session 3: a page that nobody holds any more: ")
    assert second == expected


def test_format_planted_when_the_page_was_free_then_nobody_is_named() -> None:
    unit = UnitHistory("full", 17, UnitOwner("free"), ())
    told = format_planted(FaultOrder("leak", 0.0, 1, 1), unit, DEFAULT_TARGET)
    assert told.startswith("planted leak: full page 17, which is free: a page that nobody holds any more: ")


def test_format_planted_when_the_server_ends_by_it_then_no_command_that_needs_it_is_told() -> None:
    unit = UnitHistory("full", 17, UnitOwner("session", 3), ())
    owned = format_planted(FaultOrder("double-owner", 0.0, 1, 1), unit, ELSEWHERE)
    died = format_planted(FaultOrder("executor-dies", 0.0, 1, 1), None, ELSEWHERE)
    end = "nothing answers any more: its log has the dump, and it ends with exit code 1"
    assert owned.endswith(f"which belongs to session 3: a page that two hold: the server halts\nnext: {end}")
    assert died.endswith(f"\nnext: a turn, for it goes wrong when one runs; then {end}")
    assert set(ENDING) == {kind for kind, text in KINDS.items() if "the server halts" in text}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("loop-blocked", "tenure health on its health port, and when the 20 s are over tenure incidents --target "),
        ("interpreter-held", "nothing answers for 20 s, not even its health port; then its log: event=process_paused"),
    ],
)
def test_format_planted_when_nothing_answers_for_a_while_then_what_does_and_what_tells_afterwards(
    kind: str, expected: str
) -> None:
    assert f"\nnext: {expected}" in format_planted(FaultOrder(kind, 20.0, 1, 1), None, ELSEWHERE)


@pytest.mark.parametrize(
    ("count", "undoing"),
    [(0, ", and afterwards tenure plant none"), (1, ""), (3, ", and to end it earlier tenure plant none")],
)
def test_format_planted_when_forwards_go_wrong_then_undone_only_where_it_does_not_end_by_itself(
    count: int, undoing: str
) -> None:
    told = format_planted(FaultOrder("forward-raises", 0.0, count, 1), None, DEFAULT_TARGET)
    assert told.endswith(f"\nnext: a turn, for it goes wrong when one runs; then tenure incidents{undoing}")


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (FaultOrder("forward-raises", 0.0, 3, 1), "each forward, until 3 went wrong: it raises an error"),
        (FaultOrder("forward-nan", 0.0, 0, 33), "one forward in 33: its numbers are not numbers"),
        (FaultOrder("forward-sleeps", 2.5, 1, 1), "the next forward: it sleeps for 2.5 s"),
        (FaultOrder("loop-blocked", 20.0, 1, 1), "something keeps the event loop busy for 20 s"),
        (FaultOrder("executor-dies", 0.0, 1, 1), "the thread that runs the forwards dies: the server halts"),
    ],
)
def test_format_planted_when_no_page_is_concerned_then_what_goes_wrong_is_said(
    order: FaultOrder, expected: str
) -> None:
    first, second = format_planted(order, None, DEFAULT_TARGET).splitlines()
    assert first == f"planted {order.kind}: {expected}"
    assert second.startswith("next: ")


def test_format_planted_when_all_is_taken_back_then_there_is_no_next_step() -> None:
    told = format_planted(FaultOrder("none", 0.0, 1, 1), None, ELSEWHERE)
    assert told == "planted none: no forward goes wrong on purpose any more"


NOW_S = 1130.0


def incident(
    number: int, *, kind: str = "forward_failed", over_s: float | None = None, has_dump: bool = False
) -> Incident:
    return Incident(f"id{number}", 1000.0 + number, kind, f"step {number} failed", over_s, has_dump)


def lost(number: int, unit: str) -> Incident:
    return replace(incident(number, kind="leak"), message=f"{unit} of pool full was lost; out of circulation now")


def test_format_incidents_when_there_are_some_then_a_table_and_the_newest_dump() -> None:
    told = [incident(1, over_s=1003.5, has_dump=True), incident(2, has_dump=True), incident(3)]
    heads, first, _, third, after = format_incidents(told, NOW_S).splitlines()
    assert heads.split() == ["time", "incident", "kind", "state", "dump", "what", "happened"]
    assert re.search(r"  id1 +forward_failed +over after 2\.5 s +yes +step 1 failed$", first)
    assert re.search(r"  id3 +forward_failed +- +- +step 3 failed$", third)
    assert after == "next: tenure dump --incident id2"


@pytest.mark.parametrize(
    ("told", "state"),
    [
        (incident(10, kind="loop_stuck", over_s=1013.4), "over after 3.4 s"),
        (incident(10, kind="loop_stuck", over_s=1009.0), "over after 0.0 s"),
        (incident(10, kind="forward_stuck"), "not over, 2 min"),
        (incident(120, kind="loop_stuck"), "not over, 10 s"),
        (incident(10, kind="failing"), "not over, 2 min"),
        (incident(10, kind="slow_start"), "not over, 2 min"),
        (incident(200, kind="slow_end"), "not over, 0 s"),
        (incident(10, kind="leak"), "contained"),
        (incident(10, kind="halted"), "-"),
    ],
)
def test_describe_state_when_of_any_kind_then_whether_it_goes_on(told: Incident, state: str) -> None:
    assert describe_state(told, NOW_S) == state


@pytest.mark.parametrize(
    ("unit", "command"),
    [
        ("page 53", "explain 53"),
        ("page 53, 7 and more", "explain 53"),
        ("row 4", "explain 4 --rows"),
        ("SWA page 9", "explain 9 --swa"),
        ("state 2, 3", "explain 2 --states"),
    ],
)
def test_format_incidents_when_pages_were_lost_then_the_newest_is_explained_before_the_newest_dump(
    unit: str, command: str
) -> None:
    told = [incident(1, has_dump=True), lost(2, "page 5"), lost(3, unit), incident(4)]
    assert format_incidents(told, NOW_S, ELSEWHERE).splitlines()[5:] == [
        f"next: tenure {command} --target {ELSEWHERE}",
        f"next: tenure dump --incident id1 --target {ELSEWHERE}",
    ]


def test_format_incidents_when_the_server_names_no_page_then_none_is_explained() -> None:
    assert "next:" not in format_incidents([replace(lost(1, "page 5"), message=LEAK)], NOW_S)


LEAK = f"nobody lists 1 of pool full: {'release request:2→free step=6; ' * 7}"


@pytest.mark.parametrize("width", [40, 100, 140, 200])
def test_format_incidents_when_a_terminal_is_narrow_then_what_happened_is_cut_to_it_and_how_to_see_all(
    width: int,
) -> None:
    told = [replace(incident(1), message=LEAK), incident(2, has_dump=True)]
    _, long, short, how, after = format_incidents(told, NOW_S, ELSEWHERE, width).splitlines()
    begin = long.index("nobody lists")
    assert len(long) == max(width, begin + 60), "at least 60 characters of it are there"
    assert long.endswith("...")
    assert short.endswith("step 2 failed"), "what fits is whole"
    assert how == f"cut to the width of the terminal; all of it: tenure incidents --target {ELSEWHERE} | cat"
    assert after == f"next: tenure dump --incident id2 --target {ELSEWHERE}"


def test_format_incidents_when_all_fits_or_goes_into_a_pipe_then_nothing_is_cut() -> None:
    told = [replace(incident(1), message=LEAK)]
    assert format_incidents(told, NOW_S, ELSEWHERE, 1000) == format_incidents(told, NOW_S, ELSEWHERE, None)
    assert LEAK.rstrip() in format_incidents(told, NOW_S, ELSEWHERE, None)
    assert "cut to" not in format_incidents(told, NOW_S, ELSEWHERE, None)


def test_format_incidents_when_there_is_none_then_a_line_says_so_and_no_dump_is_offered() -> None:
    assert format_incidents([], NOW_S) == "nothing went wrong lately"
    assert "tenure dump" not in format_incidents([incident(1)], NOW_S)


def test_format_time_when_told_then_to_the_second_with_the_zone() -> None:
    assert re.fullmatch(r"2026-11-\d\d \d\d:\d\d:21[+-]\d\d:\d\d", format_time(1795981881.7))
