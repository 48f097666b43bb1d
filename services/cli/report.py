"""What a person is told when a command did not succeed."""

import sys
from collections.abc import Coroutine

import grpc

from services.cli.arguments import DEFAULT_TARGET, USAGE_CODE
from services.client import OptionError, TenureError
from services.client.asking import NO_ANSWER, NO_CONNECTION, TIMEOUT_KEY
from services.config import is_loopback, to_flag

_OPTIONS = "sampling."
_ARGUMENTS = {
    "session_id": "session",
    "new_session_id": "--name",
    "at_turn_id": "--at-turn",
    "at_turn": "--at-turn",
    "at_length": "--at-length",
    "length": "length",
    "unit": "page",
    "seconds": "--seconds",
    "count": "--count",
    "every": "--every",
    "last_s": "--last",
    "incident_id": "--incident",
    "trace_id": "--id",
}
"""Fields of requests, and options of the client, that the command line has another name for."""
_TIMED_OUT = ("timed out", "timeout")
"""In what the transport says when a connection was neither made nor refused."""
_MESSAGE_FIELDS = ("text", "text.text", "chat", "chat.messages", "input")


async def report_error(target: str, command: Coroutine[None, None, int]) -> int:
    """Awaits `command`. Whatever a server, or our own client, has against it becomes one line on standard error.

    Returns its code, or 1, or 2 when an argument is at fault.
    """
    try:
        return await command
    except TenureError as error:
        print(f"tenure: {describe_error(error, target)}", file=sys.stderr)
        return USAGE_CODE if is_about_an_option(error) else 1
    except OptionError as error:
        print(f"tenure: {_name_option(error.option)}: {error.problem}", file=sys.stderr)
        return USAGE_CODE


def is_about_an_option(error: TenureError) -> bool:
    """Whether a flag of the command has a value that can not be."""
    field = error.field or ""
    return error.code is grpc.StatusCode.INVALID_ARGUMENT and (field.startswith(_OPTIONS) or field in _ARGUMENTS)


def describe_error(error: TenureError, target: str) -> str:
    """In the words of the command line: flags, and not fields of messages."""
    if is_silence(error):
        return describe_silence(error, target)
    if is_unknown_call(error):
        return (
            f"the server at {target} does not know this call: it is older than this command, it is not Tenure, or this "
            "is a health port, where only `tenure health` is answered"
        )
    if error.field is None:
        return str(error)
    problem = error.message.removeprefix(f"{error.field}: ")
    if error.field.startswith(_OPTIONS):
        return f"{_name_option(error.field.removeprefix(_OPTIONS))}: {problem}"
    if error.field in _ARGUMENTS and problem != error.message:
        return f"{_ARGUMENTS[error.field]}: {problem}"
    if error.reason == "CHAT_UNSUPPORTED":
        return "this model has no chat template: use `tenure generate` without --chat, which goes on with a text"
    if error.field in _MESSAGE_FIELDS and error.code is grpc.StatusCode.INVALID_ARGUMENT:
        return f"the text {problem}"
    return str(error)


def _name_option(option: str) -> str:
    return _ARGUMENTS.get(option) or to_flag(option)


def is_silence(error: TenureError) -> bool:
    """Whether nobody answered."""
    return error.reason in ("UNAVAILABLE", NO_ANSWER, NO_CONNECTION)


def is_unknown_call(error: TenureError) -> bool:
    """Whether the server does not have what was called; Tenure's own refusals have a reason of their own."""
    codes = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND)  # the latter: a service that health is asked of
    return error.code in codes and error.reason == error.code.name


def describe_silence(error: TenureError, target: str) -> str:
    host, _, port = target.rpartition(":")
    if error.reason == NO_ANSWER:
        return (
            f"the server at {target} took the call and has not answered for {error.metadata[TIMEOUT_KEY]} s: its event "
            "loop is busy or stuck. Its health port (--health-port) is answered even then, unless the whole "
            "interpreter is held, and its log has a dump once the watchdog trips"
        )
    if error.reason == NO_CONNECTION or any(words in error.message.lower() for words in _TIMED_OUT):
        return (
            f"nobody at {target} takes the call, nor refuses it: the process is stopped, or it is no gRPC server, or "
            "the network lets nothing through"
        )
    if "DNS" in error.message:
        return f"the host of {target} can not be found"
    if target == DEFAULT_TARGET:
        return f"no server answers at {target}; start one with: tenure serve"
    if is_loopback(host.strip("[]")) and host:
        # The server binds another loopback address only when it is told so.
        bind = "" if host in ("127.0.0.1", "localhost") else f" --host {host.strip('[]')}"
        return f"no server answers at {target}; start one with: tenure serve{bind} --port {port}"
    return f"no server answers at {target}; does it run there, and can it be reached from here?"
