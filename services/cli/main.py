"""Entry point of `tenure`: the arguments of each command, and which function runs it."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

from services.cli.arguments import (
    DEFAULT_TARGET,
    HelpFormatter,
    Parser,
    ShowVersion,
    read_name,
    read_number,
    read_target,
)
from services.cli.endings import guard_process
from services.cli.terminal import show_any_text
from services.config import ServeConfig, to_flag

_DESCRIPTION = """\
Tenure serves language models for conversations that last: a session keeps its KV cache between turns, so each turn
costs what is new in it, and every page of the cache has exactly one owner.

Try it:   tenure demo                 a server, a three-turn conversation, and what the session saved
Or:       tenure serve                in one terminal, then
          tenure chat                 in another
"""

_SERVE_HELP: dict[str, str] = {
    "model": "GGUF file or Hugging Face directory to serve (default: the small model that comes with the package)",
    "host": "address to listen on; only this machine can reach the default",
    "port": "port to listen on; 0 takes any free one and says which",
    "insecure_bind": "allow an address that other machines can reach, although there is no access control yet",
    "page_size": "tokens in a page of KV cache",
    "pool_tokens": "tokens that the KV cache holds, all conversations together",
    "rows": "requests and sessions that can hold KV at once",
    "context_len": "most tokens of a conversation, cut to what the model can",
    "chunk_tokens": "most prompt tokens of one request computed in a step",
    "step_tokens": "most tokens computed in a step, all requests together",
    "running_max": "most requests that run at once",
    "waiting_max": "most turns of sessions, and as many requests without one, that wait; more are refused",
    "threads": "CPU threads for the model",
    "sessions_max": "most sessions open at once",
    "idle_timeout_s": "seconds without a turn after which a session is closed",
    "streaming_sessions": "keep the KV cache of streaming sessions between their turns",
    "prefix_cache": "share the KV cache of equal beginnings between requests",
    "unread_tokens_max": "tokens that may wait for a slow reader before its stream is ended",
    "overlap": "plan the next step while one is computed, so that the model never waits for the plan",
    "draft_tokens_max": "most tokens a step that a request may ask to have guessed and verified",
    "history_tokens_max": "most tokens that all sessions together may remember (4 bytes each)",
    "detach_grace_s": "seconds that a turn runs on when its client is lost, so that it can be resumed",
    "reflection": "tell clients such as grpcurl what the services look like",
    "full_check_steps": "prove all books page by page every so many steps (their sums are checked every step)",
    "drain_s": "seconds that running turns are given to finish when the server is told to stop",
    "fault_injection": "let any caller break the server's accounts on purpose, to see it notice; on loopback only",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns its exit code.

    0: all went well. 1: it did not. 2: wrong arguments. 128 and a signal's number: ended by it, or 141 because nobody
    reads the output any more.
    """
    # Read by torch's thread pool when it is loaded: idle threads sleep. Spinning ones slow a busy machine down tenfold.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return guard_process(lambda: _run_command(argv))


def _run_command(argv: Sequence[str] | None) -> int:
    show_any_text()
    try:
        arguments = build_parser().parse_args(argv, argparse.Namespace(owns_process=argv is None))
    except SystemExit as done:
        # argparse has said what there is to say.
        return done.code if isinstance(done.code, int) else 1
    run: Callable[[argparse.Namespace], int] = arguments.run
    return run(arguments)


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="tenure", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show the version and leave")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, text, add_arguments in (
        ("serve", "run the server", _add_serve),
        ("chat", "talk to a server", _add_chat),
        ("generate", "continue a text once", _add_generate),
        ("sessions", "list the open sessions", _add_sessions),
        ("fork", "open a session that begins with what another has", _add_fork),
        ("truncate", "rewind a session", _add_truncate),
        ("close", "close a session", _add_close),
        ("pools", "show who owns the KV cache", _add_pools),
        ("snapshot", "show all that runs, at one instant", _add_snapshot),
        ("check", "prove the books of the KV cache", _add_check),
        ("explain", "tell who owns a page, and who did before", _add_explain),
        ("demo", "show it all, with a server of its own", _add_demo),
    ):
        # Options are not guessed from their beginnings: a slip would pass for another one.
        command = commands.add_parser(name, help=text, formatter_class=HelpFormatter, allow_abbrev=False)
        command.set_defaults(command_parser=command)
        add_arguments(command)
    return parser


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.description = "Runs the server: loads a model and answers on a gRPC port until it is told to stop (Ctrl-C)."
    for field in fields(ServeConfig):
        flag, text = to_flag(field.name), _SERVE_HELP[field.name]
        default = field.default
        if isinstance(default, bool):
            action = argparse.BooleanOptionalAction if default else "store_true"
            parser.add_argument(flag, action=action, default=default, help=text)
        else:
            kind: Callable[[str], object] = Path if field.name == "model" else type(default)
            parser.add_argument(flag, type=kind, default=default, metavar=_metavar(kind), help=text)
    parser.add_argument("--verbose", action="store_true", help="log every turn")
    parser.set_defaults(run=_run_serve)


def _metavar(kind: Callable[[str], object]) -> str:
    return {int: "N", float: "SECONDS", str: "ADDRESS", Path: "FILE"}[kind]  # type: ignore[index]  # the kinds above


def _add_chat(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Talks to a running server in a streaming session, and shows after each turn where its context came from. "
        "Ctrl-C stops an answer and takes its turn back; Ctrl-C or Ctrl-D at the prompt leaves. A line /undo takes the "
        "last turn back, /new starts a new session; a message that begins with a slash is sent with a blank before it. "
        "In a pipe, standard output is the answers alone, and the exit code is 1 when a line was refused."
    )
    _add_target(parser)
    _add_sampling(parser, max_tokens=200)
    parser.add_argument("--system", metavar="TEXT", help="instructions to put before the conversation")
    parser.add_argument("--quiet", action="store_true", help="show the answers only, and no books")
    parser.set_defaults(run=_run_chat)


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.description = "Has a running server continue a text, and prints the answer as it comes."
    parser.add_argument("text", help="what to continue; - reads it from standard input")
    parser.add_argument("--chat", action="store_true", help="take the text as a user's message and answer it")
    _add_target(parser)
    _add_sampling(parser, max_tokens=100)
    parser.set_defaults(run=_run_generate)


def _add_pools(parser: argparse.ArgumentParser) -> None:
    parser.description = "Shows, for each pool of a running server, who owns its pages. The parts always add up."
    _add_target(parser)
    parser.set_defaults(run=_run_pools)


def _add_sessions(parser: argparse.ArgumentParser) -> None:
    parser.description = "Lists the open sessions of a running server: how long they are, and where their KV cache is."
    _add_target(parser)
    parser.set_defaults(run=_run_sessions)


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Has a running server prove, page by page, that every page of its KV cache has exactly one owner. "
        "The exit code is 1 when something does not hold."
    )
    _add_target(parser)
    parser.set_defaults(run=_run_check)


def _add_fork(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Opens a session on a running server that begins with the history of another, and shares its KV cache up to "
        "there. Both go on by themselves. Turns of the other that run do not matter."
    )
    parser.add_argument("session", type=read_name, help="the session to take the history of")
    parser.add_argument(
        "--name", type=read_name, metavar="NAME", help="name of the new session (default: the server chooses one)"
    )
    parser.add_argument(
        "--at-turn", type=read_name, metavar="TURN", help="up to the end of this finished turn (default: all there is)"
    )
    parser.add_argument("--at-length", type=read_number, metavar="N", help="then cut to N tokens (default: not cut)")
    _add_target(parser)
    parser.set_defaults(run=_run_fork)


def _add_truncate(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Rewinds a session of a running server to its first tokens: what lies behind them is forgotten for good. A "
        "session in which a turn runs is left as it is."
    )
    parser.add_argument("session", type=read_name, help="the session to rewind")
    parser.add_argument("length", type=read_number, help="how many tokens to keep; 0 empties the session")
    _add_target(parser)
    parser.set_defaults(run=_run_truncate)


def _add_close(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Closes a session of a running server: its turns are aborted, and all that it holds is released. Returns when "
        "that is done."
    )
    parser.add_argument("session", type=read_name, help="the session to close")
    parser.add_argument("--drain", action="store_true", help="let its turns finish first; it takes no new ones")
    _add_target(parser)
    parser.set_defaults(run=_run_close)


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Tells who owns a page of the KV cache of a running server, and how it came to its last owners: the move, the "
        "step, and the trace id of the turn or session."
    )
    parser.add_argument("unit", type=read_number, metavar="page", help="number of the page, from 1")
    parser.add_argument("--rows", action="store_true", help="of a request row with that number, and not of a page")
    _add_target(parser)
    parser.set_defaults(run=_run_explain)


def _add_snapshot(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows the pools, turns, sessions and steps in flight of a running server at one instant. No text is in it."
    )
    _add_target(parser)
    parser.set_defaults(run=_run_snapshot)


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts a server with the small embedded model, holds a conversation of three turns in one session, shows what "
        "the session saved, and ends the server again. Takes under a minute."
    )
    _add_max_tokens(parser, 48)
    parser.set_defaults(run=_run_demo)


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", type=read_target, default=DEFAULT_TARGET, metavar="HOST:PORT", help="the server")


def _add_sampling(parser: argparse.ArgumentParser, *, max_tokens: int) -> None:
    _add_max_tokens(parser, max_tokens)
    parser.add_argument("--temperature", type=float, metavar="X", help="0, the default, takes the likeliest token")
    parser.add_argument("--top-k", type=int, metavar="N", help="draw among the N likeliest tokens only")
    parser.add_argument("--top-p", type=float, metavar="P", help="draw among the likeliest tokens that reach P only")
    parser.add_argument("--seed", type=int, metavar="N", help="draw the same tokens each time")
    parser.add_argument(
        "--stop", action="append", metavar="TEXT", help="end the answer before TEXT; may be given more than once"
    )


def _add_max_tokens(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument("--max-tokens", type=int, default=default, metavar="N", help="most tokens of an answer")


# The commands are imported when they run: `tenure --help` need not wait for gRPC, nor `tenure pools` for an engine.


def _run_serve(arguments: argparse.Namespace) -> int:
    from services.cli.serve import run_serve

    return run_serve(arguments, owns_process=arguments.owns_process)


def _run_chat(arguments: argparse.Namespace) -> int:
    from services.cli.chat import run_chat
    from services.cli.sampling import read_sampling

    return run_chat(arguments.target, read_sampling(arguments), system=arguments.system, is_quiet=arguments.quiet)


def _run_generate(arguments: argparse.Namespace) -> int:
    from services.cli.generate import run_generate
    from services.cli.sampling import read_sampling

    return run_generate(arguments.target, arguments.text, read_sampling(arguments), is_chat=arguments.chat)


def _run_sessions(arguments: argparse.Namespace) -> int:
    from services.cli.sessions import run_sessions

    return run_sessions(arguments.target)


def _run_fork(arguments: argparse.Namespace) -> int:
    from services.cli.sessions import run_fork

    return run_fork(
        arguments.target, arguments.session, arguments.name, at_turn=arguments.at_turn, at_length=arguments.at_length
    )


def _run_truncate(arguments: argparse.Namespace) -> int:
    from services.cli.sessions import run_truncate

    return run_truncate(arguments.target, arguments.session, arguments.length)


def _run_close(arguments: argparse.Namespace) -> int:
    from services.cli.sessions import run_close

    return run_close(arguments.target, arguments.session, drain=arguments.drain)


def _run_explain(arguments: argparse.Namespace) -> int:
    from services.cli.explain import run_explain

    return run_explain(arguments.target, arguments.unit, is_row=arguments.rows)


def _run_snapshot(arguments: argparse.Namespace) -> int:
    from services.cli.snapshot import run_snapshot

    return run_snapshot(arguments.target)


def _run_pools(arguments: argparse.Namespace) -> int:
    from services.cli.pools import run_pools

    return run_pools(arguments.target)


def _run_check(arguments: argparse.Namespace) -> int:
    from services.cli.check import run_check

    return run_check(arguments.target)


def _run_demo(arguments: argparse.Namespace) -> int:
    from services.cli.demo import run_demo

    return run_demo(max_tokens=arguments.max_tokens)


if __name__ == "__main__":
    sys.exit(main())
