"""The oracle of order (L5): ranks inside a lane, tokens between lanes, and who has to give way."""

from collections import Counter
from collections.abc import Iterable, Mapping

from engine.core.config import CoreConfig
from engine.core.events import SlotState
from engine.core.ids import Rid, SessionId
from engine.core.plan import StepPlan
from tests.sim.records import SessionRecord, TurnRecord, expect
from tests.sim.slots import COMING_BACK

BEFORE_ALL = -(2**60)
"""In the rank of a turn on its last attempt."""


def common_len(left: list[int], right: list[int]) -> int:
    """Tokens that two sequences begin with alike."""
    limit = min(len(left), len(right))
    if left[:limit] == right[:limit]:
        return limit
    return next(index for index in range(limit) if left[index] != right[index])


class Fairness:
    """Two lanes, turns of sessions and turns without, each in the order of ranks."""

    def __init__(self, config: CoreConfig, sessions: Mapping[SessionId, SessionRecord], marks: Counter[str]) -> None:
        self._config = config
        self._sessions = sessions
        self._marks = marks
        self._given = {False: 0, True: 0}
        self._answered = 0
        self._last_lane: bool | None = None
        self._settling: list[TurnRecord] = []
        """Retracted while a plan in flight has them: they wait from its answer on."""

    def planned(self, plan: StepPlan, turns: Mapping[Rid, TurnRecord]) -> None:
        """Counts what each lane was given."""
        for row in plan.rows:
            self._given[_lane(turns[row.rid])] += row.query_len

    def answered(self, step: int, live: list[TurnRecord]) -> None:
        self._answered = step
        for turn in [turn for turn in self._settling if turn.planned_step <= step]:
            self._settling.remove(turn)
            self.began_to_wait(turn, live)

    def began_to_wait(self, turn: TurnRecord, live: Iterable[TurnRecord]) -> None:
        """A lane in which nobody else waits starts level with the other."""
        if turn.planned_step > self._answered:
            self._settling.append(turn)
        elif not any(other is not turn and _lane(other) == _lane(turn) and self._waits(other) for other in live):
            self._given[_lane(turn)] = max(self._given.values())

    def _waits(self, turn: TurnRecord) -> bool:
        is_asked_for = turn.is_live and turn.cut is None and turn.must_end_as is None
        return turn.is_waiting and is_asked_for and turn.planned_step <= self._answered

    def admitted(self, turn: TurnRecord, live: list[TurnRecord]) -> None:
        """Nobody of its lane with a lower rank was left out but for a reason, and its lane's turn it was."""
        lane = _lane(turn)
        is_contested = False
        for other in live:
            if not other.is_waiting or other is turn:
                continue
            if _lane(other) != lane:
                is_contested = is_contested or not self._is_skipped(other, live)
            elif other.rank < turn.rank:
                what = f"rid {other.rid} of rank {other.rank} waits, rid {turn.rid} of rank {turn.rank} is admitted"
                expect(self._is_skipped(other, live), "fair", what)
            elif other.arrival < turn.arrival:
                self._marks["priority overtakes"] += other.rank > turn.rank
        if is_contested:
            self._check_lane(lane, turn)
            self._marks["lane switch"] += self._last_lane == (not lane)
        self._last_lane = lane

    def _check_lane(self, lane: bool, turn: TurnRecord) -> None:
        mine, theirs = self._given[lane], self._given[not lane]
        slack = self._config.step_tokens
        what = f"rid {turn.rid} is admitted with {mine} tokens given to its lane, and {theirs} to the other that waits"
        expect(mine <= theirs + slack, "fair", what)

    def _is_skipped(self, turn: TurnRecord, live: list[TurnRecord]) -> bool:
        """Whether a turn that waits may be passed over: its KV or its slot is on its way, or it waits for a prefix."""
        if not self._waits(turn):
            return True
        session = self._sessions.get(turn.session_id) if turn.session_id is not None else None
        if session is not None and session.slot in COMING_BACK:
            return True
        if not self._may_wait_for_prefix(turn, session, live):
            return False
        self._marks["prefix wait"] += 1
        return True

    def _may_wait_for_prefix(self, turn: TurnRecord, session: SessionRecord | None, live: list[TurnRecord]) -> bool:
        """Whether some prompt that is being computed saves it tokens enough."""
        if not self._config.prefix_cache:
            return False
        page_size = self._config.page_size
        ids = turn.prompt + turn.output
        has_now = session.slot_len if session is not None and session.slot is SlotState.HELD else 0
        for other in live:
            if other.rank > turn.rank:
                continue
            if other.is_running and not other.has_sampled and other.namespace == turn.namespace:
                shared = min(common_len(ids, other.prompt + other.output), len(ids) - 1) // page_size * page_size
                if shared - has_now >= self._config.prefix_wait_tokens:
                    return True
        return False

    def retracted(self, turn: TurnRecord, live: list[TurnRecord]) -> None:
        """Only turns that may still be retracted, and of these the one that is last in order."""
        most = self._config.retractions_max
        expect(turn.retractions < most, "retraction", f"rid {turn.rid} is retracted again, after {most} times")
        guessing = [other.rid for other in live if other.is_running and other.drafts]
        expect(not guessing, "retraction", f"rid {turn.rid} gives way while guesses of {guessing} are out")
        for other in live:
            if other is turn or not other.is_running:
                continue
            what = f"rid {turn.rid} of rank {turn.rank} is retracted, and rid {other.rid} of rank {other.rank} is not"
            expect(other.rank < turn.rank, "fair", what)
            self._marks["protected from retraction"] += other.retractions >= most and other.arrival > turn.arrival


def _lane(turn: TurnRecord) -> bool:
    """Whether it is the lane of sessions."""
    return turn.session_id is not None
