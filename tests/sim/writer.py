"""Writes the operations of a schedule, remembering only the names that it has used."""

from dataclasses import replace
from random import Random

from engine.core.commands import AbortReason, FinishReason, TurnMode
from engine.core.config import CoreConfig
from engine.core.ids import SessionId, TurnId
from engine.core.sampling import GREEDY, SEED_MAX, Sampling
from tests.sim.families import VOCAB_SIZE, Family, draw_shares
from tests.sim.ops import (
    AbortOp,
    AckOp,
    AmbushOp,
    AnswerOp,
    Blow,
    CloseOp,
    ExpireOp,
    FinishAtOp,
    ForkOp,
    Length,
    Op,
    OpenOp,
    PlanOp,
    TruncateOp,
    TurnOp,
)

NUM_STEMS = 3
"""Prompts of one stem share a prefix."""
ABORT_REASONS = (
    AbortReason.CLIENT,
    AbortReason.DISCONNECT,
    AbortReason.DEADLINE,
    AbortReason.SLOW_READER,
    AbortReason.SHUTDOWN,
)
AMBUSHED_PHASES = ("running", "committing", "committed", "committed", "rolling_back", "rolling_back")
CROWDED_PHASES = ("retracting", "retracting", "retracting", "retracting", "retracted", "committed", "rolling_back")
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
BAD_LENGTHS = (Length(-1), Length(10_000))
COMMANDS = ("open", "ambush", "abort", "finish_at", "close", "expire")
COMMAND_WEIGHTS = (0.14, 0.14, 0.18, 0.15, 0.1, 0.1)
LASTING_WEIGHTS = (0.02, 0.15, 0.2, 0.15, 0.02, 0.02)
FEW_SESSIONS = (Family.BRANCHES, Family.KINDS)
"""Where sessions are to grow old."""


class Writer:
    """Draws everything from one generator, so a seed says it all."""

    def __init__(self, rng: Random, config: CoreConfig, family: Family) -> None:
        self._rng = rng
        self._family = family
        self._config = config
        self._room = max(2, min(config.context_len, config.pool_tokens))
        self._sessions = [SessionId(f"s{number}") for number in range(self._num_sessions())]
        self._shares = draw_shares(rng, family)
        self._is_streaming: dict[SessionId, bool] = {}
        self._turns: list[TurnId] = []
        self._of_session: dict[SessionId | None, list[TurnId]] = {}
        self._session_of: dict[TurnId, SessionId | None] = {}
        self._due: list[Op] = [self._ambush() for _ in range(6 if family is Family.CROWD else rng.choice((0, 2, 5)))]
        """To come next."""
        self._num_forks = 0

    def _num_sessions(self) -> int:
        return self._rng.choice((1, 2) if self._family in FEW_SESSIONS else (1, 2, 3, 5, 7))

    def write(self) -> Op:
        shares = self._shares
        if self._due:
            return self._due.pop()
        if self._rng.random() < shares.step:
            return PlanOp() if self._rng.random() < 0.54 else AnswerOp(fails=self._rng.random() < shares.fail)
        if self._rng.random() < shares.turn:
            return self._turn()
        draw = self._rng.random()
        if draw < shares.lineage and self._is_streaming:
            return self._lineage()
        if draw < shares.lineage + shares.ack:
            return AckOp(self._rng.choice((1, 1, 4)), fails=self._rng.random() < 0.12)
        weights = LASTING_WEIGHTS if self._family in FEW_SESSIONS else COMMAND_WEIGHTS
        return self._command(self._rng.choices(COMMANDS, weights)[0])

    def _command(self, name: str) -> Op:
        match name:
            case "open":
                return self._open()
            case "ambush":
                return self._ambush()
            case "abort":
                turn = self._recent_turn()
                self._retry(turn)
                return AbortOp(turn, self._rng.choice(ABORT_REASONS))
            case "finish_at":
                back = self._rng.choice((-40, -1, 0, 0, 0, 1, 1, 2, 2, 4, 40))
                return FinishAtOp(self._recent_turn(), back, self._rng.choice((FinishReason.STOP, FinishReason.LENGTH)))
            case "close":
                session = self._rng.choice(self._sessions)
                self._is_streaming.pop(session, None)
                self._of_session.pop(session, None)
                return CloseOp(session, drain=self._rng.random() < 0.4)
            case _:
                return ExpireOp(self._rng.choice((0.0, 5.0, 5.0, 15.0, 30.0, 80.0)))

    def _ambush(self) -> AmbushOp:
        phases = CROWDED_PHASES if self._family is Family.CROWD else AMBUSHED_PHASES
        return AmbushOp(self._rng.choice(phases), self._rng.choice((*Blow, Blow.ABORT, Blow.ABORT)))

    # Sessions

    def _open(self, session: SessionId | None = None, *, is_again: bool = False) -> OpenOp:
        """`is_again`: as it was opened before."""
        session = self._rng.choice(self._sessions) if session is None else session
        streaming = self._rng.random() < self._shares.streaming
        if is_again:
            streaming = self._is_streaming.get(session, streaming)
        self._is_streaming[session] = streaming
        idle_timeout_s = self._rng.choice((None, None, 20.0, 200.0, 20.0, self._rng.choice(BAD_TIMEOUTS_S)))
        return OpenOp(session, streaming, idle_timeout_s, self._namespace(), self._priority() or 0)

    def _namespace(self) -> str:
        return self._rng.choice(("", "", "other"))

    def _priority(self) -> int | None:
        draw = self._rng.random()
        if draw < 0.01:
            return self._rng.choice((-1001, 1001, 10**9))
        if draw < self._shares.priority:
            return self._rng.choice((-2, -1, 0, 1, 1, 2, 5, 1000, -1000))
        return None

    def _lineage(self) -> Op:
        """Forks or cuts a session that may be there."""
        source = self._rng.choice(tuple(self._is_streaming))
        if self._rng.random() < 0.45:
            self._follow_up(source)
            if self._family is not Family.BRANCHES:
                return TruncateOp(source, self._length())
            # Between turns: its session has several, and the cut is often right where some of them begin.
            self._due.append(TruncateOp(source, self._length(), is_at_end=self._rng.random() < 0.6))
            self._due += [AckOp(4, fails=False), AnswerOp(fails=False), PlanOp()] * 6
            return AnswerOp(fails=False)
        self._num_forks += 1
        new = SessionId(f"f{self._num_forks}")
        if self._rng.random() < 0.35:
            new = self._rng.choice(self._sessions)
        at_turn = None
        if self._rng.random() < 0.4:
            at_turn = TurnId(self._rng.choice(("^0", "^1", "^2", "^3", "nobody")))
        self._is_streaming.setdefault(new, self._is_streaming[source])
        self._of_session.setdefault(new, list(self._of_session.get(source, [])))
        if new not in self._sessions:
            self._sessions = [*self._sessions, new][-8:]
        if self._is_streaming[source] and at_turn is None and self._rng.random() < 0.3:
            twin = self._turn_of(new)
            self._due += [ForkOp(new, SessionId(f"{new}x")), ForkOp(source, SessionId(f"{new}y"))]
            self._due += [AnswerOp(fails=False), PlanOp()] * 5
            self._due += [replace(twin, turn=TurnId(f"{twin.turn}twin"), session=source), twin]
            return ForkOp(source, new)
        self._follow_up(new)
        return ForkOp(source, new, at_turn, self._length() if self._rng.random() < 0.4 else None)

    def _follow_up(self, session: SessionId) -> None:
        """Often the session goes on at once, where it ends."""
        if self._rng.random() < 0.5:
            is_streaming = self._is_streaming.get(session, False)
            turn = self._turn_of(session)
            self._due.append(replace(turn, parent=None if is_streaming else TurnId("^0")))

    def _retry(self, turn: TurnId) -> None:
        """Often a broken off turn is tried again before what it left behind has settled."""
        session = self._session_of.get(turn)
        if session is not None and self._rng.random() < 0.4:
            self._due += [PlanOp(), self._turn_of(session)]

    def _length(self) -> Length:
        draw = self._rng.random()
        if draw < 0.12:
            return self._rng.choice(BAD_LENGTHS)
        if draw < 0.25:
            return Length(self._rng.choice((0, 0, 0, 1, 2, self._config.page_size, 2 * self._config.page_size)))
        return Length(self._rng.choice((10, 25, 50, 75, 90, 99, 100)), is_share=True)

    # Turns

    def _turn(self) -> TurnOp | OpenOp:
        session = None if self._rng.random() < self._shares.stateless else self._rng.choice(self._sessions)
        if session is not None and session not in self._is_streaming and self._rng.random() < 0.9:
            return self._open(session)
        turn = self._rewrite(self._turn_of(session))
        if session is None or self._rng.random() < 0.75:
            return turn
        self._due.append(turn)  # the session may have expired, or its fork was refused
        return self._open(session, is_again=True)

    def _turn_of(self, session: SessionId | None) -> TurnOp:
        is_new = not self._turns or self._rng.random() < 0.95
        turn = TurnId(f"t{len(self._turns)}") if is_new else self._rng.choice(self._turns)
        operation = TurnOp(
            turn=turn,
            session=session,
            parent=self._parent(session),
            ids=self._prompt(session),
            max_tokens=self._max_tokens(),
            ignore_eos=self._rng.random() < 0.2,
            namespace=self._namespace() if session is None else "",
            sampling=self._sampling(),
            is_keeping=self._rng.random() < (self._shares.keep if session is not None else 0.01),
            priority=self._priority(),
            draft_tokens=self._draft_tokens(),
        )
        self._turns.append(turn)
        self._of_session.setdefault(session, []).append(turn)
        self._session_of[turn] = session
        return operation

    def _rewrite(self, operation: TurnOp) -> TurnOp:
        """Some turns of ordinary sessions replace, drop, or go back; where that is refused, few try."""
        is_ordinary = operation.session is not None and not self._is_streaming.get(operation.session, False)
        if self._rng.random() >= (self._shares.rewrite if is_ordinary else 0.02):
            return operation
        kind = self._rng.randrange(5)
        if kind in (0, 1):
            operation = replace(operation, mode=TurnMode.REPLACE, parent=self._replaceable(operation))
            if self._rng.random() < 0.8:
                return operation
        if kind == 2 or self._rng.random() < 0.2:
            operation = replace(operation, is_dropping=operation.parent is not None or self._rng.random() < 0.4)
        return operation if kind == 2 else replace(operation, offset=self._length())

    def _replaceable(self, operation: TurnOp) -> TurnId | None:
        """An older turn, so that more comes after it; now and then everything."""
        if self._rng.random() < 0.2:
            return operation.parent
        return TurnId(self._rng.choice(("^0", "^2", "^3", "^4", "^5", "^6", "~0", "~0", "~1")))

    def _draft_tokens(self) -> int:
        draw = self._rng.random()
        if draw < 0.01:
            return self._rng.choice((-1, self._config.draft_tokens_max + 1))
        share = 0.02 if self._config.state_slots else self._shares.draft
        return self._rng.randint(1, self._config.draft_tokens_max) if draw < share else 0

    def _parent(self, session: SessionId | None) -> TurnId | None:
        if session is None or self._is_streaming.get(session, False):
            return TurnId("t0") if self._rng.random() < 0.03 else None
        siblings = self._of_session.get(session, [])
        if not siblings or self._rng.random() < 0.25:
            return TurnId("nobody") if self._rng.random() < 0.03 else None
        if self._rng.random() < 0.75:
            return TurnId(f"^{self._rng.choice((0, 0, 0, 1, 1, 2, 3))}")
        return self._rng.choice(siblings[-4:])

    def _prompt(self, session: SessionId | None) -> tuple[int, ...]:
        draw = self._rng.random()
        if draw < 0.02:
            return ()
        if draw < 0.04:
            return (1, self._rng.choice((-1, VOCAB_SIZE, VOCAB_SIZE + 5)))
        longest = max(1, int(self._room * self._shares.prompt))
        length = self._rng.randint(1, longest)
        if self._family is Family.BIG_AND_SMALL:
            length = self._room - 6 if draw < 0.1 else self._rng.randint(1, 3)
        elif draw < 0.07:
            length = self._room + self._rng.randint(-2, 2)
        if self._family is Family.SPECULATIVE and self._rng.random() < 0.7:
            first = 4 * self._rng.randrange(VOCAB_SIZE // 4)
            return tuple(first + position % 4 for position in range(max(1, length)))
        if session is None or self._rng.random() < (0.6 if self._family is Family.KINDS else 0.3):
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
        return self._rng.randint(1, max(1, int(self._room * self._shares.output)))

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
        newest = 2 if self._family is Family.KINDS else 6
        return self._rng.choice(self._turns[-newest:]) if self._turns else TurnId("nobody")
