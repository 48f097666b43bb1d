"""Runs a transcript: commands at the margin, and under each the indented trace that it leaves.

    config page=4 pool=16 rows=4 chunk=8      limits; first of all, once. A simulator's schedule is such a script too
    open s1 streaming|ordinary [idle=30]      namespace=NAME shares KV inside that name only; priority=1
    turn s1 t1 ids=1,2,7..12 [max=4]          session `-` is none; parent=t0, ignore_eos=yes, namespace=NAME,
                                              sampling=TEMPERATURE,TOP_K,TOP_P,SEED, mode=replace, offset=LENGTH,
                                              drop=yes, on_abort=keep, priority=1, draft=4
    fork s1 s2 [at=t1] [len=LENGTH]           LENGTH: 12 tokens, or 50% of all there is
    truncate s1 LENGTH [at-end]               at-end: to the last end of a turn up to there
    plan | answer | fail | step [times]       step is plan, then answer
    abort t1 [reason] | finish-at t1 2 stop   cut to two ids fewer than generated: `back`
    ambush retracting abort                   the next turn in that phase meets abort, close or finish_at at once
    ack | nack [count]                        the oldest commit, with `config ack=manual`
    close s1 | drain-close s1 | expire 10     ten seconds later
    flush                                     frees what the cache holds and nobody uses
    drain                                     steps until nothing is left to do, then closes everything
    expect-pool free=9 session=3              terms of the full pool; `expect-swa`, `expect-states`, `expect-rows`
    expect-slot s1 held 7 | expect-history s1 8 [t1]    of an ordinary session: of the path to that turn

Every law of the simulator is checked after each command as well.
"""

from dataclasses import dataclass, fields

from engine.core.core import Core
from engine.core.ids import SessionId, TurnId, count_ids
from engine.core.ownership import PoolKind
from engine.core.turns import Point
from tests.kit.trace import Trace
from tests.sim.records import OracleFired
from tests.sim.runner import MakeCore
from tests.sim.script import INDENT, ScriptError, parse_ops, parse_options, parse_scenario
from tests.sim.world import World

TERMS = {"free": "available", "session": "session_held", "request": "uncached"}
"""Short names of terms in `expect-pool`; the others are called as in `PoolBooks`."""
POOLS = {
    "expect-pool": PoolKind.FULL,
    "expect-swa": PoolKind.SWA,
    "expect-states": PoolKind.MAMBA,
    "expect-rows": PoolKind.ROWS,
}


@dataclass(frozen=True, slots=True)
class Line:
    """A command with its words, or a line that is only kept (a comment, an empty one)."""

    text: str
    words: tuple[str, ...]


def parse(text: str) -> list[Line]:
    """Commands, comments and empty lines in order; old trace lines are left out."""
    lines = [line for line in text.splitlines() if not line.startswith(INDENT)]
    return [Line(line, () if line.startswith("#") else tuple(line.split())) for line in lines]


def run_transcript(text: str, options: tuple[str, ...] = ()) -> str:
    """The same transcript with the trace that its commands leave now. `options` are put behind those of `config`.

    Raises OracleFired when a law is broken, ScriptError when the script makes no sense.
    """
    told: list[str] = []
    player: Player | None = None
    for line in parse(text):
        told.append(line.text)
        if not line.words:
            continue
        if line.words[0] == "config":
            player = Player((*line.words[1:], *options))
            continue
        if player is None:
            raise ScriptError(f"{line.text!r} before config")
        told.extend(INDENT + traced for traced in player.play(line))
    return "\n".join(told) + "\n"


def trace_failure(text: str, make_core: MakeCore = Core) -> str:
    """A transcript up to the command that breaks a law, and which law that was; all of it when none does."""
    told: list[str] = []
    player: Player | None = None
    for line in parse(text):
        told.append(line.text)
        if line.words and line.words[0] == "config":
            player = Player(line.words[1:], make_core)
        elif line.words and player is not None:
            try:
                told.extend(INDENT + traced for traced in player.play(line))
            except OracleFired as fired:
                told.extend(INDENT + traced for traced in player.trace())
                told.append(f"{INDENT}! {fired}")
                break
    return "\n".join(told) + "\n"


class Player:
    """One world, moved by words."""

    def __init__(self, options: tuple[str, ...], make_core: MakeCore = Core) -> None:
        scenario = parse_scenario(list(options))
        self._core = make_core(scenario.config)
        self._world = World(self._core, scenario.model, is_durable=scenario.is_durable)
        self._trace = Trace()

    def play(self, line: Line) -> list[str]:
        """Runs one command. Returns its trace."""
        name = line.words[0]
        if name.startswith("expect-"):
            self._expect(name, list(line.words[1:]), line.text)
        elif name == "drain":
            self._world.drain()
        else:
            for operation in parse_ops(line.text):
                self._world.run(operation)
        return self.trace()

    def trace(self) -> list[str]:
        """What was told since the last call."""
        return self._trace.lines(self._world.take_told())

    def _expect(self, name: str, rest: list[str], text: str) -> None:
        snapshot = self._core.snapshot()
        match name:
            case name if name in POOLS:
                kind = POOLS[name]
                books = next(books for books in snapshot.pools if books.pool is kind)
                told = {field.name: getattr(books, field.name) for field in fields(books)}
                for term, expected in parse_options(rest).items():
                    assert told[TERMS.get(term, term)] == int(expected), f"{text}: {books}"
            case "expect-slot":
                state = next(state for state in snapshot.sessions if state.session_id == rest[0])
                assert (state.slot, state.kv_committed_len) == (rest[1], int(rest[2])), f"{text}: {state}"
            case "expect-history":
                point = Point(TurnId(rest[2]) if len(rest) > 2 else None)
                history_len = count_ids(self._core.find_base(SessionId(rest[0]), point))
                assert history_len == int(rest[1]), f"{text}: {history_len}"
            case _:
                raise ScriptError(f"unknown: {text!r}")
