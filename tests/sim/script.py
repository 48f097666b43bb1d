"""Schedules as text, one command a line: the language of the transcripts, which a shrunk schedule is printed in too."""

from dataclasses import fields

from engine.core.commands import AbortReason, FinishReason, TurnMode
from engine.core.config import CoreConfig
from engine.core.ids import SessionId, TurnId
from engine.core.sampling import GREEDY, Sampling
from tests.kit.shadow_model import ShadowModel
from tests.sim.loop_model import LoopModel
from tests.sim.ops import (
    AbortOp,
    AckOp,
    AmbushOp,
    AnswerOp,
    Blow,
    CloseOp,
    ExpireOp,
    FinishAtOp,
    FlushOp,
    ForkOp,
    Length,
    Op,
    OpenOp,
    PlanOp,
    TruncateOp,
    TurnOp,
)
from tests.sim.schedule import Scenario

INDENT = "  "
"""Before every line that is not a command: traces."""
LIMITS = {
    "page": "page_size",
    "pool": "pool_pages",
    "rows": "num_rows",
    "context": "context_len",
    "vocab": "vocab_size",
    "chunk": "chunk_tokens",
    "step": "step_tokens",
    "running": "running_max",
    "waiting": "waiting_max",
    "in_flight": "in_flight_max",
    "sessions": "sessions_max",
    "nodes": "session_nodes_max",
    "turns": "session_turns_max",
    "retractions": "retractions_max",
    "arrivals": "priority_arrivals",
    "prefix_wait": "prefix_wait_tokens",
    "drafts": "draft_tokens_max",
    "history": "history_tokens_max",
    "window": "window",
    "swa": "swa_pages",
    "states": "state_slots",
    "interval": "state_interval",
}
FRACTIONS = {"idle": "idle_timeout_s", "ratio": "new_token_ratio"}
SWITCHES = ("streaming_sessions", "prefix_cache")
DEFAULT_CONFIG = CoreConfig(page_size=4, pool_pages=32, num_rows=5, context_len=64, vocab_size=100)
"""What a script has that says nothing else."""


class ScriptError(Exception):
    """The script itself makes no sense."""


def parse_options(words: list[str]) -> dict[str, str]:
    """`name=value` each."""
    return dict(word.split("=", 1) for word in words)


# Limits


def parse_scenario(words: list[str], ops: tuple[Op, ...] = ()) -> Scenario:
    """From the words behind `config`. Raises ScriptError for a name that there is not."""
    options = parse_options(words)
    limits = {field: int(options.pop(name)) for name, field in LIMITS.items() if name in options}
    switches = {name: options.pop(name) != "off" for name in SWITCHES if name in options}
    eos_ids = tuple(int(eos) for eos in options.pop("eos", "").split(",") if eos)
    fractions = {field: float(options.pop(name)) for name, field in FRACTIONS.items() if name in options}
    eos_percent = int(options.pop("eos_percent", "0"))
    loop = int(options.pop("loop")) if "loop" in options else None
    is_durable = options.pop("ack", "at_once") == "manual"
    if options:
        raise ScriptError(f"unknown in config: {', '.join(options)}")
    defaults = {field.name: getattr(DEFAULT_CONFIG, field.name) for field in fields(CoreConfig)}
    config = CoreConfig(**{**defaults, **limits, **fractions, **switches, "eos_ids": eos_ids})
    eos_id = eos_ids[0] if eos_ids else None
    model = ShadowModel(config.vocab_size, eos_id, eos_percent)
    if loop is not None:
        model = LoopModel(config.vocab_size, eos_id, eos_percent, loop)
    return Scenario(0, config, model, is_durable, ops)


def render_config(scenario: Scenario) -> str:
    """The `config` line: only what is not as usual."""
    config = scenario.config
    words = ["config"]
    for name, field in LIMITS.items():
        value = getattr(config, field)
        words += [f"{name}={value}"] if value != getattr(DEFAULT_CONFIG, field) else []
    words += [f"eos={','.join(map(str, config.eos_ids))}"] if config.eos_ids else []
    words += [f"eos_percent={scenario.model.eos_percent}"] if scenario.model.eos_percent else []
    words += [f"loop={scenario.model.surprise_percent}"] if isinstance(scenario.model, LoopModel) else []
    for name, field in FRACTIONS.items():
        value = getattr(config, field)
        words += [f"{name}={value}"] if value != getattr(DEFAULT_CONFIG, field) else []
    words += [f"{name}=off" for name in SWITCHES if not getattr(config, name)]
    words += ["ack=manual"] if scenario.is_durable else []
    return " ".join(words)


# Commands


def parse_ops(text: str) -> list[Op]:
    """The operations of one line. Raises ScriptError when there is no such command."""
    match text.split():
        case ["open", session, kind, *more]:
            return [_parse_open(session, kind, parse_options(more))]
        case ["fork", session, new, *more]:
            return [_parse_fork(session, new, parse_options(more))]
        case ["truncate", session, length]:
            return [TruncateOp(SessionId(session), _parse_length(length))]
        case ["truncate", session, length, "at-end"]:
            return [TruncateOp(SessionId(session), _parse_length(length), is_at_end=True)]
        case ["turn", session, turn, *more]:
            return [_parse_turn(session, turn, parse_options(more))]
        case ["plan"]:
            return [PlanOp()]
        case ["answer" | "fail" as name]:
            return [AnswerOp(fails=name == "fail")]
        case ["step", *times]:
            return [PlanOp(), AnswerOp(fails=False)] * int(times[0] if times else 1)
        case ["abort", turn, *reason]:
            return [AbortOp(TurnId(turn), AbortReason(reason[0]) if reason else AbortReason.CLIENT)]
        case ["ambush", phase, blow]:
            return [AmbushOp(phase, Blow(blow))]
        case ["finish-at", turn, back, reason]:
            return [FinishAtOp(TurnId(turn), int(back), FinishReason(reason))]
        case ["ack" | "nack" as name, *count]:
            return [AckOp(int(count[0] if count else 1), fails=name == "nack")]
        case ["close" | "drain-close" as name, session]:
            return [CloseOp(SessionId(session), drain=name == "drain-close")]
        case ["flush"]:
            return [FlushOp()]
        case ["expire", after_s]:
            return [ExpireOp(float(after_s))]
        case _:
            raise ScriptError(f"unknown: {text!r}")


def _parse_open(session: str, kind: str, options: dict[str, str]) -> OpenOp:
    idle_timeout_s = float(options["idle"]) if "idle" in options else None
    priority = int(options.get("priority", "0"))
    return OpenOp(SessionId(session), kind == "streaming", idle_timeout_s, options.get("namespace", ""), priority)


def _parse_fork(session: str, new: str, options: dict[str, str]) -> ForkOp:
    at_turn = TurnId(options["at"]) if "at" in options else None
    return ForkOp(
        SessionId(session), SessionId(new), at_turn, _parse_length(options["len"]) if "len" in options else None
    )


def _parse_length(text: str) -> Length:
    """`12` tokens, or `50%` of all there is."""
    return Length(int(text.removesuffix("%")), is_share=text.endswith("%"))


def _parse_turn(session: str, turn: str, options: dict[str, str]) -> TurnOp:
    return TurnOp(
        turn=TurnId(turn),
        session=None if session == "-" else SessionId(session),
        parent=TurnId(options["parent"]) if "parent" in options else None,
        ids=_parse_ids(options["ids"]),
        max_tokens=int(options["max"]) if "max" in options else None,
        ignore_eos=options.get("ignore_eos") == "yes",
        namespace=options.get("namespace", ""),
        sampling=_parse_sampling(options["sampling"]) if "sampling" in options else GREEDY,
        mode=TurnMode(options.get("mode", "append")),
        offset=_parse_length(options["offset"]) if "offset" in options else None,
        is_dropping=options.get("drop") == "yes",
        is_keeping=options.get("on_abort") == "keep",
        priority=int(options["priority"]) if "priority" in options else None,
        draft_tokens=int(options.get("draft", "0")),
    )


def _parse_ids(text: str) -> tuple[int, ...]:
    """`1,2,7..9` is 1 2 7 8 9."""
    ids: list[int] = []
    for part in text.split(",") if text else []:
        first, _, last = part.partition("..")
        ids.extend(range(int(first), int(last or first) + 1))
    return tuple(ids)


def _parse_sampling(text: str) -> Sampling:
    temperature, top_k, top_p, seed = text.split(",")
    return Sampling(float(temperature), int(top_k), float(top_p), int(seed))


def render_op(operation: Op) -> str:
    """The inverse of `parse_ops`."""
    match operation:
        case OpenOp() | CloseOp() | ForkOp() | TruncateOp() | ExpireOp():
            return _render_on_session(operation)
        case TurnOp():
            return _render_turn(operation)
        case PlanOp():
            return "plan"
        case FlushOp():
            return "flush"
        case AnswerOp(fails):
            return "fail" if fails else "answer"
        case AbortOp(turn, reason):
            return f"abort {turn} {reason}"
        case AmbushOp(phase, blow):
            return f"ambush {phase} {blow}"
        case FinishAtOp(turn, back, reason):
            return f"finish-at {turn} {back} {reason}"
        case AckOp(count, fails):
            return f"{'nack' if fails else 'ack'} {count}"


def _render_on_session(operation: OpenOp | CloseOp | ForkOp | TruncateOp | ExpireOp) -> str:
    match operation:
        case OpenOp(session, streaming, idle_timeout_s, namespace, priority):
            words = ["open", session, "streaming" if streaming else "ordinary"]
            words += [f"idle={idle_timeout_s}"] if idle_timeout_s is not None else []
            words += [f"namespace={namespace}"] if namespace else []
            return " ".join(words + ([f"priority={priority}"] if priority else []))
        case CloseOp(session, drain):
            return f"{'drain-close' if drain else 'close'} {session}"
        case ForkOp(session, new_session, at_turn, at_len):
            words = ["fork", session, new_session]
            words += [f"at={at_turn}"] if at_turn is not None else []
            return " ".join(words + ([f"len={_render_length(at_len)}"] if at_len is not None else []))
        case TruncateOp(session, length, is_at_end):
            return f"truncate {session} {_render_length(length)}{' at-end' * is_at_end}"
        case ExpireOp(after_s):
            return f"expire {after_s}"


def _render_length(length: Length) -> str:
    return f"{length.value}{'%' if length.is_share else ''}"


def _render_turn(turn: TurnOp) -> str:
    words = ["turn", turn.session or "-", turn.turn, f"ids={_render_ids(turn.ids)}"]
    words += [f"parent={turn.parent}"] if turn.parent is not None else []
    words += [f"max={turn.max_tokens}"] if turn.max_tokens is not None else []
    words += [f"mode={turn.mode}"] if turn.mode is not TurnMode.APPEND else []
    words += [f"offset={_render_length(turn.offset)}"] if turn.offset is not None else []
    words += ["drop=yes"] if turn.is_dropping else []
    words += ["on_abort=keep"] if turn.is_keeping else []
    words += [f"priority={turn.priority}"] if turn.priority is not None else []
    words += [f"draft={turn.draft_tokens}"] if turn.draft_tokens else []
    words += ["ignore_eos=yes"] if turn.ignore_eos else []
    words += [f"namespace={turn.namespace}"] if turn.namespace else []
    if turn.sampling != GREEDY:
        how = turn.sampling
        words.append(f"sampling={how.temperature},{how.top_k},{how.top_p},{how.seed}")
    return " ".join(words)


def _render_ids(ids: tuple[int, ...]) -> str:
    runs: list[tuple[int, int]] = []
    for token_id in ids:
        if runs and token_id == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], token_id)
        else:
            runs.append((token_id, token_id))
    return ",".join(str(first) if first == last else f"{first}..{last}" for first, last in runs)


# Whole scripts


def render_script(scenario: Scenario) -> str:
    """A script that `read_script` makes the same scenario of. `drain` at its end is what every seed ends with."""
    return "\n".join((render_config(scenario), *(render_op(op) for op in scenario.ops), "drain")) + "\n"


def read_script(text: str) -> Scenario:
    """The scenario of a script. Comments, traces and expectations are left out. Raises ScriptError."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith((INDENT, "#", "expect-"))]
    if not lines or not lines[0].startswith("config"):
        raise ScriptError("a script begins with config")
    commands = lines[1:-1] if lines[-1] == "drain" else lines[1:]
    return parse_scenario(lines[0].split()[1:], tuple(op for line in commands for op in parse_ops(line)))
