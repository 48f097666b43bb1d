"""A core that does everything at random, from a seed, and can be looked at between any two operations."""

from collections.abc import Callable, Iterator
from random import Random

from engine.core.commands import Abort, Close, Command, CommitAck, Fork, Open, Submit, Truncate
from engine.core.config import CoreConfig
from engine.core.core import Core
from engine.core.errors import Refusal
from engine.core.events import CommitRequested
from engine.core.ids import Rid, SessionId, TurnId, pack_ids
from engine.core.plan import StepFailure, StepOutcome, StepPlan, StepResult

CONFIG = CoreConfig(
    page_size=2,
    pool_pages=25,
    num_rows=5,
    context_len=24,
    vocab_size=50,
    chunk_tokens=6,
    step_tokens=16,
    in_flight_max=2,
    idle_timeout_s=20.0,
    retractions_max=2,
)
"""Small enough that turns are retracted, slots demoted and leaves evicted all the time."""
NAMES = tuple(SessionId(f"s{number}") for number in range(6))


class RandomTraffic:
    """One operation at a time. Prompts begin alike, so that they share nodes of the tree and split them."""

    def __init__(self, seed: int) -> None:
        self.core = Core(CONFIG)
        self._random = Random(seed)
        self._now = 0.0
        self._rids = 0
        self._plans: list[StepPlan] = []

    def run(self, operations: int) -> Iterator[str]:
        """Names each operation after it is done."""
        kinds: tuple[Callable[[], None], ...] = (self._plan, self._answer, self._command, self._expire)
        for _ in range(operations):
            (kind,) = self._random.choices(kinds, weights=(30, 30, 30, 10))
            kind()
            yield kind.__name__
            yield from self._take_events()

    def _take_events(self) -> Iterator[str]:
        for numbered in self.core.take_events():
            if isinstance(numbered.event, CommitRequested):
                self.core.apply(CommitAck(numbered.event.rid), self._now)
                yield "acknowledge"

    def _plan(self) -> None:
        plan = self.core.next_plan(self._now)
        if plan is not None:
            self._plans.append(plan)

    def _answer(self) -> None:
        if self._plans:
            self.core.advance(self._outcome(self._plans.pop(0)), self._now)

    def _outcome(self, plan: StepPlan) -> StepOutcome:
        if self._random.random() < 0.05:
            return StepFailure(plan.step, "drawn by lot")
        return StepResult(plan.step, tuple((self._random.randrange(3),) * row.num_samples for row in plan.rows))

    def _expire(self) -> None:
        self._now += self._random.choice((0.0, 1.0, 15.0))
        self.core.expire(self._now)

    def _command(self) -> None:
        try:
            self.core.apply(self._draw_command(), self._now)
        except Refusal:
            return  # as it should be: much of what is drawn can not be

    def _draw_command(self) -> Command:
        draw, name = self._random, self._random.choice(NAMES)
        (kind,) = draw.choices(
            ("open", "submit", "abort", "close", "fork", "truncate"), weights=(20, 40, 10, 6, 12, 12)
        )
        match kind:
            case "open":
                return Open(name, streaming=draw.random() < 0.7)
            case "submit":
                return self._draw_turn(name)
            case "abort":
                return Abort(Rid(draw.randint(max(1, self._rids - 4), self._rids + 1)))
            case "close":
                return Close(name, drain=draw.random() < 0.5)
            case "fork":
                return Fork(name, draw.choice(NAMES))
            case _:
                return Truncate(name, draw.randrange(12))

    def _draw_turn(self, name: SessionId) -> Submit:
        draw = self._random
        self._rids += 1
        ids = (*range(draw.choice((2, 4, 8))), *(draw.randrange(3) for _ in range(draw.randrange(1, 5))))
        session_id = name if draw.random() < 0.7 else None
        return Submit(
            Rid(self._rids),
            TurnId(f"t{self._rids}"),
            pack_ids(ids),
            session_id,
            max_tokens=draw.randint(1, 5),
            draft_tokens=draw.choice((0, 3)),
        )
