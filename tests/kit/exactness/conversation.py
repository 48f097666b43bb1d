"""A conversation as its client sees it: what was said, and that each answer is what a cold run would give."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.core.commands import Applied, Close, Fork, Lengths, Open, Submit, Truncate
from engine.core.ids import Rid, SessionId, TurnId, pack_ids
from engine.core.sampling import GREEDY, Sampling
from tests.kit.exactness.driver import Driver, TurnRun

ColdRun = Callable[[tuple[int, ...], int, Sampling], list[int]]
"""(prompt, max_tokens, how ids are chosen) → the ids that follow the prompt."""
RetractAfter = Callable[[int], int | None]
"""Number of a turn, from 0 in order of submission → after how many of its plans it is retracted."""

BYSTANDER_LEN = 5
BYSTANDER_TOKENS = 9
MIDWAY = 2
"""Plans of the first turn after which something happens in its midst."""
LAST_PRIORITY = 1000


@dataclass(frozen=True, slots=True)
class Texts:
    """What is said, as token ids."""

    said: tuple[tuple[int, ...], ...]
    """The new ids of turns; the first are more than the largest chunk and the largest page."""
    stranger: tuple[int, ...]
    """What others say: bystanders, and those that take the pool."""
    max_tokens: int
    """Of each turn."""
    sampling: Sampling = GREEDY
    """Of each turn under test."""


@dataclass(frozen=True, slots=True)
class Say:
    """One turn. `base`: the ids that the engine must put before the new ones."""

    name: str
    base: Sequence[int]
    new: Sequence[int]
    session: str | None = None
    parent: str | None = None
    drop_previous_output: bool = False


class Conversation:
    """Turns under test, each round of them beside a bystander, so that no step has one row only.

    In round `intruded_round` the first retraction brings a turn of highest priority, which takes the whole pool before
    the retracted one comes back: nothing of its KV, its session's or the tree's is left then. In other rounds the
    retracted turn finds its history where it was put back.
    """

    def __init__(
        self,
        driver: Driver,
        cold_run: ColdRun,
        texts: Texts,
        retract_after: RetractAfter,
        *,
        draft_tokens: int,
        intruded_round: int | None,
    ) -> None:
        self.driver = driver
        self.texts = texts
        self._cold_run = cold_run
        self._retract_after = retract_after
        self._draft_tokens = draft_tokens
        self._intruded_round = intruded_round
        self._rids = itertools.count(1)
        self._turns = itertools.count()
        self._rounds = itertools.count()
        self._sessions: list[str] = []

    def open(self, session: str, *, streaming: bool) -> None:
        self.driver.apply(Open(SessionId(session), streaming))
        self._sessions.append(session)

    def fork(self, session: str, new_session: str, *, at_turn: str | None = None, at_len: int | None = None) -> None:
        turn_id = TurnId(at_turn) if at_turn is not None else None
        lengths = self.driver.apply(Fork(SessionId(session), SessionId(new_session), turn_id, at_len))
        self._sessions.append(new_session)
        self.driver.tally.forked_kv += _kv_len(lengths)

    def truncate(self, session: str, length: int) -> None:
        lengths = self.driver.apply(Truncate(SessionId(session), length))
        self.driver.tally.cut_kv += _kv_len(lengths)

    def round(self, *says: Say, midway: Callable[[], None] | None = None) -> list[tuple[int, ...]]:
        """Says all of these at once, and hears them out. Returns each one's whole text, its answer included.

        `midway` is called while the first one runs.
        """
        number = next(self._rounds)
        runs = [self._turn(say) for say in says]
        others = [self._intruder()] if number == self._intruded_round else [self._bystander(number)]
        for run in runs if number == self._intruded_round else [*runs, *others]:
            self.driver.submit(run)
        if number == self._intruded_round:
            (self.driver.intruder,) = others
        while midway is not None and runs[0].plans < MIDWAY:
            self.driver.step()
        if midway is not None:
            assert not runs[0].is_done, "its midst is over"
            midway()
        self.driver.settle()
        self._hear(runs, others, is_intruded=number == self._intruded_round)
        return [(*run.prompt, *run.output) for run in runs]

    def end(self) -> None:
        """Closes what was opened. Raises AssertionError when something is left then."""
        for session in self._sessions:
            self.driver.apply(Close(SessionId(session)))
        self.driver.settle()
        self.driver.assert_empty()

    def _hear(self, runs: list[TurnRun], others: list[TurnRun], *, is_intruded: bool) -> None:
        was_intruded = is_intruded and self.driver.intruder is None
        self.driver.intruder = None
        tally = self.driver.tally
        tally.intrusions += was_intruded
        tally.plans_of += [run.first_plans for run in runs]
        tally.retracted_after += [run.retracted_after for run in runs]
        tally.chunks_max = max(tally.chunks_max, *(run.first_chunks for run in runs))
        for run in [*runs, *others] if was_intruded or not is_intruded else runs:
            assert run.is_done, f"turn {run.command.turn_id} never ended"
            expected = self._cold_run(run.prompt, run.command.max_tokens or 0, run.command.sampling)
            where = f"turn {run.command.turn_id}, prompt of {len(run.prompt)}, retracted after {run.retracted_after}"
            assert run.output == expected, f"{where}: {run.output}, a cold run gives {expected}"

    def _turn(self, say: Say) -> TurnRun:
        command = Submit(
            rid=Rid(next(self._rids)),
            turn_id=TurnId(say.name),
            input_ids=pack_ids(say.new if say.session is not None else (*say.base, *say.new)),
            session_id=SessionId(say.session) if say.session is not None else None,
            parent=TurnId(say.parent) if say.parent is not None else None,
            drop_previous_output=say.drop_previous_output,
            draft_tokens=self._draft_tokens,
            sampling=self.texts.sampling,
            max_tokens=self.texts.max_tokens,
            ignore_eos=True,
        )
        return TurnRun(command, (*say.base, *say.new), self._retract_after(next(self._turns)))

    def _bystander(self, number: int) -> TurnRun:
        ids = self.texts.stranger[number : number + BYSTANDER_LEN]
        return self._other(f"bystander{number}", ids, BYSTANDER_TOKENS, priority=0)

    def _intruder(self) -> TurnRun:
        length = self.driver.config.pool_tokens - 2
        ids = tuple(itertools.islice(itertools.cycle(self.texts.stranger), length))
        return self._other("intruder", ids, 2, priority=LAST_PRIORITY)

    def _other(self, name: str, ids: tuple[int, ...], max_tokens: int, priority: int) -> TurnRun:
        command = Submit(
            rid=Rid(next(self._rids)),
            turn_id=TurnId(name),
            input_ids=pack_ids(ids),
            priority=priority,
            max_tokens=max_tokens,
            ignore_eos=True,
        )
        return TurnRun(command, ids)


def _kv_len(lengths: Applied) -> int:
    assert isinstance(lengths, Lengths), "forks and cuts are answered with lengths"
    return lengths.kv_len
