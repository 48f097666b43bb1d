"""From one seed to a world: its limits, its model, and the list of operations."""

from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random

from engine.core.commands import AbortReason, FinishReason
from engine.core.config import CoreConfig
from engine.core.ids import SessionId, TurnId
from engine.core.sampling import GREEDY, SEED_MAX, Sampling
from tests.kit.shadow_model import ShadowModel
from tests.sim.ops import (
    AbortOp,
    AckOp,
    AmbushOp,
    AnswerOp,
    Blow,
    CloseOp,
    ExpireOp,
    FinishAtOp,
    Op,
    OpenOp,
    PlanOp,
    TurnOp,
)

NUM_OPS = 250
VOCAB_SIZE = 40
EOS_ID = 7
NUM_STEMS = 3
"""Prompts of one stem share a prefix."""
ABORT_REASONS = (
    AbortReason.CLIENT,
    AbortReason.DISCONNECT,
    AbortReason.DEADLINE,
    AbortReason.SLOW_READER,
    AbortReason.SHUTDOWN,
)
AMBUSHED_PHASES = ("running", "retracting", "retracting", "retracting", "committing", "committed", "rolling_back")
IDLE_TIMEOUT_S = 50.0
BAD_SAMPLINGS = (
    Sampling(temperature=float("nan")),
    Sampling(temperature=-0.5),
    Sampling(top_k=-1),
    Sampling(top_p=0.0),
    Sampling(top_p=1.5),
    Sampling(seed=-1),
    Sampling(seed=SEED_MAX + 1),
)
BAD_TIMEOUTS_S = (0.0, -1.0, float("inf"), float("nan"))


class Family(StrEnum):
    """What a seed presses for."""

    MIXED = "mixed"
    """Anything: limits of every size."""
    CROWD = "crowd"
    """Many short prompts with long answers in a small pool: turns are retracted."""
    QUEUE = "queue"
    """A long queue before one running turn: a turn that starves because of its place shows there."""
    BIG_AND_SMALL = "big_and_small"
    """A turn that needs the whole pool, among many that need next to nothing: it must not wait for ever."""
    UNDECORATED = "undecorated"
    """A cache without slots: streaming sessions are refused, all else is as ever."""


FAMILY_SHARES = {
    Family.MIXED: 0.52,
    Family.CROWD: 0.28,
    Family.QUEUE: 0.06,
    Family.BIG_AND_SMALL: 0.07,
    Family.UNDECORATED: 0.07,
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that a run depends on."""

    seed: int
    config: CoreConfig
    model: ShadowModel
    is_durable: bool
    """Commits wait for an `AckOp`; otherwise they are acknowledged at once."""
    ops: tuple[Op, ...]
    family: Family = Family.MIXED


def make_scenario(seed: int, num_ops: int = NUM_OPS, family: Family | None = None) -> Scenario:
    """The same seed makes the same scenario, under any hash seed. `family`: None leaves it to the seed."""
    rng = Random(seed)
    config = _make_config(rng)
    drawn = rng.choices(tuple(FAMILY_SHARES), tuple(FAMILY_SHARES.values()))[0]
    family = drawn if family is None else family
    config = _fit(rng, config, family)
    model = ShadowModel(VOCAB_SIZE, EOS_ID, rng.choice((0, 3, 10)))
    is_durable = rng.random() < 0.4 and family is not Family.BIG_AND_SMALL  # small turns must come and go
    writer = _Writer(rng, config, family)
    ops = tuple(writer.write() for _ in range(num_ops))
    return Scenario(seed, config, model, is_durable, ops, family)


def _make_config(rng: Random) -> CoreConfig:
    page_size = rng.choice((1, 2, 3, 4, 4, 16))
    pool_pages = rng.choice((4, 6, 8, 12, 16, 24, 40, 64))
    chunk_tokens = rng.choice((1, 3, 4, 7, 8, 16, 32))
    return CoreConfig(
        page_size=page_size,
        pool_pages=pool_pages,
        num_rows=rng.choice((2, 3, 3, 4, 5, 8)),
        context_len=rng.choice((16, 24, 48, 64, 128, 256)),
        vocab_size=VOCAB_SIZE,
        eos_ids=(EOS_ID,),
        chunk_tokens=chunk_tokens,
        step_tokens=max(8, rng.choice((chunk_tokens, chunk_tokens + 1, 2 * chunk_tokens, 64))),
        running_max=rng.choice((1, 2, 4, 8)),
        new_token_ratio=rng.choice((0.0, 0.0, 0.1, 0.1, 1.0)),
        waiting_max=rng.choice((2, 4, 64, 64)),
        in_flight_max=rng.choice((1, 2, 2)),
        sessions_max=rng.choice((3, 6, 8)),
        session_nodes_max=rng.choice((3, 64)),
        session_turns_max=rng.choice((1, 2, 4)),
        idle_timeout_s=IDLE_TIMEOUT_S,
        prefix_cache=rng.random() < 0.88,
    )


def _fit(rng: Random, config: CoreConfig, family: Family) -> CoreConfig:
    """The limits under which a family shows what it is there for."""
    match family:
        case Family.MIXED:
            return config
        case Family.CROWD:
            return _crowd(rng, config)
        case Family.QUEUE:
            return replace(config, running_max=1, waiting_max=48, context_len=64, pool_pages=64, chunk_tokens=32)
        case Family.BIG_AND_SMALL:
            small = replace(config, page_size=4, pool_pages=17, num_rows=8, context_len=64)
            return replace(small, chunk_tokens=32, step_tokens=64, running_max=6, waiting_max=24)
        case Family.UNDECORATED:
            return replace(config, streaming_sessions=False)


def _crowd(rng: Random, config: CoreConfig) -> CoreConfig:
    """Turns fit when they come, and then grow until none does."""
    pool_tokens = rng.randint(12, 48)
    return replace(
        config,
        pool_pages=max(4, 1 + pool_tokens // config.page_size),
        num_rows=9,
        running_max=8,
        new_token_ratio=0.0,
        step_tokens=64,
        context_len=64,
        waiting_max=64,
    )


class _Writer:
    """Writes operations one by one, remembering only the names that it has used."""

    def __init__(self, rng: Random, config: CoreConfig, family: Family) -> None:
        self._rng = rng
        self._family = family
        self._config = config
        self._room = max(2, min(config.context_len, config.pool_tokens))
        self._sessions = [SessionId(f"s{number}") for number in range(rng.choice((1, 2, 3, 5, 7)))]
        self._streaming_share = 0.15 if family is Family.UNDECORATED else rng.choice((0.5, 0.8, 1.0))
        self._is_streaming: dict[SessionId, bool] = {}
        self._turns: list[tuple[TurnId, SessionId | None]] = []
        self._prompt_share = rng.choice((0.08, 0.16, 0.3))
        self._output_share = rng.choice((0.03, 0.08, 0.25, 0.7))
        """Of all the room that there is: longest prompt and longest answer."""
        self._step_share = rng.choice((0.6, 0.75, 0.9))
        self._stateless_share = 0.25
        self._turn_share = 0.45
        self._fail_share = rng.choice((0.0, 0.01, 0.05))
        if family is Family.CROWD:
            self._prompt_share, self._output_share = 0.1, 0.8
        if family in (Family.QUEUE, Family.BIG_AND_SMALL):
            self._prompt_share, self._output_share, self._step_share = 0.1, 0.05, 0.5
            self._stateless_share = 0.9
        if family is Family.BIG_AND_SMALL:
            self._turn_share, self._output_share = 0.8, 0.035

    def write(self) -> Op:
        draw = self._rng.random()
        if draw < self._step_share:
            return PlanOp() if self._rng.random() < 0.54 else AnswerOp(fails=self._rng.random() < self._fail_share)
        if self._rng.random() < self._turn_share:
            return self._turn()
        return self._command(self._rng.uniform(0.45, 1.0))

    def _command(self, draw: float) -> Op:
        if draw < 0.53:
            return self._open()
        if draw < 0.73:
            return AckOp(self._rng.choice((1, 1, 4)), fails=self._rng.random() < 0.12)
        if draw < 0.77:
            return AmbushOp(self._rng.choice(AMBUSHED_PHASES), self._rng.choice(tuple(Blow)))
        if draw < 0.85:
            return AbortOp(self._recent_turn(), self._rng.choice(ABORT_REASONS))
        if draw < 0.91:
            back = self._rng.choice((-40, -1, 0, 0, 0, 1, 1, 2, 2, 4, 40))
            return FinishAtOp(self._recent_turn(), back, self._rng.choice((FinishReason.STOP, FinishReason.LENGTH)))
        if draw < 0.95:
            session = self._rng.choice(self._sessions)
            self._is_streaming.pop(session, None)
            return CloseOp(session)
        return ExpireOp(self._rng.choice((0.0, 5.0, 30.0, 80.0)))

    def _open(self, session: SessionId | None = None) -> OpenOp:
        session = self._rng.choice(self._sessions) if session is None else session
        streaming = self._rng.random() < self._streaming_share
        self._is_streaming[session] = streaming
        idle_timeout_s = self._rng.choice((None, None, 20.0, 200.0, 20.0, self._rng.choice(BAD_TIMEOUTS_S)))
        return OpenOp(session, streaming, idle_timeout_s, self._namespace())

    def _namespace(self) -> str:
        return self._rng.choice(("", "", "other"))

    def _turn(self) -> TurnOp | OpenOp:
        session = None if self._rng.random() < self._stateless_share else self._rng.choice(self._sessions)
        if session is not None and session not in self._is_streaming and self._rng.random() < 0.9:
            return self._open(session)
        is_new = not self._turns or self._rng.random() < 0.95
        turn = TurnId(f"t{len(self._turns)}") if is_new else self._rng.choice(self._turns)[0]
        operation = TurnOp(
            turn=turn,
            session=session,
            parent=self._parent(session),
            ids=self._prompt(session),
            max_tokens=self._max_tokens(),
            ignore_eos=self._rng.random() < 0.2,
            namespace=self._namespace() if session is None else "",
            sampling=self._sampling(),
        )
        self._turns.append((turn, session))
        return operation

    def _parent(self, session: SessionId | None) -> TurnId | None:
        if session is None or self._is_streaming.get(session, False):
            return TurnId("t0") if self._rng.random() < 0.03 else None
        siblings = [turn for turn, of_session in self._turns if of_session == session]
        if not siblings or self._rng.random() < 0.3:
            return TurnId("nobody") if self._rng.random() < 0.03 else None
        return self._rng.choice(siblings[-4:])

    def _prompt(self, session: SessionId | None) -> tuple[int, ...]:
        draw = self._rng.random()
        if draw < 0.02:
            return ()
        if draw < 0.04:
            return (1, self._rng.choice((-1, VOCAB_SIZE, VOCAB_SIZE + 5)))
        longest = max(1, int(self._room * self._prompt_share))
        length = self._rng.randint(1, longest)
        if self._family is Family.BIG_AND_SMALL:
            length = self._room - 6 if draw < 0.1 else self._rng.randint(1, 3)
        elif draw < 0.07:
            length = self._room + self._rng.randint(-2, 2)
        if session is None or self._rng.random() < 0.3:
            return self._stem_prompt(length)
        return tuple(self._rng.randrange(VOCAB_SIZE) for _ in range(max(1, length)))

    def _stem_prompt(self, length: int) -> tuple[int, ...]:
        """Of one stem all prompts start alike; some are prefixes of others, some end on a page edge."""
        stem = self._rng.randrange(NUM_STEMS)
        if self._rng.random() < 0.4:
            length += -length % self._config.page_size + self._rng.choice((-1, 0, 1))
        shared = [(stem * 11 + position * 5 + position // 7) % VOCAB_SIZE for position in range(max(1, length))]
        if self._rng.random() < 0.5:
            tail = self._rng.randint(0, min(3, len(shared) - 1))
            shared[len(shared) - tail :] = [self._rng.randrange(VOCAB_SIZE) for _ in range(tail)]
        return tuple(shared)

    def _max_tokens(self) -> int | None:
        draw = self._rng.random()
        if draw < 0.02:
            return self._rng.choice((0, -3))
        if draw < 0.06:
            return None
        if draw < 0.09:
            return 10_000
        return self._rng.randint(1, max(1, int(self._room * self._output_share)))

    def _sampling(self) -> Sampling:
        draw = self._rng.random()
        if draw < 0.02:
            return self._rng.choice(BAD_SAMPLINGS)
        if draw < 0.8:
            return GREEDY
        return Sampling(
            temperature=self._rng.choice((0.0, 0.5, 1.0, 100.0)),
            top_k=self._rng.choice((0, 1, 40)),
            top_p=self._rng.choice((1.0, 0.9, 1e-6)),
            seed=self._rng.choice((0, 1, SEED_MAX)),
        )

    def _recent_turn(self) -> TurnId:
        return self._rng.choice(self._turns[-6:])[0] if self._turns else TurnId("nobody")
