"""Entry point of `tenure`: the arguments of each command, and which function runs it."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

from services.cli.arguments import HelpFormatter, Parser, ShowVersion, add_max_tokens
from services.cli.endings import guard_process
from services.cli.operating import OPERATING
from services.cli.talking import TALKING
from services.cli.terminal import show_any_text
from services.config import ServeConfig, to_flag
from telemetry.settings import Encoding

_DESCRIPTION = """\
Tenure serves language models for conversations that last: a session keeps its KV cache between turns, so each turn
costs what is new in it, and every page of the cache has exactly one owner.

Try it:   tenure demo                 a server, a three-turn conversation, and what the session saved
Or:       tenure serve                in one terminal, then
          tenure chat                 in another
"""

_SERVE_HELP: dict[str, str] = {
    "model": "GGUF file or Hugging Face directory to serve, or gemma3, once its extra is installed (default: the small "
    "model that comes with the package)",
    "host": "address to listen on; only this machine can reach the default",
    "port": "port to listen on; 0 takes any free one and says which",
    "insecure_bind": "allow an address that other machines can reach, although there is no access control yet",
    "page_size": "tokens in a page of KV cache",
    "pool_tokens": "tokens that the KV cache holds, all conversations together; refused when they do not fit into "
    "--memory-fraction of what is free (default: a whole --context-len, in whole pages, for each request that can run "
    "at once, the lesser of --running-max and --rows; or as many pages of it as fit; one whole context has to)",
    "swa_tokens": "of a model with sliding windows: tokens that the pool of its windows holds; at least what one "
    "request may need (default: in proportion to the KV cache of whole contexts)",
    "state_slots": "of a model with recurrent layers: states that its pool holds; at least what one request may need "
    "(default: in proportion to the KV cache of whole contexts)",
    "state_interval": "of a model with recurrent layers: tokens between two states of a prompt that the prefix cache "
    "may keep, rounded up to whole pages",
    "memory_fraction": "share of the memory that is free once the model is loaded which the KV cache may take, above 0 "
    "and at most 1; free is the least that the machine, a container's limit and `ulimit -v` leave",
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
    "full_check_steps": "prove all books page by page every so many steps, where that takes a few milliseconds only "
    "(up to some 30,000 pages); larger pools are proven a part at every step, and whole when idle (sums at every step)",
    "drain_s": "seconds that running turns are given to finish when the server is told to stop",
    "health_port": "also answer health probes on this port, with threads of their own: they are answered even when "
    "nothing else is; 0 takes any free port and says which (default: no such port)",
    "watchdog_loading_s": "most seconds of loading without a report of progress",
    "watchdog_compiling_s": "most seconds that the executor may take to prepare",
    "watchdog_warming_s": "most seconds that the first turn may take",
    "watchdog_prefill_s": "most seconds of a step with prompts in it: then its turns are ended and no work is taken",
    "watchdog_decode_s": "the same of a step that only generates",
    "watchdog_idle_s": "most seconds that the event loop may take to come round",
    "watchdog_failures": "so many failed steps one after the other, or three times a limit above, and it is not alive",
    "watchdog_exit_s": "seconds after that, without progress, until the process ends by itself; 0 is never",
    "otlp_endpoint": "send spans and metrics to this OpenTelemetry collector, by OTLP over gRPC, as in "
    "http://127.0.0.1:4317 (default: OTEL_EXPORTER_OTLP_ENDPOINT; nothing is sent without it)",
    "trace_steps": "draw one of so many steps as a span; 0 draws none",
    "telemetry_flush_s": "seconds that spans, metrics and KV events may take to be sent when the server stops: one "
    "deadline for all of them",
    "metrics_port": "offer metrics to Prometheus on this port of --host; 0 takes any free port and says which "
    "(default: no such port)",
    "kv_events_port": "publish what the prefix cache holds on this port, for routers that know the KV events of "
    "vLLM and SGLang (ZeroMQ, msgpack); it tells token ids of all prompts; 0 takes any free port and says "
    "which (default: no such port)",
    "kv_events_replay_port": "port on which batches of KV events that were missed are sent again (default: the next)",
    "kv_events_host": "address of both; only this machine can reach the default",
    "kv_events_topic": "topic of these messages, as in kv@POD@MODEL (default: none)",
    "kv_events_encoding": "how events are written: map, or array, with fields in vLLM's order",
    "kv_events_salted": "also publish what is cached in namespaces of their own, which their hashes then begin with",
    "fault_injection": "let any caller break the server on purpose, to see it notice; on loopback only",
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
        *TALKING,
        *OPERATING,
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
            kind = _UNSET_KINDS.get(field.name, type(default))
            choices = _CHOICES.get(field.name)
            metavar = None if choices else _metavar(field.name, kind)
            parser.add_argument(flag, type=kind, default=default, choices=choices, metavar=metavar, help=text)
    parser.add_argument("--verbose", action="store_true", help="log every turn")
    parser.set_defaults(run=_run_serve)


_UNSET_KINDS: dict[str, Callable[[str], object]] = {
    "model": Path,
    "pool_tokens": int,
    "swa_tokens": int,
    "state_slots": int,
    "health_port": int,
    "otlp_endpoint": str,
    "metrics_port": int,
    "kv_events_port": int,
    "kv_events_replay_port": int,
}
"""Kinds of the settings that have no value unless one is given."""
_CHOICES = {"kv_events_encoding": [each.value for each in Encoding]}
_METAVARS = {"otlp_endpoint": "URL", "kv_events_topic": "TOPIC"}


def _metavar(name: str, kind: Callable[[str], object]) -> str:
    if name.endswith("_s"):
        return "SECONDS"
    return _METAVARS.get(name) or {int: "N", float: "X", str: "ADDRESS", Path: "FILE"}[kind]  # type: ignore[index]  # the kinds there are


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts a server with a small model, holds a conversation of three turns in one session, shows what "
        "the session saved, and ends the server again. Takes under a minute."
    )
    parser.add_argument("--model", metavar="FILE", help="what to serve, as in `tenure serve`")
    add_max_tokens(parser, 48)
    parser.set_defaults(run=_run_demo)


# The commands are imported when they run: `tenure --help` need not wait for gRPC, nor `tenure pools` for an engine.


def _run_serve(arguments: argparse.Namespace) -> int:
    from services.cli.serve import run_serve

    return run_serve(arguments, owns_process=arguments.owns_process)


def _run_demo(arguments: argparse.Namespace) -> int:
    from services.cli.demo import run_demo

    return run_demo(max_tokens=arguments.max_tokens, model=arguments.model)


if __name__ == "__main__":
    sys.exit(main())
