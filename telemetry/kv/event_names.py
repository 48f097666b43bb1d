"""Whose units are: the session and the turn behind each owner, for as long as it may have any."""

from dataclasses import dataclass

from engine.core.events import (
    KvMoved,
    SessionClosed,
    SessionOpened,
    SlotChanged,
    SlotState,
    TurnAccepted,
    TurnEnded,
)
from engine.core.ids import Rid, SessionId
from engine.core.ownership import OwnerKind

_REQUEST, _SESSION, _RELEASED = OwnerKind.REQUEST, OwnerKind.SESSION, SlotState.RELEASED

Named = tuple[str, str]
"""Session id and turn id, empty where there is none."""

_NOBODY: Named = ("", "")


@dataclass(slots=True, eq=False)
class _Turn:
    """One that is alive, or has ended and still has units that a step in flight may touch."""

    names: Named
    num_units: int = 0
    is_ended: bool = False


@dataclass(slots=True, eq=False)
class _Session:
    """One that is open, or whose slot still has something."""

    session_id: SessionId
    has_slot: bool
    is_open: bool = True


class OwnerNames:
    """As many names as there are owners: one goes with the last that its owner can have."""

    def __init__(self) -> None:
        self._turns: dict[int, _Turn] = {}
        self._sessions: dict[int, _Session] = {}

    def __len__(self) -> int:
        """Owners that are known."""
        return len(self._turns) + len(self._sessions)

    def accepted(self, event: TurnAccepted) -> None:
        self._turns[event.rid] = _Turn((event.session_id or "", event.turn_id))

    def ended(self, event: TurnEnded) -> None:
        turn = self._turns.get(event.rid)
        if turn is not None:
            turn.is_ended = True
            self._forget_turn(event.rid, turn)

    def opened(self, event: SessionOpened) -> None:
        self._sessions[event.uid] = _Session(event.session_id, event.streaming)

    def closed(self, event: SessionClosed) -> None:
        session = self._sessions.get(event.uid)
        if session is not None:
            session.is_open = False
            self._forget_session(event.uid, session)

    def slot_changed(self, event: SlotChanged) -> None:
        session = self._sessions.get(event.uid)
        if session is not None and event.target is _RELEASED:
            session.has_slot = False
            self._forget_session(event.uid, session)

    def moved(self, event: KvMoved) -> Named:
        """Whom the move is about: of a turn its session and itself, else the session."""
        source, target = event.source, event.target
        names = session_names = _NOBODY
        if source.kind is _REQUEST:
            names = self._leave(Rid(source.name), len(event.pages))
        elif source.kind is _SESSION:
            session_names = self._find_session(source.name)
        if target.kind is _REQUEST:
            names = self._join(Rid(target.name), len(event.pages))
        elif target.kind is _SESSION:
            session_names = self._find_session(target.name)
        return names if names is not _NOBODY else session_names

    def _find_session(self, uid: int) -> Named:
        session = self._sessions.get(uid)
        return _NOBODY if session is None else (session.session_id, "")

    def _join(self, rid: Rid, num_units: int) -> Named:
        turn = self._turns.get(rid)
        if turn is None:
            return _NOBODY
        turn.num_units += num_units
        return turn.names

    def _leave(self, rid: Rid, num_units: int) -> Named:
        turn = self._turns.get(rid)
        if turn is None:
            return _NOBODY
        turn.num_units -= num_units
        self._forget_turn(rid, turn)
        return turn.names

    def _forget_turn(self, rid: Rid, turn: _Turn) -> None:
        if turn.is_ended and not turn.num_units:
            del self._turns[rid]

    def _forget_session(self, uid: int, session: _Session) -> None:
        if not (session.is_open or session.has_slot):
            del self._sessions[uid]
