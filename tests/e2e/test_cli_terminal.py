"""`tenure chat` on a terminal: lines of any length, editing, history, and the terminal as it was found."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from tests.kit.server_process import ready_server

LINE_BYTES_CANONICAL = 4095
"""What a terminal keeps of a line that nobody edits."""


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with ready_server("--context-len", "2048") as (_server, target):
        yield target


class TerminalChat:
    """`tenure chat` behind a pseudo-terminal."""

    def __init__(self, target: str) -> None:
        self.keyboard, self.terminal = pty.openpty()
        self.attributes = termios.tcgetattr(self.terminal)
        command = (sys.executable, "-m", "services.cli.main", "chat", "--target", target, "--max-tokens", "8")
        self.process = subprocess.Popen(
            command,
            stdin=self.terminal,
            stdout=self.terminal,
            stderr=self.terminal,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "INPUTRC": os.devnull},
        )
        self.shown = ""
        self.unread = ""

    def press(self, keys: bytes) -> None:
        """In parts: a terminal takes a few thousand bytes at once, and readline takes them from there."""
        for start in range(0, len(keys), 512):
            os.write(self.keyboard, keys[start : start + 512])
            time.sleep(0.02)

    def read_until(self, pattern: str) -> re.Match[str]:
        """Reads on until `pattern` is in what was not read before."""
        deadline_s = time.monotonic() + 60
        while (found := re.search(pattern, self.unread)) is None:
            ready, _, _ = select.select([self.keyboard], [], [], max(0.0, deadline_s - time.monotonic()))
            assert ready, self.shown + self.unread
            self.unread += os.read(self.keyboard, 65536).decode(errors="replace")
        self.shown += self.unread[: found.end()]
        self.unread = self.unread[found.end() :]
        return found

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.keyboard)
        os.close(self.terminal)


@pytest.fixture
def chat(target: str) -> Iterator[TerminalChat]:
    chat = TerminalChat(target)
    yield chat
    chat.close()


def test_chat_when_a_line_is_longer_than_a_terminal_keeps_then_all_of_it_is_sent(chat: TerminalChat) -> None:
    chat.read_until("you> ")
    num_words = LINE_BYTES_CANONICAL // len("word ") + 200
    chat.press(b"word " * num_words + b"\r")
    context = int(chat.read_until(r"turn 1: context (\d+) = ")[1])
    assert context >= num_words


def test_chat_when_a_line_is_edited_and_another_asked_again_then_history_has_it(chat: TerminalChat) -> None:
    chat.read_until("you> ")
    chat.press(b"Say his\x7f!\r")  # backspace
    chat.read_until(r"turn 1: context \d+ = ")
    chat.read_until("you> ")
    chat.press(b"\x1b[A\r")  # arrow up
    chat.read_until(r"Say hi!")
    chat.read_until(r"turn 2: context \d+ = ")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_chat_when_ended_by_a_signal_at_the_prompt_then_the_terminal_is_as_it_was(
    chat: TerminalChat, number: signal.Signals, code: int
) -> None:
    chat.read_until("you> ")
    chat.press(b"half a line")
    chat.read_until("half a line")
    assert termios.tcgetattr(chat.terminal) != chat.attributes, "it is edited"
    chat.process.send_signal(number)
    assert chat.process.wait(10) == code
    assert termios.tcgetattr(chat.terminal) == chat.attributes
