"""How the command line reads its arguments, and what it says of those it can not read."""

import argparse
import re

import pytest

from services.cli.arguments import DEFAULT_TARGET, read_name, read_number, read_target
from services.cli.main import build_parser
from services.config import ServeConfig


@pytest.mark.parametrize(
    "target", ["127.0.0.1:50051", "localhost:1", "[::1]:65535", "host-1.example:9", "unix:/run/t.sock", "dns:///h:1"]
)
def test_read_target_when_it_can_be_then_taken_as_it_is(target: str) -> None:
    assert read_target(target) == target


@pytest.mark.parametrize(
    "target",
    [
        "",
        "localhost",
        ":1",
        "h:",
        "h:x",
        "h:0",
        "h:65536",
        "h:-1",
        "::1",
        "::1:5",
        "http://h:1",
        "h:1/x",
        "a b:1",
        "h:²",
    ],
)
def test_read_target_when_it_is_malformed_then_refused(target: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not HOST:PORT"):
        read_target(target)


def test_default_target_when_compared_with_the_servers_default_then_the_same() -> None:
    assert ServeConfig().address == DEFAULT_TARGET


def test_parser_when_a_flag_is_unknown_then_the_usage_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        build_parser().parse_args(["serve", "--modle", "x"])
    told = capsys.readouterr().err
    assert caught.value.code == 2
    assert told.startswith("usage: tenure serve ")
    assert told.endswith("unrecognized arguments: --modle x; did you mean --model?\n")


def test_version_when_asked_then_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        build_parser().parse_args(["--version"])
    assert caught.value.code == 0
    assert re.fullmatch(r"tenure \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_serve_help_when_asked_then_each_default_is_told_once_and_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["serve", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    for words in (
        "told to stop (default: 0.0)",
        "access control yet (default: no)",
        "between their turns (default: yes)",
        "between requests (default: yes)",
        "what the services look like (default: yes)",
        "log every turn (default: no)",
    ):
        assert words in told
    assert "(default: True)" not in told
    assert "None" not in told


@pytest.mark.parametrize("text", ["", "\n", "a\udcff"])
def test_read_name_when_it_can_be_none_then_refused(text: str) -> None:
    assert read_name("my session") == "my session"
    with pytest.raises(argparse.ArgumentTypeError):
        read_name(text)


@pytest.mark.parametrize(
    ("text", "told"), [("x", "no whole number"), ("1.5", "no whole number"), (str(2**63), "range")]
)
def test_read_number_when_it_can_not_be_sent_then_refused(text: str, told: str) -> None:
    assert [read_number(each) for each in ("-1", str(2**63 - 1), str(-(2**63)))] == [-1, 2**63 - 1, -(2**63)]
    with pytest.raises(argparse.ArgumentTypeError, match=told):
        read_number(text)


@pytest.mark.parametrize(
    "command",
    [
        ("fork", ""),
        ("fork", "s", "--name", ""),
        ("fork", "s", "--at-turn", ""),
        ("fork", "s", "--at-length", "1" * 20),
        ("truncate", "s", "9" * 20),
        ("truncate", "", "9"),
        ("explain", "9" * 20),
        ("close", ""),
    ],
)
def test_parser_when_a_value_can_not_be_sent_then_its_argument_is_named(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        build_parser().parse_args(command)
    assert left.value.code == 2
    assert re.search(r"error: argument (session|--name|--at-turn|--at-length|length|page): ", capsys.readouterr().err)


def test_arguments_when_an_option_is_cut_short_then_it_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["serve", "--pool-token", "64"])
    assert "unrecognized arguments: --pool-token 64; did you mean --pool-tokens?" in capsys.readouterr().err
