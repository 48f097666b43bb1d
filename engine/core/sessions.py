"""`SessionController`: open sessions, their histories, the right to run a turn, limits, idle expiry."""

import heapq
from dataclasses import dataclass, field

from engine.core.commands import AbortReason, Fork, Open, Submit, Truncate
from engine.core.config import CoreConfig
from engine.core.errors import Refusal, RefusalReason, require
from engine.core.events import EventLog, SessionOpened, TurnsForgotten
from engine.core.ids import Rid, SessionId, TurnId, count_ids, slice_ids
from engine.core.priorities import check_priority
from engine.core.turn_tree import LiveTurn, Nodes, TurnNode, cut_nodes, longest, path_nodes

HEAP_SLACK = 64


@dataclass(slots=True, eq=False)
class Session:
    """A conversation. A streaming one is a single line of ids; an ordinary one a tree of turns.

    `live` is the lease: turns that may run or wait. Only the end of that very turn clears it.
    """

    session_id: SessionId
    uid: int
    """Unique for the life of the process: a name may be opened again while the old session's KV still drains."""
    streaming: bool
    idle_timeout_s: float
    namespace: str
    priority: int
    trace_id: str
    caller_span: str
    idle_since: float
    history: bytes = b""
    """Streaming: all ids."""
    ends: dict[TurnId, int] = field(default_factory=dict)
    """Streaming: finished turns by name, each with the history's length at its end; the oldest may be forgotten."""
    nodes: dict[TurnId, TurnNode] = field(default_factory=dict)
    """Ordinary: finished turns, parents before their children."""
    live: dict[TurnId, LiveTurn] = field(default_factory=dict)
    closing: AbortReason | None = None
    closing_trace: tuple[str, str] = ("", "")
    """Trace id and span of who closes it."""

    @property
    def history_len(self) -> int:
        """Tokens of a streaming session; 0 for an ordinary one."""
        return count_ids(self.history)

    @property
    def longest_path(self) -> bytes:
        """The ids of a streaming session, or of an ordinary one's longest path: O(nodes + length)."""
        node = longest(self.nodes.values())
        return self.history if node is None else node.path_ids()

    @property
    def stored_len(self) -> int:
        """Tokens kept on the host for it: O(nodes)."""
        return self.history_len + sum(count_ids(node.own_ids) for node in self.nodes.values())

    def has_turn(self, turn_id: TurnId) -> bool:
        return turn_id in self.live or turn_id in self.nodes or turn_id in self.ends


class SessionController:
    """Every open session. It knows turns by id and nothing of KV."""

    def __init__(self, config: CoreConfig, log: EventLog) -> None:
        self._config = config
        self._log = log
        self._sessions: dict[SessionId, Session] = {}
        self._opened = 0
        self._expiries: list[tuple[float, int, SessionId]] = []
        self._stateless: dict[TurnId, LiveTurn] = {}
        self._stored_tokens = 0

    @property
    def stored_tokens(self) -> int:
        """Tokens of all histories: the counter. For the limit and for checks."""
        return self._stored_tokens

    def all(self) -> tuple[Session, ...]:
        """Open sessions, in the order in which they were opened."""
        return tuple(self._sessions.values())

    # Opening

    def open(self, command: Open, now: float) -> Session:
        """Refused: SESSION_EXISTS, SESSION_LIMIT, STREAMING_DISABLED, IDLE_TIMEOUT_INVALID, PRIORITY_INVALID."""
        timeout_s = self._config.idle_timeout_s if command.idle_timeout_s is None else command.idle_timeout_s
        self._check_name(command.session_id, "session_id")
        if command.streaming and not self._config.streaming_sessions:
            raise Refusal(RefusalReason.STREAMING_DISABLED, "this server runs without streaming sessions")
        if not 0 < timeout_s < float("inf"):
            message = f"idle_timeout_s must be above 0 and finite, not {timeout_s}"
            raise Refusal(RefusalReason.IDLE_TIMEOUT_INVALID, message, field="idle_timeout_s", value=str(timeout_s))
        check_priority(command.priority)
        return self._begin(
            Session(
                session_id=command.session_id,
                uid=self._opened + 1,
                streaming=command.streaming,
                idle_timeout_s=timeout_s,
                namespace=command.namespace,
                priority=command.priority,
                trace_id=command.trace_id,
                caller_span=command.caller_span,
                idle_since=now,
            )
        )

    def _check_name(self, name: SessionId, field_name: str) -> None:
        if name in self._sessions:
            message = f"session {name!r} is open already; choose another name, or close it first"
            raise Refusal(RefusalReason.SESSION_EXISTS, message, field=field_name, value=name)
        if len(self._sessions) >= self._config.sessions_max:
            limit = self._config.sessions_max
            message = f"{limit} sessions are open, the most allowed; close some, or let them expire"
            raise Refusal(RefusalReason.SESSION_LIMIT, message, limit=limit)

    def _begin(self, session: Session) -> Session:
        self._opened = session.uid
        self._sessions[session.session_id] = session
        self._stored_tokens += session.stored_len
        self._watch(session)
        opened = SessionOpened(
            session.session_id, session.streaming, session.trace_id, session.uid, session.caller_span
        )
        self._log.emit(opened)
        return session

    # Forking and truncating

    def fork(self, command: Fork, end: int, now: float) -> Session:
        """Opens a session with what another has: a streaming one's first `end` tokens, or an ordinary one's tree.

        Refused: SESSION_EXISTS, SESSION_LIMIT, HISTORY_LIMIT. The source and the point were found before.
        """
        source = self._sessions[command.session_id]
        self._check_name(command.new_session_id, "new_session_id")
        nodes: Nodes = source.nodes
        if command.at_turn is not None and not source.streaming:
            nodes = path_nodes(source.nodes[command.at_turn])
        session = Session(
            session_id=command.new_session_id,
            uid=self._opened + 1,
            streaming=source.streaming,
            idle_timeout_s=source.idle_timeout_s,
            namespace=source.namespace,
            priority=source.priority,
            trace_id=command.trace_id,
            caller_span=command.caller_span,
            idle_since=now,
            history=slice_ids(source.history, 0, end),
            ends={name: turn_end for name, turn_end in source.ends.items() if turn_end <= end},
            nodes=dict(nodes) if command.at_len is None else cut_nodes(nodes, end),
        )
        self._check_stored(session.stored_len)
        return self._begin(session)

    def truncate(self, command: Truncate) -> Session:
        """Cuts an idle session's histories to `length`. Refused: SESSION_UNKNOWN, SESSION_BUSY, LENGTH_INVALID."""
        session = self.find(command.session_id)
        if session.live:
            raise self._busy(session)
        length = command.length
        check_length(length, len_of(session), "length")
        self._stored_tokens -= session.stored_len
        left = cut_nodes(session.nodes, length)
        forgotten = [name for name, node in session.nodes.items() if name not in left or node.path_len > length]
        forgotten += [name for name, end in session.ends.items() if end > length]
        session.nodes = left
        session.ends = {name: end for name, end in session.ends.items() if end <= length}
        session.history = slice_ids(session.history, 0, length)
        self._stored_tokens += session.stored_len
        self._tell_forgotten(session, forgotten)
        return session

    def forget(self, session: Session, names: tuple[TurnId, ...]) -> None:
        """Takes finished turns of an ordinary session, with all below them, off its tree."""
        for name in names:
            self._stored_tokens -= count_ids(session.nodes.pop(name).own_ids)
        self._tell_forgotten(session, list(names))

    def _tell_forgotten(self, session: Session, names: list[TurnId]) -> None:
        if names:
            self._log.emit(TurnsForgotten(session.session_id, tuple(names)))

    # Finding

    def find(self, session_id: SessionId) -> Session:
        """Refused: SESSION_UNKNOWN, SESSION_CLOSING."""
        session = self._sessions.get(session_id)
        if session is None:
            message = f"no open session {session_id!r}"
            raise Refusal(RefusalReason.SESSION_UNKNOWN, message, field="session_id", value=session_id)
        if session.closing is not None:
            message = f"session {session_id!r} is closing and takes no more turns; open another one"
            raise Refusal(RefusalReason.SESSION_CLOSING, message, field="session_id", value=session_id)
        return session

    def has_turn(self, session_id: SessionId | None, turn_id: TurnId) -> bool:
        """Whether a turn of that name is live, or finished and part of its session."""
        if session_id is None:
            return turn_id in self._stateless
        session = self._sessions.get(session_id)
        return session is not None and session.has_turn(turn_id)

    def get(self, session_id: SessionId) -> Session | None:
        return self._sessions.get(session_id)

    def find_admissible(self, command: Submit) -> Session | None:
        """The session that may take this turn now; None for a stateless one.

        Refused: SESSION_UNKNOWN, SESSION_BUSY, TURN_EXISTS, HISTORY_LIMIT.
        """
        turn = command.turn_id
        if command.session_id is None:
            if turn in self._stateless:
                message = f"a turn {turn!r} without a session runs already"
                raise Refusal(RefusalReason.TURN_EXISTS, message, field="turn_id", value=turn)
            return None
        session = self.find(command.session_id)
        if session.has_turn(turn):
            message = f"session {session.session_id!r} has a turn {turn!r} already"
            raise Refusal(RefusalReason.TURN_EXISTS, message, field="turn_id", value=turn)
        if session.streaming and session.live:
            raise self._busy(session)
        self._check_stored(0)
        return session

    def _busy(self, session: Session) -> Refusal:
        running = next(iter(session.live))
        message = f"session {session.session_id!r} is busy with turn {running!r}; wait for its end or abort it"
        return Refusal(RefusalReason.SESSION_BUSY, message, field="session_id", value=running, limit=1)

    def check_room(self, session: Session, num_aborted: int, num_forgotten: int) -> None:
        """Whether one more turn is allowed once these are gone. Refused: SESSION_TURNS_LIMIT."""
        turns, nodes_max = self._config.session_turns_max, self._config.session_nodes_max
        name, num_live = session.session_id, len(session.live) - num_aborted
        num_nodes = len(session.nodes) - num_forgotten
        if num_live >= turns:
            message = f"session {name!r} runs {num_live} turns, the most allowed is {turns}; wait for one to end"
            raise Refusal(RefusalReason.SESSION_TURNS_LIMIT, message, value=num_live, limit=turns)
        if num_nodes + num_live >= nodes_max and not session.streaming:
            message = (
                f"session {name!r} remembers {num_nodes} turns, the most allowed is {nodes_max}; truncate it, or fork "
                "it at a turn"
            )
            raise Refusal(RefusalReason.SESSION_TURNS_LIMIT, message, value=num_nodes, limit=nodes_max)

    def _check_stored(self, added: int) -> None:
        limit = self._config.history_tokens_max
        if self._stored_tokens + added > limit or self._stored_tokens >= limit:
            more = f", with {added} more" if added else ""
            message = (
                f"the histories of all sessions have {self._stored_tokens} tokens{more}; the limit is {limit}: close "
                "or truncate sessions"
            )
            raise Refusal(RefusalReason.HISTORY_LIMIT, message, value=self._stored_tokens, limit=limit)

    # The life of a turn

    def live_of(self, session: Session | None) -> dict[TurnId, LiveTurn]:
        """The turns that run or wait in a session; with None those without one."""
        return self._stateless if session is None else session.live

    def begin_turn(self, session: Session | None, turn_id: TurnId, live_turn: LiveTurn) -> None:
        live = self.live_of(session)
        require(turn_id not in live, f"turn {turn_id!r} runs already")
        live[turn_id] = live_turn

    def commit_turn(self, session: Session, turn_id: TurnId, ids: bytes) -> None:
        """A live turn is part of the session from here on. `ids` are all of its path."""
        live = session.live[turn_id]
        if session.streaming:
            self._stored_tokens += count_ids(ids) - session.history_len
            session.history = ids
            session.ends[turn_id] = count_ids(ids)
            if len(session.ends) > self._config.session_nodes_max:
                del session.ends[next(iter(session.ends))]
            return
        place = live.place
        parent = session.nodes[place.parent] if place.parent is not None else None
        own_ids = slice_ids(ids, place.parent_len, count_ids(ids))
        self._stored_tokens += count_ids(own_ids)
        session.nodes[turn_id] = TurnNode(turn_id, parent, place.parent_len, count_ids(live.prompt), own_ids)

    def end_turn(self, session: Session | None, turn_id: TurnId, rid: Rid, now: float) -> None:
        """Gives the right to run back, by whoever holds it only."""
        live = self.live_of(session)
        require(turn_id in live and live[turn_id].rid == rid, f"turn {turn_id!r} is not rid {rid}'s to end")
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
        self._stored_tokens -= session.stored_len
        del self._sessions[session.session_id]


def len_of(session: Session) -> int:
    """Tokens of a streaming session, or of an ordinary one's longest path: O(nodes)."""
    return max((node.path_len for node in session.nodes.values()), default=session.history_len)


def check_length(length: int, limit: int, field_name: str) -> None:
    """Refused: LENGTH_INVALID."""
    if not 0 <= length <= limit:
        message = f"{field_name} must be from 0 to {limit}, the length of the session there, not {length}"
        raise Refusal(RefusalReason.LENGTH_INVALID, message, field=field_name, value=length, limit=limit)
