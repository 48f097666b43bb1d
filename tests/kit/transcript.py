"""Runs a transcript: commands at the margin, and under each the indented trace that it leaves.

    config page=4 pool=16 rows=4 chunk=8      limits; first of all, once
    open s1 streaming|ordinary [idle=30]      namespace=NAME shares KV inside that name only
    turn s1 t1 ids=1,2,7..12 [max=4]          session `-` is none; parent=t0, ignore_eos=yes, namespace=NAME
    plan | answer | fail | step [times]       step is plan, then answer
    abort t1 [reason] | finish-at t1 2 stop   cut to two ids fewer than generated: `back`
    ack | nack                                the oldest commit, with `config ack=manual`
    close s1 | expire 10                      ten seconds later
    expect-pool free=9 session=3              terms of the full pool; `expect-rows` likewise
    expect-slot s1 held 7 | expect-history s1 8

Every law of the simulator is checked after each command as well.
"""

from dataclasses import dataclass, fields

from engine.core.commands import AbortReason, FinishReason
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.ids import SessionId, TurnId, count_ids
from engine.core.ownership import PoolKind
from tests.kit.shadow_model import ShadowModel
from tests.kit.trace import Trace
from tests.sim.ops import AbortOp, AckOp, AnswerOp, CloseOp, ExpireOp, FinishAtOp, Op, OpenOp, PlanOp, TurnOp
from tests.sim.world import World

INDENT = "  "
CONFIG_NAMES = {
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
}
DEFAULTS = {"page_size": 4, "pool_pages": 32, "num_rows": 5, "context_len": 64, "vocab_size": 100}
TERMS = {"free": "available", "session": "session_held", "request": "uncached"}
"""Short names of terms in `expect-pool`; the others are called as in `PoolBooks`."""


class TranscriptError(Exception):
    """The script itself makes no sense."""


@dataclass(frozen=True, slots=True)
class Line:
    """A command with its words, or a line that is only kept (a comment, an empty one)."""

    text: str
    words: tuple[str, ...]


def parse(text: str) -> list[Line]:
    """Commands, comments and empty lines in order; old trace lines are left out."""
    lines = [line for line in text.splitlines() if not line.startswith(INDENT)]
    return [Line(line, () if line.startswith("#") else tuple(line.split())) for line in lines]


def run_transcript(text: str) -> str:
    """The same transcript with the trace that its commands leave now. Raises OracleFired when a law is broken."""
    told: list[str] = []
    player: Player | None = None
    for line in parse(text):
        told.append(line.text)
        if not line.words:
            continue
        if line.words[0] == "config":
            player = Player(_options(line.words[1:]))
            continue
        if player is None:
            raise TranscriptError(f"{line.text!r} before config")
        told.extend(INDENT + traced for traced in player.play(line))
    return "\n".join(told) + "\n"


class Player:
    """One world, moved by words."""

    def __init__(self, options: dict[str, str]) -> None:
        self._core = Core(_make_config(options))
        eos_ids = self._core.config.eos_ids
        model = ShadowModel(
            self._core.config.vocab_size, eos_ids[0] if eos_ids else None, int(options.get("eos_percent", "0"))
        )
        self._world = World(self._core, model, is_durable=options.get("ack") == "manual")
        self._trace = Trace()

    def play(self, line: Line) -> list[str]:
        """Runs one command. Returns its trace."""
        name, *rest = line.words
        if name.startswith("expect-"):
            self._expect(name, rest, line.text)
            return []
        for operation in _operations(name, rest, line.text):
            self._world.run(operation)
        return [self._trace.line(told) for told in self._world.take_told()]

    def _expect(self, name: str, rest: list[str], text: str) -> None:
        snapshot = self._core.snapshot()
        match name:
            case "expect-pool" | "expect-rows":
                kind = PoolKind.FULL if name == "expect-pool" else PoolKind.ROWS
                books = next(books for books in snapshot.pools if books.pool is kind)
                told = {field.name: getattr(books, field.name) for field in fields(books)}
                for term, expected in _options(rest).items():
                    assert told[TERMS.get(term, term)] == int(expected), f"{text}: {books}"
            case "expect-slot":
                state = next(state for state in snapshot.sessions if state.session_id == rest[0])
                assert (state.slot, state.kv_committed_len) == (rest[1], int(rest[2])), f"{text}: {state}"
            case "expect-history":
                history_len = count_ids(self._core.find_history(SessionId(rest[0]), None))
                assert history_len == int(rest[1]), f"{text}: {history_len}"
            case _:
                raise TranscriptError(f"unknown: {text!r}")


def _operations(name: str, rest: list[str], text: str) -> list[Op]:
    match name, rest:
        case "open", [session, kind, *more]:
            options = _options(more)
            idle_timeout_s = float(options["idle"]) if "idle" in options else None
            return [OpenOp(SessionId(session), kind == "streaming", idle_timeout_s, options.get("namespace", ""))]
        case "turn", [session, turn, *more]:
            return [_turn(session, turn, _options(more))]
        case "plan", []:
            return [PlanOp()]
        case "answer", []:
            return [AnswerOp(fails=False)]
        case "fail", []:
            return [AnswerOp(fails=True)]
        case "step", times:
            return [PlanOp(), AnswerOp(fails=False)] * int(times[0] if times else 1)
        case "abort", [turn, *reason]:
            return [AbortOp(TurnId(turn), AbortReason(reason[0]) if reason else AbortReason.CLIENT)]
        case "finish-at", [turn, back, reason]:
            return [FinishAtOp(TurnId(turn), int(back), FinishReason(reason))]
        case (("ack" | "nack"), []):
            return [AckOp(1, fails=name == "nack")]
        case "close", [session]:
            return [CloseOp(SessionId(session))]
        case "expire", [after_s]:
            return [ExpireOp(float(after_s))]
        case _:
            raise TranscriptError(f"unknown: {text!r}")


def _turn(session: str, turn: str, options: dict[str, str]) -> TurnOp:
    return TurnOp(
        turn=TurnId(turn),
        session=None if session == "-" else SessionId(session),
        parent=TurnId(options["parent"]) if "parent" in options else None,
        ids=_ids(options["ids"]),
        max_tokens=int(options["max"]) if "max" in options else None,
        ignore_eos=options.get("ignore_eos") == "yes",
        namespace=options.get("namespace", ""),
    )


def _ids(text: str) -> tuple[int, ...]:
    """`1,2,7..9` is 1 2 7 8 9."""
    ids: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("..")
        ids.extend(range(int(first), int(last or first) + 1))
    return tuple(ids)


def _options(words: list[str] | tuple[str, ...]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


def _make_config(options: dict[str, str]) -> CoreConfig:
    limits = DEFAULTS | {CONFIG_NAMES[name]: int(value) for name, value in options.items() if name in CONFIG_NAMES}
    return CoreConfig(
        page_size=limits.pop("page_size"),
        pool_pages=limits.pop("pool_pages"),
        num_rows=limits.pop("num_rows"),
        context_len=limits.pop("context_len"),
        vocab_size=limits.pop("vocab_size"),
        eos_ids=tuple(int(eos) for eos in options.get("eos", "").split(",") if eos),
        streaming_sessions=options.get("streaming_sessions") != "off",
        prefix_cache=options.get("prefix_cache") != "off",
        chunk_tokens=limits.pop("chunk_tokens", 512),
        step_tokens=limits.pop("step_tokens", 2048),
        running_max=limits.pop("running_max", 64),
        waiting_max=limits.pop("waiting_max", 1024),
        in_flight_max=limits.pop("in_flight_max", 1),
        sessions_max=limits.pop("sessions_max", 1024),
    )
