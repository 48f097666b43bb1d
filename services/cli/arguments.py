"""How arguments are read: a parser that knows whose they are, and kinds of values."""

import argparse
import difflib
import re
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Never

Adder = Callable[[argparse.ArgumentParser], None]
"""Adds a command's arguments to its parser, its description, and as `run` the function that runs it."""
Place = tuple[int, str]
"""Of the stream of events: the last event that was seen, and the log it is of."""
DEFAULT_TARGET = "127.0.0.1:50051"
"""Where `tenure serve` listens unless it is told otherwise."""
USAGE_CODE = 2
"""Exit code when the arguments can not be."""
_FULL_DEFAULT = " (default: %(default)s)"
_PORT_MAX = 65535


class BadInputError(Exception):
    """What was given is no text. The message says which, and why."""


class Parser(argparse.ArgumentParser):
    """A command's parser. An argument that nobody knows is told with the usage of the command it was given to."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: None = None) -> argparse.Namespace:  # type: ignore[override]  # the overloads for other namespaces are not needed
        arguments, unknown = self.parse_known_args(args, namespace)
        if unknown:
            command = getattr(arguments, "command_parser", self)
            command.refuse_unknown(unknown)
        return arguments

    def refuse_unknown(self, unknown: Sequence[str]) -> Never:
        first = unknown[0].partition("=")[0]
        close = difflib.get_close_matches(first, self._option_string_actions, 1)
        self.error(f"unrecognized arguments: {' '.join(unknown)}" + (f"; did you mean {close[0]}?" if close else ""))


class ShowVersion(argparse.Action):
    """Says which version is installed, looked up only when it is asked for."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        print(f"{parser.prog} {version('tenure')}")
        parser.exit()


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults in the words of a person, except where there is nothing to show."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.help is None or action.default in (None, "", argparse.SUPPRESS):
            return action.help
        # Actions of on and off have added a default of their own.
        told = action.help.removesuffix(_FULL_DEFAULT)
        if isinstance(action.default, bool):
            return f"{told} (default: {'yes' if action.default else 'no'})"
        return told + _FULL_DEFAULT


def read_name(text: str) -> str:
    """The name of a session or a turn. Raises ArgumentTypeError for what can not be one."""
    if not text:
        raise argparse.ArgumentTypeError("a name is not empty")
    if not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!a} has characters that can not be printed")
    return text


def read_number(text: str) -> int:
    """An integer that can be sent. Raises ArgumentTypeError."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if not -(2**63) <= number < 2**63:
        raise argparse.ArgumentTypeError(f"{text} is out of range")
    return number


def read_place(text: str) -> Place:
    """`SEQUENCE@LOGID`. Raises ArgumentTypeError."""
    sequence, at, log_id = text.partition("@")
    if not (at and log_id and log_id.isprintable() and sequence.isascii() and sequence.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!a} is not SEQUENCE@LOGID, as a line of books has it")
    if not int(sequence) < 2**63:
        raise argparse.ArgumentTypeError(f"{sequence} is out of range")
    return int(sequence), log_id


def read_target(text: str) -> str:
    """`HOST:PORT`, or a name that gRPC resolves, as in `unix:/run/tenure.sock`. Raises ArgumentTypeError."""
    if re.match(r"(unix|dns|ipv4|ipv6):", text):
        return text
    host, colon, port = text.rpartition(":")
    is_bracketed = re.fullmatch(r"\[[0-9A-Fa-f:.]+\]", host) is not None
    is_host = is_bracketed or re.fullmatch(r"[\w.-]+", host) is not None
    if not (colon and is_host and port.isascii() and port.isdecimal() and 1 <= int(port) <= _PORT_MAX):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, as in 127.0.0.1:50051")
    return text


def add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", type=read_target, default=DEFAULT_TARGET, metavar="HOST:PORT", help="the server")


def add_max_tokens(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument("--max-tokens", type=int, default=default, metavar="N", help="most tokens of an answer")
