"""`SessionController`: open sessions, the tree of their finished turns, the right to run a turn, idle expiry."""

import heapq
from dataclasses import dataclass, field

from engine.core.commands import AbortReason, Open, Submit
from engine.core.config import CoreConfig
from engine.core.errors import Refusal, RefusalReason, require
from engine.core.events import EventLog, SessionOpened
from engine.core.ids import TOKEN_BYTES, Rid, SessionId, TurnId, count_ids

HEAP_SLACK = 64


@dataclass(frozen=True, slots=True)
class TurnNode:
    """A finished turn of an ordinary session: its own ids, input and output, behind those of its parent's path.

    A streaming session is one line: its ids are in `Session.history`, its nodes only remember the names.
    """

    turn_id: TurnId
    parent: "TurnNode | None"
    own_ids: bytes

    def path_ids(self) -> bytes:
        """All ids from the root to this turn's end: O(length)."""
        runs: list[bytes] = []
        node: TurnNode | None = self
        while node is not None:
            runs.append(node.own_ids)
            node = node.parent
        return b"".join(reversed(runs))


@dataclass(slots=True, eq=False)
class Session:
    """A conversation. A streaming one is a single line of ids; an ordinary one a tree of turns.

    `live` is the lease: turn ids that may run or wait, each with its rid. Only the end of that very turn clears it.
    """

    session_id: SessionId
    uid: int
    """Unique for the life of the process: a name may be opened again while the old session's KV still drains."""
    streaming: bool
    idle_timeout_s: float
    namespace: str
    trace_id: str
    idle_since: float
    history: bytes = b""
    nodes: dict[TurnId, TurnNode] = field(default_factory=dict)
    live: dict[TurnId, Rid] = field(default_factory=dict)
    closing: AbortReason | None = None

    @property
    def history_len(self) -> int:
        return count_ids(self.history)


class SessionController:
    """Every open session. It knows turns by id and nothing of KV."""

    def __init__(self, config: CoreConfig, log: EventLog) -> None:
        self._config = config
        self._log = log
        self._sessions: dict[SessionId, Session] = {}
        self._opened = 0
        self._expiries: list[tuple[float, int, SessionId]] = []
        self._stateless: dict[TurnId, Rid] = {}

    def all(self) -> tuple[Session, ...]:
        """Open sessions, in the order in which they were opened."""
        return tuple(self._sessions.values())

    def open(self, command: Open, now: float) -> Session:
        """Refused: SESSION_EXISTS, SESSION_LIMIT, STREAMING_DISABLED, IDLE_TIMEOUT_INVALID."""
        name = command.session_id
        timeout_s = self._config.idle_timeout_s if command.idle_timeout_s is None else command.idle_timeout_s
        if name in self._sessions:
            raise Refusal(
                RefusalReason.SESSION_EXISTS, f"session {name!r} is open already", field="session_id", value=name
            )
        if len(self._sessions) >= self._config.sessions_max:
            limit = self._config.sessions_max
            raise Refusal(RefusalReason.SESSION_LIMIT, f"{limit} sessions are open, the most allowed", limit=limit)
        if command.streaming and not self._config.streaming_sessions:
            raise Refusal(RefusalReason.STREAMING_DISABLED, "this server runs without streaming sessions")
        if not 0 < timeout_s < float("inf"):
            message = f"idle_timeout_s must be above 0 and finite, not {timeout_s}"
            raise Refusal(RefusalReason.IDLE_TIMEOUT_INVALID, message, field="idle_timeout_s", value=str(timeout_s))
        self._opened += 1
        session = Session(name, self._opened, command.streaming, timeout_s, command.namespace, command.trace_id, now)
        self._sessions[name] = session
        self._watch(session)
        self._log.emit(SessionOpened(name, command.streaming, command.trace_id, session.uid))
        return session

    def find(self, session_id: SessionId) -> Session:
        """Refused: SESSION_UNKNOWN, also for a session that is closing."""
        session = self._sessions.get(session_id)
        if session is None or session.closing is not None:
            message = f"no open session {session_id!r}"
            raise Refusal(RefusalReason.SESSION_UNKNOWN, message, field="session_id", value=session_id)
        return session

    def get(self, session_id: SessionId) -> Session | None:
        return self._sessions.get(session_id)

    def find_admissible(self, command: Submit) -> Session | None:
        """The session that may take this turn now; None for a stateless one.

        Refused: SESSION_UNKNOWN, SESSION_BUSY, SESSION_TURNS_LIMIT, TURN_EXISTS, PARENT_WITHOUT_SESSION.
        """
        if command.session_id is None:
            if command.parent is not None:
                raise Refusal(RefusalReason.PARENT_WITHOUT_SESSION, "a parent needs a session", field="parent_turn_id")
            if command.turn_id in self._stateless:
                message = f"a turn {command.turn_id!r} without a session runs already"
                raise Refusal(RefusalReason.TURN_EXISTS, message, field="turn_id", value=command.turn_id)
            return None
        session = self.find(command.session_id)
        name, turn = session.session_id, command.turn_id
        if turn in session.live or turn in session.nodes:
            message = f"session {name!r} has a turn {turn!r} already"
            raise Refusal(RefusalReason.TURN_EXISTS, message, field="turn_id", value=turn)
        if session.streaming and session.live:
            running = next(iter(session.live))
            message = f"session {name!r} is busy with turn {running!r}; wait for its end or abort it"
            raise Refusal(RefusalReason.SESSION_BUSY, message, field="session_id", value=running, limit=1)
        self._check_room(session)
        return session

    def _check_room(self, session: Session) -> None:
        turns, nodes = self._config.session_turns_max, self._config.session_nodes_max
        if len(session.live) >= turns:
            message = f"session {session.session_id!r} runs {len(session.live)} turns, the most allowed is {turns}"
            raise Refusal(RefusalReason.SESSION_TURNS_LIMIT, message, value=len(session.live), limit=turns)
        if len(session.nodes) + len(session.live) >= nodes and not session.streaming:
            message = (
                f"session {session.session_id!r} remembers {len(session.nodes)} turns, the most allowed is {nodes}"
            )
            raise Refusal(RefusalReason.SESSION_TURNS_LIMIT, message, value=len(session.nodes), limit=nodes)

    # The life of a turn

    def live_of(self, session: Session | None) -> dict[TurnId, Rid]:
        """The turns that run or wait in a session; with None those without one."""
        return self._stateless if session is None else session.live

    def begin_turn(self, session: Session | None, turn_id: TurnId, rid: Rid) -> None:
        live = self.live_of(session)
        require(turn_id not in live, f"turn {turn_id!r} runs already")
        live[turn_id] = rid

    def commit_turn(self, session: Session, turn_id: TurnId, parent: TurnId | None, base_len: int, ids: bytes) -> None:
        """A turn is part of the session from here on. `ids` are all of its path, the first `base_len` its parent's."""
        if not session.streaming:
            node = session.nodes[parent] if parent is not None else None
            session.nodes[turn_id] = TurnNode(turn_id, node, ids[base_len * TOKEN_BYTES :])
            return
        session.history = ids
        session.nodes[turn_id] = TurnNode(turn_id, None, b"")
        if len(session.nodes) > self._config.session_nodes_max:
            del session.nodes[next(iter(session.nodes))]

    def end_turn(self, session: Session | None, turn_id: TurnId, rid: Rid, now: float) -> None:
        """Gives the right to run back, by whoever holds it only."""
        live = self.live_of(session)
        require(live.get(turn_id) == rid, f"turn {turn_id!r} is not rid {rid}'s to end")
        del live[turn_id]
        if session is not None:
            session.idle_since = now
            self._watch(session)

    # Expiry

    def _watch(self, session: Session) -> None:
        due = session.idle_since + session.idle_timeout_s
        heapq.heappush(self._expiries, (due, session.uid, session.session_id))
        if len(self._expiries) > 2 * len(self._sessions) + HEAP_SLACK:  # stale ones: closed, or used since
            self._expiries = [(s.idle_since + s.idle_timeout_s, s.uid, s.session_id) for s in self._sessions.values()]
            heapq.heapify(self._expiries)

    def find_expired(self, now: float) -> list[Session]:
        """Sessions that were without a turn for their timeout, none with a live turn. O(log n) for each."""
        expired: list[Session] = []
        while self._expiries and self._expiries[0][0] <= now:
            _, uid, name = heapq.heappop(self._expiries)
            session = self._sessions.get(name)
            if session is None or session.uid != uid or session.live or session.closing is not None:
                continue  # closed, or busy: the end of its turn watches it again
            if session.idle_since + session.idle_timeout_s <= now:
                expired.append(session)
        return expired

    def remove(self, session: Session) -> None:
        assert not session.live, f"session {session.session_id!r} still runs {list(session.live)}"
        del self._sessions[session.session_id]
