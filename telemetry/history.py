"""The sink that remembers the last hour: books, turns and steps second by second, facts of sessions, and totals."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.core.events import (
    Draining,
    KvMoved,
    Numbered,
    Protected,
    SessionClosed,
    SessionForked,
    SessionOpened,
    SessionTruncated,
    SlotChanged,
    SlotState,
    StepAnswered,
    StepPlanned,
    TokensSampled,
    TurnAccepted,
    TurnAdmitted,
    TurnEnded,
    TurnRetracted,
    TurnsForgotten,
    Unprotected,
)
from engine.core.ids import Rid, StepNo
from engine.core.ownership import PoolKind
from engine.runtime.clock import Clock, MonotonicClock, WallClock
from telemetry.history_facts import SessionFacts, TurnTrack
from telemetry.history_intervals import INTERVAL_S, Intervals, Past, Standing
from telemetry.history_records import History, SessionFact, Totals
from telemetry.pool_terms import PoolTerms


class _Counts:
    """`Totals` in the making."""

    def __init__(self) -> None:
        self.turns_accepted = 0
        self.endings: Counter[str] = Counter()
        self.moves: Counter[str] = Counter()
        self.tokens_from_slot = 0
        self.tokens_from_tree = 0
        self.tokens_to_compute = 0
        self.tokens_generated = 0
        self.steps = 0
        self.steps_failed = 0
        self.retractions = 0
        self.demotions = 0
        self.sessions_opened = 0
        self.sessions_closed: Counter[str] = Counter()

    def totals(self) -> Totals:
        return Totals(
            turns_accepted=self.turns_accepted,
            endings=dict(self.endings),
            moves=dict(self.moves),
            tokens_from_slot=self.tokens_from_slot,
            tokens_from_tree=self.tokens_from_tree,
            tokens_to_compute=self.tokens_to_compute,
            tokens_generated=self.tokens_generated,
            steps=self.steps,
            steps_failed=self.steps_failed,
            retractions=self.retractions,
            demotions=self.demotions,
            sessions_opened=self.sessions_opened,
            sessions_closed=dict(self.sessions_closed),
        )


@dataclass(frozen=True, slots=True)
class Captured:
    """What was remembered at one moment. Nothing changes it: any thread may read it."""

    now_s: float
    past: Past
    facts: tuple[SessionFact, ...]
    totals: Totals

    def history(self) -> History:
        samples = self.past.samples()
        return History(
            now_s=self.now_s,
            started_s=self.past.started_s,
            interval_s=INTERVAL_S,
            samples=samples,
            facts=self.facts,
            facts_dropped=max(0, sum(sample.num_facts for sample in samples) - len(self.facts)),
            totals=self.totals,
        )


class HistorySink:
    """An `EventSink` of bounded size, for one thread: it is read where it is told.

    It must have heard every event since the core was made; it asks nothing of the core.
    """

    def __init__(self, sizes: Mapping[PoolKind, int], clock: Clock | None = None, wall: Clock | None = None) -> None:
        """`sizes`: units of each pool, padding included. `clock` is the one whose times `publish` gets, monotonic;
        `wall` tells seconds since 1970.
        """
        self._clock = clock or MonotonicClock()
        self._wall = wall or WallClock()
        self._pools = {pool: PoolTerms(pool, size) for pool, size in sizes.items()}
        self._facts = SessionFacts()
        self._planned: dict[StepNo, tuple[float, int]] = {}
        self._demoted_uid: int | None = None
        self._now_s = self._clock.now()
        self._handlers = self._make_handlers()
        self.begin()

    def begin(self) -> None:
        """The server begins to serve: what was told so far, the turn that warmed it up, is in no sample and no total.

        Books and open sessions stay as they are. Turns that are alive are forgotten: their endings are not counted.
        """
        self._facts.begin()
        self._counts = _Counts()
        self._num_running = self._num_waiting = 0
        self._intervals = Intervals(self._clock.now(), self._wall.now(), self._standing())

    def publish(self, events: tuple[Numbered, ...], now: float) -> None:
        if now >= self._intervals.open_until_s:
            self._intervals.turn(now, self._standing())
        self._now_s = now
        self._demoted_uid = None
        self._facts.set_time(self._intervals.unix_s(now))
        handlers, num_generated = self._handlers, 0
        for _, event in events:
            if type(event) is TokensSampled:  # one a row and step
                num_generated += len(event.token_ids)
                if event.output_start == 0:
                    self._first_token(event.rid)
            else:
                handle = handlers.get(type(event))
                if handle is not None:
                    handle(event)
        self._counts.tokens_generated += num_generated
        self._intervals.open.tokens_generated += num_generated
        self._intervals.open.num_facts += self._facts.take_num_told()

    def read(self, last_s: float | None = None) -> History:
        """What is remembered of the last so many seconds, or at all. O(samples + facts), 0.1 ms a sample."""
        return self.capture(last_s).history()

    def capture(self, last_s: float | None = None) -> "Captured":
        """The same as it is now, for another thread to put together: a copy of memory, about 1 ms."""
        intervals, now_s = self._intervals, self._clock.now()
        if now_s >= intervals.open_until_s:
            intervals.turn(now_s, self._standing())
        past = intervals.capture(last_s, now_s, self._standing())
        return Captured(intervals.unix_s(now_s), past, self._facts.since(past.begin_s), self._counts.totals())

    def _standing(self) -> Standing:
        pools = tuple(terms.books() for terms in self._pools.values())
        return Standing(pools, self._facts.num_open, self._num_running, self._num_waiting)

    def _make_handlers(self) -> dict[type, Callable[[Any], None]]:
        """By the event's type. What has no handler changes nothing that is remembered."""
        facts, pools = self._facts, self._pools

        def protected(event: Protected) -> None:
            pools[event.pool].lock(len(event.pages))

        def unprotected(event: Unprotected) -> None:
            pools[event.pool].lock(-len(event.pages))

        def draining(event: Draining) -> None:
            pools[event.pool].drain(event.pages)

        return {
            KvMoved: self._moved,
            Protected: protected,
            Unprotected: unprotected,
            Draining: draining,
            SlotChanged: self._slot_changed,
            SessionOpened: self._opened,
            SessionClosed: self._closed,
            SessionForked: facts.forked,
            SessionTruncated: self._truncated,
            TurnsForgotten: facts.forgotten,
            TurnAccepted: self._accepted,
            TurnAdmitted: self._admitted,
            TurnRetracted: self._retracted,
            TurnEnded: self._ended,
            StepPlanned: self._step_planned,
            StepAnswered: self._answered,
        }

    # Moves

    def _moved(self, event: KvMoved) -> None:
        self._pools[event.pool].move(event)
        move, open_one = event.move, self._intervals.open
        self._counts.moves[move] += 1
        open_one.moves[move] = open_one.moves.get(move, 0) + 1
        open_one.moved_units[move] = open_one.moved_units.get(move, 0) + len(event.pages)
        self._facts.moved(event)

    def _slot_changed(self, event: SlotChanged) -> None:
        if event.target is SlotState.DEMOTED and event.source is SlotState.HELD:
            self._counts.demotions += 1
            self._demoted_uid = event.uid
        self._facts.slot_changed(event)

    # Sessions

    def _opened(self, event: SessionOpened) -> None:
        self._counts.sessions_opened += 1
        self._facts.opened(event)

    def _closed(self, event: SessionClosed) -> None:
        self._counts.sessions_closed[event.reason] += 1
        self._facts.closed(event)

    def _truncated(self, event: SessionTruncated) -> None:
        if event.uid == self._demoted_uid:  # it was cut to where it has no KV: nothing went to the prefix cache
            self._counts.demotions -= 1
            self._demoted_uid = None
        self._facts.truncated(event)

    # Turns

    def _accepted(self, event: TurnAccepted) -> None:
        self._counts.turns_accepted += 1
        self._num_waiting += 1
        self._facts.accepted(event, self._now_s)

    def _admitted(self, event: TurnAdmitted) -> None:
        turn = self._facts.find_turn(event.rid)
        if turn is None:
            return
        self._set_admitted(turn, True)
        if event.attempt == 1:  # a retracted turn comes in again with the same context
            counts = self._counts
            counts.tokens_from_slot += event.tokens_from_slot
            counts.tokens_from_tree += event.tokens_from_tree
            counts.tokens_to_compute += event.tokens_to_compute
        self._facts.admitted(turn, event)

    def _first_token(self, rid: Rid) -> None:
        turn = self._facts.find_turn(rid)
        if turn is not None:
            self._intervals.open.first_token_s.add(self._now_s - turn.accepted_s)

    def _retracted(self, event: TurnRetracted) -> None:
        turn = self._facts.find_turn(event.rid)
        if turn is None:
            return
        self._counts.retractions += 1
        self._set_admitted(turn, False)
        self._facts.retracted(turn, event.output_len)

    def _set_admitted(self, turn: TurnTrack, is_admitted: bool) -> None:
        turn.is_admitted = is_admitted
        step = 1 if is_admitted else -1
        self._num_running += step
        self._num_waiting -= step

    def _ended(self, event: TurnEnded) -> None:
        turn = self._facts.find_turn(event.rid)
        if turn is None:
            return
        if turn.is_admitted:
            self._num_running -= 1
        else:
            self._num_waiting -= 1
        self._counts.endings[event.outcome] += 1
        self._intervals.open.turns_ended += 1
        self._facts.ended(turn, event)

    # Steps

    def _step_planned(self, event: StepPlanned) -> None:
        self._facts.set_step(event.step)
        self._planned[event.step] = self._now_s, event.num_tokens

    def _answered(self, event: StepAnswered) -> None:
        planned = self._planned.pop(event.step, None)
        if planned is None:
            return
        planned_s, num_tokens = planned
        counts, open_one = self._counts, self._intervals.open
        counts.steps += 1
        open_one.steps += 1
        open_one.step_s.add(self._now_s - planned_s)
        if event.failure is None:
            open_one.tokens_computed += num_tokens
        else:
            counts.steps_failed += 1
            open_one.steps_failed += 1
