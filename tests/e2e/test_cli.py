"""The command line as a person uses it: demo, chat with Ctrl-C, generate, sessions, pools, check."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.server_process import LISTENING, ready_server, server_process

BOOKS = re.compile(
    r"\[turn (\d+): context (\d+) = (\d+) slot \+ (\d+) tree \+ (\d+) computed \((.*?)\); "
    r"pages: free (\d+), session (\d+), cache (\d+), running (\d+) of (\d+)"
    r"(?:; cut at \d+ tokens)?(?:; name [0-9a-f]{32})?\]"
)
NAMED = re.compile(r"\[turn \d+: .*; name (\w+)\]")
TAKEN_BACK = re.compile(r"\[turn (\d+): taken back: the session is at (\d+) tokens, as before")


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with ready_server() as (_server, target):
        yield target


def tenure(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "services.cli.main", *arguments)
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)


def test_demo_when_run_then_three_turns_reuse_and_a_clean_end() -> None:
    done = tenure("demo", "--max-tokens", "12")
    assert done.returncode == 0, done.stdout + done.stderr
    turns = BOOKS.findall(done.stdout)
    assert [turn[0] for turn in turns] == ["1", "2", "3"]
    for _number, context, slot, tree, computed, *_rest in turns:
        assert int(context) == int(slot) + int(tree) + int(computed)
    assert int(turns[2][2]) > int(turns[1][2]) > 0
    assert "the last token of turn 2" in turns[2][5]
    assert done.stdout.count("balanced; ") == 2
    assert re.search(r"server ended with exit code 0 in \d\.\d s", done.stdout)


def test_chat_when_lines_are_piped_then_answered_with_books(target: str) -> None:
    done = tenure("chat", "--target", target, "--max-tokens", "10", stdin="Hello!\n\nWho are you?\n")
    assert done.returncode == 0, done.stderr
    first, second = BOOKS.findall(done.stderr)
    assert "last token" not in first[5]
    assert second[5].endswith("new ids + the last token of turn 1")
    for *_, free, session, cache, running, total in (first, second):
        assert int(free) + int(session) + int(cache) + int(running) == int(total)
    assert done.stderr.endswith("session closed.\n")
    assert not re.search(r"session|\[|turn 1", done.stdout), "standard output is the answers alone"


def test_trace_when_of_a_turn_as_the_chat_named_it_or_of_none_then_the_turn_or_the_newest(target: str) -> None:
    done = tenure("chat", "--target", target, "--max-tokens", "4", stdin="Hello!\nWho are you?\n")
    first, second = NAMED.findall(done.stderr)
    assert tenure("trace", first, "--target", target).stdout.startswith(f"turn {first} of session ")
    assert tenure("trace", "--target", target).stdout.startswith(f"turn {second} of session ")


def test_chat_when_undone_then_the_session_is_what_it_was_and_goes_on(target: str) -> None:
    lines = "Hello!\nWho are you?\n/undo\nWho are you?\n/UNDO\n/Undo \n/undo\nHello!\n"
    done = tenure("chat", "--target", target, "--max-tokens", "6", "--system", "Be brief.", stdin=lines)
    assert done.returncode == 0, "the third /undo had nothing to take back, which is told and no more"
    first, second, again, anew = BOOKS.findall(done.stderr)
    assert second[1:6:4] == again[1:6:4], "the same context, explained by the same turn"
    assert "the last token of turn 1" in again[5]
    assert anew[1] == first[1], "with the instructions again"
    assert re.findall(r"taken back: the session is at (\d+) tokens\]", done.stderr)[1:] == [
        re.findall(r"at (\d+) tokens\]", done.stderr)[0],
        "0",
    ]
    assert "[there is no turn to take back]" in done.stderr


class Chat:
    """`tenure chat` with a keyboard."""

    def __init__(self, target: str) -> None:
        command = (sys.executable, "-u", "-m", "services.cli.main", "chat", "--target", target, "--max-tokens", "250")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.shown = ""

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def read_until(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Reads on until `pattern` is in what was not read before."""
        assert self.process.stdout is not None
        unread, deadline_s = "", time.monotonic() + 60
        while time.monotonic() < deadline_s:
            byte = self.process.stdout.read(1)
            assert byte, f"ended after: {self.shown}"
            unread += byte.decode(errors="replace")
            self.shown += unread[-1]
            found = pattern.search(unread)
            if found is not None:
                return found
        raise AssertionError(self.shown)


@pytest.fixture
def chat(target: str) -> Iterator[Chat]:
    chat = Chat(target)
    with chat.process:
        yield chat
        if chat.process.poll() is None:
            chat.process.kill()


def test_chat_when_ctrl_c_in_an_answer_then_taken_back_and_the_next_turn_computes_only_its_own(chat: Chat) -> None:
    chat.say("Say hello in one short sentence.")
    first = chat.read_until(BOOKS)
    chat.say("Write a long story about a ship and its crew, with many details.")
    chat.read_until(re.compile(r"\w+ \w+ \w+"))
    chat.process.send_signal(signal.SIGINT)
    committed_len = int(chat.read_until(TAKEN_BACK)[2])
    assert committed_len > int(first[2])
    chat.say("Say goodbye in one short sentence.")
    third = chat.read_until(BOOKS)
    new = re.fullmatch(r"(\d+) new ids \+ the last token of turn 1", third[6])
    assert third[1] == "3"
    assert new is not None, third[0]
    assert int(third[3]) + int(third[4]) == committed_len - 1
    assert int(third[5]) == int(new[1]) + 1
    chat.process.send_signal(signal.SIGINT)
    chat.read_until(re.compile("session closed"))
    assert chat.process.wait(10) == 0


def test_generate_when_text_is_given_then_printed(target: str) -> None:
    done = tenure("generate", "--target", target, "--max-tokens", "6", "The capital of France is")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Paris" in done.stdout


def test_generate_when_an_option_is_refused_then_one_line_that_names_its_flag_and_exit_code_2(target: str) -> None:
    done = tenure("generate", "--target", target, "--max-tokens", "0", "x")
    assert done.returncode == 2
    assert done.stderr == "tenure: --max-tokens: must be at least 1; leave it out for all that fits\n"
    assert done.stdout == ""


SAMPLED = ("generate", "--max-tokens", "12", "--temperature", "1", "--top-k", "40", "--top-p", "0.9")


def test_generate_when_seeded_then_repeated_and_without_a_seed_not(target: str) -> None:
    text = "Once upon a time there was a small dog."
    seeded = [tenure(*SAMPLED, "--target", target, "--seed", "7", text) for _ in range(2)]
    free = [tenure(*SAMPLED, "--target", target, text) for _ in range(2)]
    assert [done.returncode for done in (*seeded, *free)] == [0, 0, 0, 0]
    assert seeded[0].stdout == seeded[1].stdout
    assert len({done.stdout for done in (*seeded, *free)}) == 3


def test_generate_when_a_stop_string_comes_then_cut_before_it(target: str) -> None:
    done = tenure("generate", "--target", target, "--stop", "nowhere", "--stop", "Paris", "The capital of France is")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Paris" not in done.stdout
    assert len(done.stdout) < 40


@pytest.mark.parametrize(
    ("flag", "value", "told"),
    [
        ("--temperature", "nan", "--temperature: must be a finite number"),
        ("--top-p", "2", "--top-p: must be above 0"),
        ("--seed", "-1", "--seed: -1 is out of range"),
        ("--stop", "", "--stop: has an empty text"),
    ],
)
def test_generate_when_sampling_can_not_be_then_one_line(target: str, flag: str, value: str, told: str) -> None:
    done = tenure("generate", "--target", target, f"{flag}={value}", "x")
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_chat_when_greedy_and_stopped_then_the_books_follow_what_was_told(target: str) -> None:
    done = tenure(
        *("chat", "--target", target, "--max-tokens", "20", "--stop", "!", "--temperature", "0"),
        stdin="Say hello!\nAgain!\n",
    )
    assert done.returncode == 0, done.stderr
    assert len(BOOKS.findall(done.stderr)) == 2
    assert "!" not in done.stdout


def test_sessions_when_asked_then_each_open_one_is_a_row(target: str) -> None:
    assert tenure("sessions", "--target", target).stdout == "no session is open\n"
    with Chat(target).process as process:
        assert process.stdin is not None
        assert process.stdout is not None
        name = re.match(rb"session (\w+)\.", process.stdout.readline())
        assert name is not None
        done = tenure("sessions", "--target", target)
        assert (done.returncode, done.stderr) == (0, "")
        header, row = done.stdout.splitlines()
        assert header.split() == ["session", "kind", "tokens", "kv", "kv", "tokens", "pages", "running"]
        assert row.split() == [name[1].decode(), "streaming", "0", "none", "0", "0", "-"]
        process.stdin.close()
        process.wait(10)


def test_check_when_asked_then_every_page_has_one_owner(target: str) -> None:
    done = tenure("check", "--target", target)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"every page has exactly one owner \(\d+ checks since the server started\)\n", done.stdout)


def test_pools_when_asked_then_the_table_adds_up(target: str) -> None:
    done = tenure("pools", "--target", target)
    assert (done.returncode, done.stderr) == (0, "")
    for row in re.findall(r"^(?:full|rows)[^+]*?(\d+) +\+(.*)=(.*)$", done.stdout, re.MULTILINE):
        terms = [int(row[0]), *map(int, row[1].split("+"))]
        assert sum(terms) == int(row[2])
    assert "balanced; " in done.stdout


def turns_running(target: str) -> int:
    shown = tenure("pools", "--target", target).stdout
    found = re.search(r"turns running (\d+), waiting (\d+)", shown)
    assert found is not None, shown
    return int(found[1]) + int(found[2])


def test_generate_when_nobody_reads_on_then_quiet_and_the_turn_has_ended(target: str) -> None:
    command = (sys.executable, "-m", "services.cli.main", "generate", "--target", target, "--max-tokens", "400", "Once")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(5)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(10) == 141
    assert turns_running(target) == 0


@pytest.mark.parametrize("command", [("pools",), ("chat",), ("generate", "--max-tokens=400", "Once"), ("--version",)])
def test_command_when_its_output_has_no_room_then_one_line(target: str, command: tuple[str, ...]) -> None:
    where = () if command[0].startswith("-") else ("--target", target)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            (sys.executable, "-m", "services.cli.main", *command, *where),
            input=b"Hello!\n",
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    complaints = [line for line in done.stderr.splitlines() if not line.startswith((b"session", b"["))]
    assert (done.returncode, complaints) == (1, [b"tenure: No space left on device"])
    assert turns_running(target) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_chat_when_ended_by_a_signal_in_an_answer_then_the_session_is_closed(
    chat: Chat, target: str, number: signal.Signals
) -> None:
    chat.say("Write a long story about a ship and its crew, with many details.")
    chat.read_until(re.compile(r"anew\.\n\w+ \w+ \w+"))
    chat.process.send_signal(number)
    assert chat.process.wait(10) == 128 + number
    assert tenure("sessions", "--target", target).stdout == "no session is open\n"
    assert turns_running(target) == 0


def test_chat_when_a_line_is_no_text_or_too_long_then_told_and_the_rest_answered(target: str) -> None:
    lines = b"Hi\n\xff\n" + b"word " * 600 + b"\n/new\nHi\n"
    command = (sys.executable, "-m", "services.cli.main", "chat", "--target", target, "--max-tokens", "5")
    done = subprocess.run(command, input=lines, capture_output=True, timeout=60, check=False)
    told = done.stderr.decode()
    assert done.returncode == 1
    assert "line 2 is not UTF-8 text: byte 0xff at 0" in told
    assert "PROMPT_EXCEEDS_CONTEXT" in told
    assert "/new starts a new session" in told
    assert told.count("[turn 1: ") == 2
    assert told.count("; cut at 5 tokens; name ") == 2
    first, second = done.stdout.splitlines()
    assert first == second


def test_chat_when_quiet_then_only_answers(target: str) -> None:
    done = tenure("chat", "--quiet", "--target", target, "--max-tokens", "5", stdin="Hi\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("command", [("generate", "a\udcffb"), ("generate", "--chat", "-")])
def test_generate_when_the_text_is_no_text_then_one_line_and_exit_code_2(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        (sys.executable, "-m", "services.cli.main", *command), input=b"a\xffb", capture_output=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.endswith(b" is not UTF-8 text: byte 0xff at 1\n")
    assert done.stderr.count(b"\n") == 1


def test_chat_when_the_server_is_killed_in_an_answer_then_told_once() -> None:
    with ready_server() as (server, target):
        talk = Chat(target)
        with talk.process:
            talk.say("Write a long story about a ship and its crew, with many details.")
            talk.read_until(re.compile(r"anew\.\n\w+ \w+ \w+"))
            server.process.kill()
            talk.read_until(re.compile(r"reconnecting\.\.\.\n"))
            last = talk.read_until(re.compile(r"tenure: (.*)\n"))[1]
            assert talk.process.stdout is not None
            assert talk.process.stdout.read() == b""
            assert talk.process.wait(10) == 1
    assert last == f"the session is lost: the server at {target} does not answer any more"
    assert talk.shown.count("tenure: ") == 2


def test_chat_when_the_server_still_loads_then_waits_and_says_so() -> None:
    with server_process() as server:
        target = server.wait_for(LISTENING)
        done = tenure("chat", "--target", target, "--max-tokens", "5", stdin="Hi\n")
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith("tenure: the server is still loading its model; waiting...\n")
        assert len(BOOKS.findall(done.stderr)) == 1


@pytest.mark.parametrize("command", [("pools",), ("sessions",), ("check",), ("chat",), ("generate", "x")])
def test_command_when_no_server_answers_then_says_how_to_start_one(command: tuple[str, ...]) -> None:
    done = tenure(*command, "--target", "127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr == "tenure: no server answers at 127.0.0.1:1; start one with: tenure serve --port 1\n"


def test_chat_when_a_line_begins_with_a_slash_then_it_is_a_command_or_told_to_be_none(target: str) -> None:
    lines = "/help me\n /new is no command here\n/NEW\n"
    done = tenure("chat", "--quiet", "--target", target, "--max-tokens", "4", stdin=lines)
    assert done.returncode == 1
    assert done.stderr.startswith("[there is no /help me; there are /undo and /new. To send a message that begins with")
    assert len(done.stdout.splitlines()) == 1, "one line went to the model"


@pytest.mark.parametrize("how", [(), ("--drain",)])
def test_close_when_asked_then_the_session_is_gone_and_one_that_is_not_there_is_told(
    target: str, how: tuple[str, ...]
) -> None:
    with Chat(target).process as process:
        assert process.stdout is not None
        found = re.match(rb"session (\w+)\.", process.stdout.readline())
        assert found is not None
        name = found[1].decode()
        done = tenure("close", name, *how, "--target", target)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"session {name} is closed\n", "")
        again = tenure("close", name, "--target", target)
        assert (again.returncode, again.stderr.partition(":")[0]) == (1, "tenure")
        assert "SESSION_UNKNOWN" in again.stderr
        process.kill()


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("fork", "s", "--name", "n" * 200), "tenure: --name: is longer than 128 characters"),
        (("fork", "s", "--at-turn", "t" * 200), "tenure: --at-turn: is longer than 128 characters"),
        (("truncate", "n" * 200, "1"), "tenure: session: is longer than 128 characters"),
        (("explain", "0"), "tenure: page: pages are 1 to "),
    ],
)
def test_command_when_the_server_refuses_an_argument_then_it_is_named_as_it_was_given(
    target: str, command: tuple[str, ...], told: str
) -> None:
    done = tenure(*command, "--target", target)
    assert done.returncode == 2
    assert done.stderr.startswith(told)
    assert len(done.stderr.splitlines()) == 1
