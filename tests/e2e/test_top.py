"""`tenure top` against a real server: in a pipe, and on a terminal that is left as it was found."""

import asyncio
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from services.client import Client, connect
from tests.kit.server_process import ready_server

WIDTH, HEIGHT = 90, 30


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with ready_server() as (_server, target):
        yield target


def command(target: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "services.cli.main", "top", "--target", target, *arguments)


class TerminalTop:
    """`tenure top` behind a pseudo-terminal."""

    def __init__(self, target: str) -> None:
        self.keyboard, self.terminal = pty.openpty()
        self.resize(WIDTH, HEIGHT)
        self.attributes = termios.tcgetattr(self.terminal)
        self.process = subprocess.Popen(
            command(target, "--interval", "0.2"),
            stdin=self.terminal,
            stdout=self.terminal,
            stderr=self.terminal,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color"},
        )
        self.stream = ""

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def press(self, keys: bytes) -> None:
        os.write(self.keyboard, keys)

    def wait_for(self, text: str, *, line: int | None = None, timeout_s: float = 60) -> list[str]:
        """The screen, once `text` is on it, or on that line of it."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            screen = self.read()
            if any(text in shown for shown in (screen if line is None else screen[line : line + 1])):
                return screen
        raise AssertionError("\n".join(self.read()))

    def read(self) -> list[str]:
        """What is on the screen, once no more comes for a moment: a picture may come in parts."""
        while select.select([self.keyboard], [], [], 0.1)[0]:
            self.stream += os.read(self.keyboard, 65536).decode(errors="replace")
        return draw(self.stream)

    def end(self) -> int:
        """The exit code. What is written meanwhile is read: a full terminal would hold the process up."""
        while self.process.poll() is None:
            self.read()
        self.read()
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.keyboard)
        os.close(self.terminal)


def draw(stream: str) -> list[str]:
    """The screen of a terminal that does not wrap lines, as wide and as high as need be. Colours are left out."""
    rows: dict[int, str] = {}
    row = column = 0
    for control, what, text in re.findall(r"\x1b\[([0-9;?]*)([A-Za-z])|([^\x1b]+)", stream):
        if what == "H":
            row = column = 0
        elif what == "K":
            assert control == "2", "erasing from the last column on takes its character"
            rows[row] = ""
        elif what == "J":
            rows = {} if control == "2" else {idx: line for idx, line in rows.items() if idx < row}
        for part in re.findall(r"\r?\n|[^\r\n]+", text):
            if part.endswith("\n"):
                row, column = row + 1, 0
            else:
                line = rows.get(row, "").ljust(column)
                rows[row] = line[:column] + part + line[column + len(part) :]
                column += len(part)
    return [rows.get(idx, "") for idx in range(max(rows, default=-1) + 1)]


async def has_whole_second(client: Client) -> bool:
    """Whether rates can be told of the turns so far: those of a second are, once it is over."""
    history = await client.history(with_facts=False)
    return any(sample.moves.get("grant") for sample in history.samples[:-1])


@pytest.fixture
def top(target: str) -> Iterator[TerminalTop]:
    top = TerminalTop(target)
    yield top
    top.close()


def test_top_when_in_a_pipe_then_one_frame_with_all_terms_and_no_escape(target: str) -> None:
    done = subprocess.run(command(target), capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.decode()
    assert "\x1b" not in shown
    assert all(len(line) <= 100 for line in shown.splitlines())
    for pool in ("full", "rows"):
        start = next(idx for idx, line in enumerate(shown.splitlines()) if line.startswith(f"{pool} "))
        terms = shown.splitlines()[start + 1]
        for term in ("avail", "evict", "prot", "sess", "uncach", "quar"):
            assert re.search(rf"{term}\w* +\d", terms), terms
    for part in ("ready", "books balance", "steps/s", "tokens/s", "first token ms", "moves/s"):
        assert part in shown, part


def test_top_when_no_server_answers_then_once_fails_and_says_so() -> None:
    done = subprocess.run(command("127.0.0.1:1", "--once"), capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"no server answers at 127.0.0.1:1" in done.stderr


def test_top_when_the_server_has_none_of_our_services_then_once_fails_and_says_what_it_may_be() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        done = subprocess.run(command(f"127.0.0.1:{port}", "--once"), capture_output=True, timeout=120, check=False)
    finally:
        server.stop(None).wait()
    assert (done.returncode, done.stdout) == (1, b"")
    assert f"the server at 127.0.0.1:{port} does not know this call: it is older".encode() in done.stderr


def test_top_when_a_session_has_a_turn_then_both_are_shown_and_markup_is_inert(target: str) -> None:
    async def hold() -> str:
        async with connect(target) as client, client.session("[red]loud[/red]") as session:
            async for _piece in session.turn("Hello!", max_tokens=4):
                pass
            while not await has_whole_second(client):  # noqa: ASYNC110 - the server has no event for it
                await asyncio.sleep(0.1)
            process = await asyncio.create_subprocess_exec(*command(target, "--once"), stdout=subprocess.PIPE)
            shown, _ = await process.communicate()
            return shown.decode()

    shown = asyncio.run(hold())
    assert "[red]loud[/red]" in shown
    assert re.search(r"grant \d", shown), "the turn's moves are in the last seconds"


def test_top_when_q_is_pressed_then_leaves_with_the_terminal_as_it_was(top: TerminalTop) -> None:
    top.wait_for("ready  up")
    assert termios.tcgetattr(top.terminal) != top.attributes, "keys come one by one"
    top.press(b"q")
    assert top.end() == 0
    assert termios.tcgetattr(top.terminal) == top.attributes
    assert top.stream.index("\x1b[?1049h") < top.stream.index("\x1b[?1049l")
    assert top.stream.endswith("\x1b[?7h\x1b[?25h\x1b[?1049l")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_top_when_ended_by_a_signal_then_the_terminal_is_as_it_was(
    top: TerminalTop, number: signal.Signals, code: int
) -> None:
    top.wait_for("ready  up")
    top.process.send_signal(number)
    assert top.end() == code
    assert termios.tcgetattr(top.terminal) == top.attributes
    assert top.stream.endswith("\x1b[?1049l")


def test_top_when_the_terminal_becomes_smaller_then_drawn_anew_to_its_edge(top: TerminalTop) -> None:
    top.wait_for("ready  up")
    top.press(b"p")  # so that nothing else draws it
    screen = top.wait_for("p go on")
    assert len(screen) == HEIGHT
    assert any(line.startswith("full ") and len(line) == WIDTH for line in screen), "a bar goes to the edge"
    top.resize(60, 20)
    top.process.send_signal(signal.SIGWINCH)
    screen = top.wait_for("p go on", line=19)
    assert max(map(len, screen[:20])) == 60
    assert any(line.startswith("full ") and len(line) == 60 for line in screen)


def test_top_when_the_server_stops_answering_then_the_view_stays_and_comes_back() -> None:
    with ready_server() as (server, target):
        top = TerminalTop(target)
        try:
            top.wait_for("ready  up")
            server.process.send_signal(signal.SIGSTOP)
            screen = top.wait_for("NOT ANSWERING for ")
            assert any(line.startswith("full ") for line in screen), "what was known stays"
            server.process.send_signal(signal.SIGCONT)
            top.wait_for("ready  up")
            top.press(b"q")
            assert top.end() == 0
        finally:
            server.process.send_signal(signal.SIGCONT)
            top.close()
