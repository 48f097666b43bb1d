"""Commands of those who run a server: their arguments, and which function runs each."""

import argparse
import re
import sys
from pathlib import Path

from services.cli.arguments import USAGE_CODE, Adder, add_target, read_name, read_number, read_place
from services.cli.durations import read_duration

_VERIFY_S = 10.0

# The commands are imported when they run: `tenure --help` need not wait for gRPC.


def _add_pools(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows, for each pool of a running server, who owns its units: pages, states, rows. The parts always add up."
    )
    parser.add_argument("--history", action="store_true", help="show how it went over time, and counts since the start")
    _add_last(parser)
    add_target(parser)
    parser.set_defaults(run=_run_pools)


def _add_snapshot(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows the pools, turns, sessions and steps in flight of a running server at one instant. No text is in it."
    )
    add_target(parser)
    parser.set_defaults(run=_run_snapshot)


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Has a running server prove, page by page, that every page of its KV cache has exactly one owner. "
        "The exit code is 1 when something does not hold. Pages out of circulation are told and are no failure: a "
        "script that cares looks at `tenure pools`."
    )
    add_target(parser)
    parser.set_defaults(run=_run_check)


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Tells who owns a page of the KV cache of a running server, and how it came to its last owners: the move, the "
        "step, and the trace id of the turn or session."
    )
    parser.add_argument("unit", type=read_number, metavar="page", help="number of the page, from 1")
    others = parser.add_mutually_exclusive_group()
    for flag, pool, what in (
        ("--swa", "swa", "a page of sliding windows"),
        ("--states", "mamba", "a recurrent state"),
        ("--rows", "rows", "a request row"),
    ):
        told = f"of {what} with that number, and not of a page"
        others.add_argument(flag, dest="pool", action="store_const", const=pool, default="full", help=told)
    add_target(parser)
    parser.set_defaults(run=_run_explain)


def _add_top(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows a running server live: pools by owner, sessions, turns, moves, steps and latency. q leaves, p pauses, s "
        "sorts otherwise. In a pipe it shows one moment, and leaves."
    )
    parser.add_argument("--once", action="store_true", help="show one moment, and leave")
    parser.add_argument(
        "--interval", type=read_duration, default=1.0, metavar="TIME", help="time between two looks, in seconds"
    )
    add_target(parser)
    parser.set_defaults(run=_run_top)


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Writes a page about what a running server remembers of its last hour: who owned each pool over time, what "
        "became of each session's KV, steps, latency and incidents. The page is one file and needs nothing else."
    )
    parser.add_argument("file", type=Path, help="where to write it, as in report.html")
    _add_last(parser)
    add_target(parser)
    parser.set_defaults(run=_run_report)


def _add_timeline(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Tells what happened to one session of a running server, in order: its turns, the context that each of them "
        "saw and where the KV of it came from, forks, cuts, and what became of its KV."
    )
    parser.add_argument("session", type=read_name, help="its name; all sessions that had it are told of")
    _add_last(parser)
    add_target(parser)
    parser.set_defaults(run=_run_timeline)


def _add_health(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Asks what probes ask: whether a server has started, is alive, and takes work. Works on its port and on its "
        "health port; the latter answers even when nothing else does. The exit code is 0 when it takes work."
    )
    add_target(parser)
    parser.set_defaults(run=_run_health)


def _add_incidents(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Lists what went wrong on a running server lately, oldest first, whether it goes on, and where to look next."
    )
    add_target(parser)
    parser.set_defaults(run=_run_incidents)


def _add_dump(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Prints all that a running server knows of this moment, or of an incident as it was taken then: whether the "
        "books balance, pools, steps in flight, turns, sessions, and the stacks of all threads. No text is in it."
    )
    parser.add_argument("--incident", metavar="ID", help="of this incident, as in the error and in `tenure incidents`")
    add_target(parser)
    parser.set_defaults(run=_run_dump)


def _add_plant(parser: argparse.ArgumentParser) -> None:
    from services.cli.plant import KINDS  # light: names only

    parser.description = (
        "Breaks a running server on purpose, to practise what docs/operations says. The server has to be started with "
        "--fault-injection."
    )
    parser.add_argument("kind", choices=KINDS, help="what to break")
    parser.add_argument("--seconds", type=read_duration, metavar="TIME", help="how long, where the kind has a length")
    parser.add_argument("--count", type=read_number, default=1, metavar="N", help="how many forwards; 0 is all")
    parser.add_argument("--every", type=read_number, default=1, metavar="N", help="of forwards, each Nth only")
    add_target(parser)
    parser.set_defaults(run=_run_plant)


def _add_events(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows every change of owner in the KV cache of a running server, one line an event, from now on. The first "
        "line is the books of this moment and the place in the stream; at its end it says where to go on. With "
        "--verify it shows none: it rebuilds the books from the events alone, and compares them with the server's "
        "again and again; the exit code is 1 when they differ."
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--since", type=read_place, metavar="SEQUENCE@LOGID", help="go on after this event, as it was named"
    )
    kinds.add_argument("--verify", action="store_true", help="prove that the events say all that happens")
    parser.add_argument(
        "--seconds", type=read_duration, metavar="TIME", help="how long --verify goes on (default: 10s)"
    )
    add_target(parser)
    parser.set_defaults(run=_run_events)


def _add_flush(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Has a running server free all that its prefix cache holds and nobody uses. Turns and sessions keep what is "
        "theirs. What was cached is computed again when it is asked for."
    )
    add_target(parser)
    parser.set_defaults(run=_run_flush)


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Draws what a running server remembers of one turn that has ended: a tree of spans with a bar for each on the "
        "time of the turn, how its KV came to it and where it went, and what happened meanwhile. Without a turn it is "
        "the newest that has ended."
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("turn", type=read_name, nargs="?", help="name of the turn: the newest of that name")
    which.add_argument(
        "--id",
        dest="trace_id",
        type=_read_trace_id,
        metavar="TRACEID",
        help="a trace instead: its W3C id, or the first 8 digits of it or more, as a link has them",
    )
    parser.add_argument("--session", type=read_name, help="of this session only")
    add_target(parser)
    parser.set_defaults(run=_run_trace)


def _read_trace_id(text: str) -> str:
    """A link as it is printed, `4bf92f35…/00f067aa…`, stands for the trace that it leads to."""
    return re.split("[…~/]", read_name(text), maxsplit=1)[0]


def _add_last(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--last", type=read_duration, metavar="TIME", help="how far back, as in 90s, 10m or 1h (default: all there is)"
    )


def _run_pools(arguments: argparse.Namespace) -> int:
    if arguments.history or arguments.last is not None:
        from services.cli.pool_history import run_pool_history

        return run_pool_history(arguments.target, arguments.last)
    from services.cli.pools import run_pools

    return run_pools(arguments.target)


def _run_top(arguments: argparse.Namespace) -> int:
    from services.cli.top import run_top

    return run_top(arguments.target, interval_s=arguments.interval, once=arguments.once)


def _run_report(arguments: argparse.Namespace) -> int:
    from services.cli.report_page import run_report

    return run_report(arguments.target, arguments.file, arguments.last)


def _run_timeline(arguments: argparse.Namespace) -> int:
    from services.cli.timeline import run_timeline

    return run_timeline(arguments.target, arguments.session, arguments.last)


def _run_health(arguments: argparse.Namespace) -> int:
    from services.cli.health import run_health

    return run_health(arguments.target)


def _run_incidents(arguments: argparse.Namespace) -> int:
    from services.cli.dump import run_incidents

    return run_incidents(arguments.target)


def _run_dump(arguments: argparse.Namespace) -> int:
    from services.cli.dump import run_dump

    return run_dump(arguments.target, arguments.incident)


def _run_events(arguments: argparse.Namespace) -> int:
    from services.cli.events import run_events, run_verify

    if arguments.verify:
        return run_verify(arguments.target, _VERIFY_S if arguments.seconds is None else arguments.seconds)
    if arguments.seconds is not None:
        print("tenure: --seconds: is for --verify", file=sys.stderr)
        return USAGE_CODE
    return run_events(arguments.target, arguments.since)


def _run_flush(arguments: argparse.Namespace) -> int:
    from services.cli.flush import run_flush

    return run_flush(arguments.target)


def _run_trace(arguments: argparse.Namespace) -> int:
    from services.cli.trace import run_trace

    return run_trace(arguments.target, arguments.turn, arguments.session, arguments.trace_id)


def _run_plant(arguments: argparse.Namespace) -> int:
    from services.cli.plant import run_plant

    return run_plant(
        arguments.target, arguments.kind, seconds=arguments.seconds, count=arguments.count, every=arguments.every
    )


def _run_snapshot(arguments: argparse.Namespace) -> int:
    from services.cli.snapshot import run_snapshot

    return run_snapshot(arguments.target)


def _run_check(arguments: argparse.Namespace) -> int:
    from services.cli.check import run_check

    return run_check(arguments.target)


def _run_explain(arguments: argparse.Namespace) -> int:
    from services.cli.explain import run_explain

    return run_explain(arguments.target, arguments.unit, arguments.pool)


OPERATING: tuple[tuple[str, str, Adder], ...] = (
    ("top", "watch a server live", _add_top),
    ("health", "ask whether a server is alive and takes work", _add_health),
    ("pools", "show who owns the KV cache, now or over time", _add_pools),
    ("timeline", "tell what happened to one session, in order", _add_timeline),
    ("trace", "tell where the time of a turn went, and how its KV came to it", _add_trace),
    ("snapshot", "show all that runs, at one instant", _add_snapshot),
    ("check", "prove the books of the KV cache", _add_check),
    ("explain", "tell who owns a page, and who did before", _add_explain),
    ("events", "show every change of owner as it happens, or prove that they are all told", _add_events),
    ("flush", "free what the prefix cache holds and nobody uses", _add_flush),
    ("incidents", "list what went wrong lately", _add_incidents),
    ("dump", "print all that a server knows of this moment, or of an incident", _add_dump),
    ("report", "write a page about a server's last hour", _add_report),
    ("plant", "break a server on purpose, for practice", _add_plant),
)
"""Name, help, and what adds the arguments."""
