"""Commands of those who talk to a server: their arguments, and which function runs each."""

import argparse

from services.cli.arguments import Adder, add_max_tokens, add_target, read_name, read_number

# The commands are imported when they run: `tenure --help` need not wait for gRPC.


def _add_chat(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Talks to a running server in a streaming session, and shows after each turn where its context came from. "
        "Ctrl-C stops an answer and takes its turn back; Ctrl-C or Ctrl-D at the prompt leaves. A line /undo takes the "
        "last turn back, /new starts a new session; a message that begins with a slash is sent with a blank before it. "
        "In a pipe, standard output is the answers alone, and the exit code is 1 when a line was refused."
    )
    add_target(parser)
    _add_sampling(parser, max_tokens=200)
    parser.add_argument("--system", metavar="TEXT", help="instructions to put before the conversation")
    parser.add_argument("--quiet", action="store_true", help="show the answers only, and no books")
    parser.set_defaults(run=_run_chat)


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.description = "Has a running server continue a text, and prints the answer as it comes."
    parser.add_argument("text", help="what to continue; - reads it from standard input")
    parser.add_argument("--chat", action="store_true", help="take the text as a user's message and answer it")
    add_target(parser)
    _add_sampling(parser, max_tokens=100)
    parser.set_defaults(run=_run_generate)


def _add_sessions(parser: argparse.ArgumentParser) -> None:
    parser.description = "Lists the open sessions of a running server: how long they are, and where their KV cache is."
    add_target(parser)
    parser.set_defaults(run=_run_sessions)


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
    add_target(parser)
    parser.set_defaults(run=_run_fork)


def _add_truncate(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Rewinds a session of a running server to its first tokens: what lies behind them is forgotten for good. A "
        "session in which a turn runs is left as it is."
    )
    parser.add_argument("session", type=read_name, help="the session to rewind")
    parser.add_argument("length", type=read_number, help="how many tokens to keep; 0 empties the session")
    add_target(parser)
    parser.set_defaults(run=_run_truncate)


def _add_close(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Closes a session of a running server: its turns are aborted, and all that it holds is released. Returns when "
        "that is done."
    )
    parser.add_argument("session", type=read_name, help="the session to close")
    parser.add_argument("--drain", action="store_true", help="let its turns finish first; it takes no new ones")
    add_target(parser)
    parser.set_defaults(run=_run_close)


def _add_sampling(parser: argparse.ArgumentParser, *, max_tokens: int) -> None:
    add_max_tokens(parser, max_tokens)
    parser.add_argument("--temperature", type=float, metavar="X", help="0, the default, takes the likeliest token")
    parser.add_argument("--top-k", type=int, metavar="N", help="draw among the N likeliest tokens only")
    parser.add_argument("--top-p", type=float, metavar="P", help="draw among the likeliest tokens that reach P only")
    parser.add_argument("--seed", type=int, metavar="N", help="draw the same tokens each time")
    parser.add_argument(
        "--stop", action="append", metavar="TEXT", help="end the answer before TEXT; may be given more than once"
    )


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


TALKING: tuple[tuple[str, str, Adder], ...] = (
    ("chat", "talk to a server", _add_chat),
    ("generate", "continue a text once", _add_generate),
    ("sessions", "list the open sessions", _add_sessions),
    ("fork", "open a session that begins with what another has", _add_fork),
    ("truncate", "rewind a session", _add_truncate),
    ("close", "close a session", _add_close),
)
"""Name, help, and what adds the arguments."""
