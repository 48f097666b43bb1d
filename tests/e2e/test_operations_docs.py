"""docs/operations: its commands and events exist, its example runs, and its stories go as they are told."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.arguments import DEFAULT_TARGET
from services.cli.dump import DRILL
from services.cli.main import build_parser
from services.client import connect
from services.client.asking import QUICK_S
from services.config import ServeConfig, to_flag
from tests.kit.server_process import ready_server

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "operations"
PAGE = (FOLDER / "README.md").read_text("utf-8")
DUMP_PAGE = (FOLDER / "dump.md").read_text("utf-8")
VALUES = {"PAGE": "1", "HOST:HEALTH_PORT": "127.0.0.1:50052", "HOST:PORT": DEFAULT_TARGET}
"""What stands for the words in capitals that have to be numbers."""
SOURCES = ("engine", "services", "telemetry")
TOLD = re.compile(r'event=([a-z_]+)|(?:format_line|_of_session|_of_turn)\([^"{)]*"([a-z_]+)"')
"""Names of events in the sources: in a log call's text, or given to what makes the text."""


def tenure(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "services.cli.main", *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def commands() -> list[str]:
    """Every `tenure ...` of the pages: lines of blocks, lines behind a prompt, and those in a sentence."""
    text = PAGE + DUMP_PAGE
    lines = re.findall(r"^(?:\$ )?(tenure \S.*)$", text, re.MULTILINE)
    return sorted({*lines, *re.findall(r"`(tenure [^`]+)`", text)})


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with ready_server("--fault-injection") as (_server, target):
        yield target


@pytest.mark.parametrize("line", commands())
def test_command_when_it_is_told_of_then_it_takes_these_arguments(line: str) -> None:
    words = [VALUES.get(word, word) for word in line.split()[1:]]
    assert callable(build_parser().parse_args(words).run)


def test_commands_when_looked_for_then_all_of_those_who_operate_are_there() -> None:
    told = {line.split()[1] for line in commands()}
    expected = {"top", "health", "pools", "timeline", "snapshot", "check", "incidents", "dump", "report", "plant"}
    assert expected | {"explain", "serve"} <= told


def test_events_when_told_of_then_they_are_those_of_the_sources() -> None:
    found: set[str] = set()
    for room in SOURCES:
        for path in (ROOT / room).rglob("*.py"):
            found |= {name or other for name, other in TOLD.findall(path.read_text("utf-8"))}
    table = PAGE[PAGE.index("## The log") :]
    assert set(re.findall(r"event=([a-z_]+)", table)) == found - {"name"}, "`name` stands for any in a docstring"
    assert set(re.findall(r"event=([a-z_]+)", PAGE + DUMP_PAGE)) <= found


def test_limits_when_told_of_then_flags_and_numbers_are_those_in_force() -> None:
    defaults = ServeConfig()
    rows = dict(re.findall(r"\| `(--watchdog-[a-z-]+)` \| (\d+)", PAGE))
    names = [name for name in defaults.effective() if name.startswith("watchdog_")]
    assert rows == {to_flag(name): f"{getattr(defaults, name):g}" for name in names}


def test_files_when_linked_then_they_are_there() -> None:
    written_by_scripts = {"soak.md", "kill_tests.md"}
    links = set(re.findall(r"\]\(([^)#:]+)", PAGE + DUMP_PAGE)) - written_by_scripts
    assert {"top.svg", "report.png", "dump.md"} <= links
    assert all((FOLDER / link).is_file() for link in links)


def test_example_when_run_then_the_cold_answer_is_the_warm_one(target: str, tmp_path: Path) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(block.replace(DEFAULT_TARGET, target), "utf-8")
    done = subprocess.run(
        (sys.executable, str(script)), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.stderr) == ("True 56 0\n", "")
    assert "It prints `True 56 0`." in PAGE


def test_first_story_when_a_page_is_lost_then_each_command_says_what_is_told() -> None:
    with ready_server("--fault-injection") as (server, target):
        at = ("--target", target)
        assert tenure("generate", "Once upon a time", "--max-tokens", "4", *at).returncode == 0
        planted = tenure("plant", "leak", *at)
        page = re.search(r"^planted leak: full page (\d+), ", planted.stdout)
        assert page is not None, planted.stderr
        assert tenure("generate", "Once upon a time", "--max-tokens", "4", *at).returncode == 0, "it goes on"
        pools = tenure("pools", *at)
        assert (pools.returncode, pools.stdout.rstrip().endswith("; QUARANTINED 1")) == (0, True), pools.stdout
        assert re.search(r"^full \(pages of 16\) .* = 127$", pools.stdout, re.MULTILINE), pools.stdout
        *_, lost, explain, drill = tenure("incidents", *at).stdout.splitlines()
        assert re.search(rf" leak +contained +- +page {page[1]} of pool full was lost", lost)
        assert explain == f"next: tenure explain {page[1]} {' '.join(at)}"
        assert drill == DRILL
        explained = tenure("explain", page[1], *at).stdout.splitlines()
        assert explained[0] == f"full page {page[1]}: quarantined; newest move first:"
        assert [line.split()[2] for line in explained[1:4]] == ["quarantine", "release", "grant"]
        assert "OUT OF CIRCULATION: 1" in tenure("check", *at).stdout
        assert tenure("dump", *at).stdout.splitlines()[-1] == DRILL
        history = tenure("pools", "--history", *at).stdout
        assert history.startswith("full: 128 pages of 16, 1 of them out of circulation;\n")
        assert re.search(r"^  moves .*\bquarantine 1\b", history, re.MULTILINE), history
        assert f"event=kv_leak pool=full units={page[1]} " in server.output()


async def test_second_story_when_the_context_was_cut_and_the_name_used_again_then_the_timeline_says_so(
    target: str,
) -> None:
    name = "customer-17"
    async with connect(target) as client:
        async with client.session(name) as session:
            await session.turn("My name is Ada and I am allergic to nuts.", max_tokens=16, turn_id="t1").text()
            async with session.turn("Write me a poem.", max_tokens=200, ignore_eos=True, turn_id="t2") as broken_off:
                async for _piece in broken_off:
                    break
            await session.truncate(12)
            await session.turn("Can I eat it?", max_tokens=8, ignore_eos=True, turn_id="t3").text()
        async with client.session(name) as session:
            await session.turn("Can I eat walnut cake?", max_tokens=8, ignore_eos=True, turn_id="t1").text()
    told = tenure("timeline", name, "--last", "10m", "--target", target)
    assert (told.returncode, told.stderr) == (0, "")
    first, older, newer = told.stdout.strip().split("\n\n")
    assert first == f"2 sessions had the name {name}, one after the other:"
    lines = [re.sub(r"^  [\d:.]+ +\d+ +", "", line) for line in older.splitlines()]
    seen = [re.sub(r" {2,}", "  ", line) for line in lines if line.startswith(("turn acc", "hist", "trunc", "forg"))]
    assert seen == [
        "turn accepted  t1  context 41 tokens = 0 of history + 41 new",
        "history  t1  57 tokens: the turn is a part of it",
        "turn accepted  t2  context 73 tokens = 57 of history + 16 new",
        "history  t2  57 tokens: the turn is not a part of it",
        "truncated  from 57 to 12 tokens, by a call of Session.Truncate",
        "forgotten  t1 with it",
        "turn accepted  t3  context 28 tokens = 12 of history + 16 new",
        "history  t3  36 tokens: the turn is a part of it",
    ]
    # Other tests of this server may have left the same beginning in the prefix cache.
    sums = re.findall(
        r"turn admitted  t1 +KV of 41 tokens = 0 slot \+ (\d+) tree \+ (\d+) computed$", older, re.MULTILINE
    )
    assert [int(tree) + int(computed) for tree, computed in sums] == [41], older
    assert " closed (session_closed)" in older.splitlines()[0]
    assert "context 36 tokens = 0 of history + 36 new" in newer


def test_second_story_when_nobody_knows_the_session_then_says_so_with_exit_code_1(target: str) -> None:
    told = tenure("timeline", "nobody", "--target", target)
    assert (told.returncode, told.stdout.split("; ")[0]) == (1, "nothing is remembered of a session nobody")


def test_third_story_when_the_event_loop_is_held_then_one_line_says_so_after_the_seconds_that_are_told() -> None:
    with ready_server("--fault-injection", "--health-port", "0") as (server, target):
        health_target = server.wait_for(re.compile(r"health on (\S+)"))
        assert tenure("plant", "loop-blocked", "--seconds", "9", "--target", target).returncode == 0
        begun_s = time.monotonic()
        told = tenure("health", "--target", target)
        took_s = time.monotonic() - begun_s
        beside = tenure("health", "--target", health_target)
    assert (told.returncode, told.stdout) == (1, "")
    (block,) = re.findall(r"^\$ tenure health\n(tenure: .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert told.stderr.split() == block.replace(DEFAULT_TARGET, target).split(), "one line, as on the page"
    assert told.stderr.count("\n") == 1
    assert QUICK_S <= took_s < QUICK_S + 4
    assert re.search(r"^liveness +yes", beside.stdout, re.MULTILINE), beside
