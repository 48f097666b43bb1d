"""The sink that counts what the engine does, in plain numbers, for whoever reads metrics on another thread."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from engine.core.commands import AbortReason, FinishReason
from engine.core.events import (
    CommitRequested,
    Draining,
    KvMoved,
    Numbered,
    Protected,
    SessionClosed,
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
    Unprotected,
)
from engine.core.ids import StepNo
from engine.core.ownership import CIRCULATING_KINDS, MOVES, OwnerKind, PoolKind
from engine.core.snapshot import PoolBooks
from engine.runtime.step_times import StepTimes
from telemetry.metrics.buckets import BucketCounts
from telemetry.metrics.catalogue import find_metric
from telemetry.metrics.reading import MoveKey, Reading
from telemetry.metrics.turn_times import TurnTimes
from telemetry.names import MetricName
from telemetry.pool_terms import PoolTerms

Tallies = Mapping[str, Callable[[], int]]
"""Signal → how many by now. Asked on other threads."""
NO_TALLIES: Tallies = MappingProxyType({})

_CLOSE_REASONS = (AbortReason.SESSION_CLOSED, AbortReason.SESSION_EXPIRED)


class MetricsSink:
    """An `EventSink` and a `StepListener` for one thread. It takes no lock, and its size is that of the turns alive.

    It must have heard every event since the core was made. Until `begin()` it follows books and open sessions only.
    """

    def __init__(self, sizes: Mapping[PoolKind, int], model: str, losses: Tallies, sent: Tallies = NO_TALLIES) -> None:
        """`sizes`: units of each pool, padding included. `losses`: what was dropped of each signal so far, `sent`: what
        went out.
        """
        self.model = model
        self.losses, self.sent = losses, sent
        self.turn_times = TurnTimes()
        self.host_s = BucketCounts(find_metric(MetricName.STEP_HOST_TIME).buckets)
        self.device_s = BucketCounts(find_metric(MetricName.STEP_DEVICE_TIME).buckets)
        self.lag_s = BucketCounts(find_metric(MetricName.LOOP_LAG).buckets)
        self._pools = {pool: PoolTerms(pool, size) for pool, size in sizes.items()}
        self._moves: dict[MoveKey, int] = dict.fromkeys(_possible_moves(sizes), 0)
        self._moved_units = self._moves.copy()
        self._endings: dict[str, int] = dict.fromkeys((*FinishReason, *AbortReason), 0)
        self._closings: dict[str, int] = dict.fromkeys(_CLOSE_REASONS, 0)
        self._demotions = self._retractions = 0
        self._from_slot = self._from_tree = self._to_compute = self._generated = 0
        self._accepted = self._opened = self._sessions_open = 0
        self._steps = self._steps_failed = 0
        self._kv_events = 0
        self._newest_step = self._warmed_up_by = StepNo(0)
        self._now_s = 0.0
        self._demoted_uid: int | None = None
        self._is_serving = False
        self._changed = set(sizes)
        """Pools whose books are not what they were at the last reading."""
        self._books: dict[PoolKind, PoolBooks] = {}
        self._handlers = self._make_book_handlers()
        self._publish_reading()

    @property
    def reading(self) -> Reading:
        """The newest one, on any thread."""
        return self._reading

    def begin(self) -> None:
        """The server begins to serve: from now on it counts. Turns that are alive are not known, nor their steps."""
        self._is_serving = True
        self._warmed_up_by = self._newest_step
        self._handlers = self._make_book_handlers() | self._make_count_handlers()

    def publish(self, events: tuple[Numbered, ...], now: float) -> None:
        self._now_s = now
        self._demoted_uid = None
        handlers, num_generated = self._handlers, 0
        for _, event in events:
            if type(event) is TokensSampled:  # one a row and step
                num_generated += len(event.token_ids)
                if event.output_start == 0 and self._is_serving:
                    self.turn_times.first_sampled(event.rid, now)
            else:
                handle = handlers.get(type(event))
                if handle is not None:
                    handle(event)
        if self._is_serving:
            self._generated += num_generated
        self._publish_reading()

    def step_timed(self, times: StepTimes) -> None:
        if self._is_serving and times.step > self._warmed_up_by:
            self.host_s.add(times.host_s)
            if times.device_s is not None:
                self.device_s.add(times.device_s)

    def lag_measured(self, late_s: float) -> None:
        """The loop was so late once more."""
        if self._is_serving:
            self.lag_s.add(late_s)

    def _publish_reading(self) -> None:
        """All in one assignment: who reads sees the state before or after a `publish`, and nothing between."""
        if self._changed:
            self._books |= {pool: terms.books() for pool, terms in self._pools.items() if pool in self._changed}
            self._changed.clear()
            self._moves_read, self._moved_read = self._moves.copy(), self._moved_units.copy()
        self._reading = Reading(
            pools=tuple(self._books.values()),
            moves=self._moves_read,
            moved_units=self._moved_read,
            kv_events=self._kv_events,
            demotions=self._demotions,
            retractions=self._retractions,
            tokens_from_slot=self._from_slot,
            tokens_from_tree=self._from_tree,
            tokens_to_compute=self._to_compute,
            tokens_generated=self._generated,
            turns_accepted=self._accepted,
            endings=self._endings.copy(),
            turns_waiting=self.turn_times.num_waiting,
            turns_running=self.turn_times.num_running,
            sessions_opened=self._opened,
            sessions_closed=self._closings.copy(),
            sessions_open=self._sessions_open,
            steps=self._steps,
            steps_failed=self._steps_failed,
        )

    def _make_book_handlers(self) -> dict[type, Callable[[Any], None]]:
        """What is followed at all times, by the event's type."""
        pools = self._pools

        def protected(event: Protected) -> None:
            pools[event.pool].lock(len(event.pages))
            self._note_book_event(event.pool)

        def unprotected(event: Unprotected) -> None:
            pools[event.pool].lock(-len(event.pages))
            self._note_book_event(event.pool)

        def draining(event: Draining) -> None:
            pools[event.pool].drain(event.pages)
            self._note_book_event(event.pool)

        def planned(event: StepPlanned) -> None:
            self._newest_step = event.step

        return {
            KvMoved: self._moved,
            Protected: protected,
            Unprotected: unprotected,
            Draining: draining,
            SessionOpened: self._session_opened,
            SessionClosed: self._session_closed,
            StepPlanned: planned,
        }

    def _make_count_handlers(self) -> dict[type, Callable[[Any], None]]:
        """What is counted while it serves."""
        return {
            SlotChanged: self._slot_changed,
            SessionTruncated: self._truncated,
            TurnAccepted: self._turn_accepted,
            TurnAdmitted: self._turn_admitted,
            TurnRetracted: self._turn_retracted,
            CommitRequested: self._commit_requested,
            TurnEnded: self._turn_ended,
            StepAnswered: self._step_answered,
        }

    # Moves

    def _note_book_event(self, pool: PoolKind) -> None:
        self._kv_events += 1
        self._changed.add(pool)

    def _moved(self, event: KvMoved) -> None:
        self._pools[event.pool].move(event)
        self._note_book_event(event.pool)
        if self._is_serving:
            key = event.move, event.pool
            self._moves[key] += 1
            self._moved_units[key] += len(event.pages)

    def _slot_changed(self, event: SlotChanged) -> None:
        if event.target is SlotState.DEMOTED and event.source is SlotState.HELD:
            self._demotions += 1
            self._demoted_uid = event.uid

    def _truncated(self, event: SessionTruncated) -> None:
        if event.uid == self._demoted_uid:  # it was cut to where it has no KV: nothing went to the prefix cache
            self._demotions -= 1
            self._demoted_uid = None

    # Sessions

    def _session_opened(self, _event: SessionOpened) -> None:
        self._sessions_open += 1
        self._opened += self._is_serving

    def _session_closed(self, event: SessionClosed) -> None:
        self._sessions_open -= 1
        if self._is_serving:
            self._closings[event.reason] += 1

    # Turns

    def _turn_accepted(self, event: TurnAccepted) -> None:
        self._accepted += 1
        self.turn_times.accepted(event, self._now_s)

    def _turn_admitted(self, event: TurnAdmitted) -> None:
        is_known = self.turn_times.set_running(event.rid, True)
        if is_known and event.attempt == 1:  # a retracted turn comes in again with the same context
            self._from_slot += event.tokens_from_slot
            self._from_tree += event.tokens_from_tree
            self._to_compute += event.tokens_to_compute

    def _turn_retracted(self, event: TurnRetracted) -> None:
        self._retractions += self.turn_times.set_running(event.rid, False)

    def _commit_requested(self, event: CommitRequested) -> None:
        self.turn_times.commit_requested(event, self._now_s)

    def _turn_ended(self, event: TurnEnded) -> None:
        if self.turn_times.ended(event, self._now_s):
            self._endings[event.outcome] += 1

    # Steps

    def _step_answered(self, event: StepAnswered) -> None:
        if event.step > self._warmed_up_by:
            self._steps += 1
            self._steps_failed += event.failure is not None


def _possible_moves(pools: Mapping[PoolKind, int]) -> list[MoveKey]:
    """A counter that is there from the start, at 0, shows its first increase too."""
    return [
        (move, pool)
        for pool in pools
        for move, rule in MOVES.items()
        if rule.target in (*CIRCULATING_KINDS[pool], OwnerKind.QUARANTINED)
        and set(rule.sources) & set(CIRCULATING_KINDS[pool])
    ]
