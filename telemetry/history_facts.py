"""What became of sessions and of their KV: the newest facts, and what has to be known to name whose they are."""

from collections import deque
from dataclasses import dataclass

from engine.core.events import (
    KvMoved,
    SessionClosed,
    SessionForked,
    SessionOpened,
    SessionTruncated,
    SlotChanged,
    SlotState,
    TurnAccepted,
    TurnAdmitted,
    TurnEnded,
    TurnsForgotten,
)
from engine.core.ids import Rid, SessionId, StepNo, TurnId
from engine.core.ownership import Move, OwnerKind, PoolKind
from telemetry.history_records import SessionFact

FACTS_MAX = 8_000
"""About 350 bytes each."""
_NAMED_TURNS_MAX = 4
_REQUEST, _SESSION, _RELEASED = OwnerKind.REQUEST, OwnerKind.SESSION, SlotState.RELEASED
_FULL, _ROWS, _GRANT, _RELEASE = PoolKind.FULL, PoolKind.ROWS, Move.GRANT, Move.RELEASE


@dataclass(slots=True, eq=False)
class _Named:
    """A session that is open, or whose slot still has something."""

    session_id: SessionId
    has_slot: bool
    is_open: bool = True


@dataclass(slots=True, eq=False)
class TurnTrack:
    """A turn that is alive, or that has ended and still has units which a step in flight may touch."""

    session_id: SessionId | None
    session_number: int
    turn_id: TurnId
    accepted_s: float
    """Monotonic."""
    is_admitted: bool = False
    is_ended: bool = False
    num_units: int = 0
    """Of all pools."""


class SessionFacts:
    """Bounded. Moves of rows are left out, and grants, of which each page of output is one; so is what turns release of
    windows and states, for those that run do that as often."""

    def __init__(self) -> None:
        self._kept: deque[SessionFact] = deque(maxlen=FACTS_MAX)
        self._turns: dict[Rid, TurnTrack] = {}
        self._sessions: dict[int, _Named] = {}
        self._numbers: dict[SessionId, int] = {}
        self._time_s = 0.0
        self._step = StepNo(0)
        self._num_told = 0

    def begin(self) -> None:
        """Forgets facts and turns. Sessions stay known."""
        self._kept.clear()
        self._turns.clear()

    def since(self, time_s: float) -> tuple[SessionFact, ...]:
        """Those kept that were told at `time_s` or later, oldest first. O(kept)."""
        return tuple(fact for fact in self._kept if fact.time_s >= time_s)

    def set_time(self, time_s: float) -> None:
        """Facts from now on are of this time."""
        self._time_s = time_s

    def set_step(self, step: StepNo) -> None:
        self._step = step

    def take_num_told(self) -> int:
        """Facts that were told since the last call."""
        num_told, self._num_told = self._num_told, 0
        return num_told

    @property
    def num_open(self) -> int:
        """Open sessions."""
        return len(self._numbers)

    # Turns

    def find_turn(self, rid: Rid) -> TurnTrack | None:
        """None for one that was accepted before the beginning, and for one that is gone."""
        return self._turns.get(rid)

    def accepted(self, event: TurnAccepted, now_s: float) -> None:
        session_id = event.session_id
        number = 0 if session_id is None else self._numbers.get(session_id, 0)
        turn = self._turns[event.rid] = TurnTrack(session_id, number, event.turn_id, now_s)
        self._tell_of(turn, "turn_accepted", f"new={event.new_len}", event.context_len)

    def admitted(self, turn: TurnTrack, event: TurnAdmitted) -> None:
        slot, tree, computed = event.tokens_from_slot, event.tokens_from_tree, event.tokens_to_compute
        self._tell_of(turn, "turn_admitted", f"slot={slot} tree={tree} computed={computed}", slot + tree + computed)

    def retracted(self, turn: TurnTrack, output_len: int) -> None:
        self._tell_of(turn, "turn_retracted", "", output_len)

    def ended(self, turn: TurnTrack, event: TurnEnded) -> None:
        self._tell_of(turn, "turn_ended", event.outcome, event.usage.output_len)
        if event.history_len is not None:
            self._tell_of(turn, "history", "committed" if event.is_committed else "rolled_back", event.history_len)
        turn.is_ended = True
        if not turn.num_units:
            del self._turns[event.rid]

    def _tell_of(self, turn: TurnTrack, what: str, detail: str, tokens: int) -> None:
        if turn.session_id is not None:
            self._tell(turn.session_id, turn.session_number, what, detail, tokens=tokens, turn_id=turn.turn_id)

    # Sessions

    def opened(self, event: SessionOpened) -> None:
        self._numbers[event.session_id] = event.uid
        self._sessions[event.uid] = _Named(event.session_id, event.streaming)
        self._tell(event.session_id, event.uid, "opened", "streaming" if event.streaming else "ordinary")

    def closed(self, event: SessionClosed) -> None:
        self._numbers.pop(event.session_id, None)
        self._tell(event.session_id, event.uid, "closed", event.reason, tokens=event.history_len)
        named = self._sessions.get(event.uid)
        if named is not None:
            named.is_open = False
            self._forget(event.uid, named)

    def forked(self, event: SessionForked) -> None:
        self._tell(event.session_id, event.uid, "forked", event.source_id, tokens=event.history_len)

    def truncated(self, event: SessionTruncated) -> None:
        self._tell(event.session_id, event.uid, "truncated", "", tokens=event.history_len)

    def forgotten(self, event: TurnsForgotten) -> None:
        names, num_others = event.turn_ids[:_NAMED_TURNS_MAX], len(event.turn_ids) - _NAMED_TURNS_MAX
        told = ", ".join(names) + (f" and {num_others} more" if num_others > 0 else "")
        self._tell(event.session_id, self._numbers.get(event.session_id, 0), "forgotten", told)

    def slot_changed(self, event: SlotChanged) -> None:
        self._tell(event.session_id, event.uid, "kv", event.target, tokens=event.kv_committed_len)
        named = self._sessions.get(event.uid)
        if named is not None and event.target is _RELEASED:
            named.has_slot = False
            self._forget(event.uid, named)

    def _forget(self, uid: int, named: _Named) -> None:
        if not (named.is_open or named.has_slot):
            del self._sessions[uid]

    # Moves

    def moved(self, event: KvMoved) -> None:
        source, target, num_units = event.source, event.target, len(event.pages)
        turn = session = None
        number = 0
        if source.kind is _REQUEST:
            turn = self._leave(Rid(source.name), num_units)
        elif source.kind is _SESSION:
            number = source.name
            session = self._sessions.get(number)
        if target.kind is _REQUEST:
            turn = self._turns.get(Rid(target.name))
            if turn is not None:
                turn.num_units += num_units
        elif target.kind is _SESSION:
            number = target.name
            session = self._sessions.get(number)
        if event.pool is _ROWS or event.move is _GRANT:
            return
        if event.pool is not _FULL and event.move is _RELEASE and source.kind is _REQUEST:
            return
        turn_id = "" if turn is None else turn.turn_id
        if session is not None:
            self._tell(session.session_id, number, event.move, event.pool, units=num_units, turn_id=turn_id)
        elif turn is not None and turn.session_id is not None:
            self._tell(turn.session_id, turn.session_number, event.move, event.pool, units=num_units, turn_id=turn_id)

    def _leave(self, rid: Rid, num_units: int) -> TurnTrack | None:
        turn = self._turns.get(rid)
        if turn is not None:
            turn.num_units -= num_units
            if turn.is_ended and not turn.num_units:
                del self._turns[rid]
        return turn

    def _tell(
        self,
        session_id: str,
        number: int,
        what: str,
        detail: str,
        *,
        units: int = 0,
        tokens: int = 0,
        turn_id: str = "",
    ) -> None:
        self._num_told += 1
        self._kept.append(
            SessionFact(self._time_s, session_id, number, what, detail, units, tokens, turn_id, self._step)
        )
