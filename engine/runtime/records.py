"""What is kept of finished turns, for clients that lost their stream, and of turn ids that were freed."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.core.ids import SessionId, TurnId
from engine.runtime.config import RuntimeConfig
from engine.runtime.handle import Finished, Started, StreamReason, StreamRefusal

RECORD_BYTES = 1024
"""What a record takes beside its ids and texts: counted generously."""
FORGOTTEN_MAX = 64
"""Names that are remembered, for each session, of finished turns whose records are gone."""
ATTEMPTS_MAX = 64
"""Names that are remembered, for each session, of turns that were rolled back."""
STATELESS_ATTEMPTS_MAX = 4096
"""The same for all turns without a session."""


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A turn that was committed. Its text is made anew from its ids."""

    content: bytes
    started: Started
    finished: Finished
    output_ids: bytes
    """int32 bytes."""
    stop_strings: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        """Memory, rounded up."""
        return RECORD_BYTES + len(self.output_ids) + 4 * sum(map(len, self.stop_strings))


@dataclass(slots=True)
class _Scope:
    """One session's turns, or all that have none. Oldest first, each bounded."""

    kept: dict[TurnId, TurnRecord] = field(default_factory=dict)
    forgotten: dict[TurnId, None] = field(default_factory=dict)
    attempts: dict[TurnId, int] = field(default_factory=dict)


class TurnRecords:
    """Changed by the loop alone, in the order of the core's events; bounded in number, time and bytes."""

    def __init__(self, config: RuntimeConfig) -> None:
        self._config = config
        self._scopes: dict[SessionId | None, _Scope] = {}
        self._ages: OrderedDict[tuple[SessionId | None, TurnId], float] = OrderedDict()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Memory that records take."""
        return self._num_bytes

    def __len__(self) -> int:
        return len(self._ages)

    def add(self, session_id: SessionId | None, turn_id: TurnId, record: TurnRecord, now_s: float) -> None:
        """Keeps the record of a turn that was committed, at the expense of the oldest ones."""
        scope = self._scopes.setdefault(session_id, _Scope())
        assert turn_id not in scope.kept, f"turn {turn_id!r} was recorded already"
        scope.attempts.pop(turn_id, None)
        scope.kept[turn_id] = record
        self._ages[session_id, turn_id] = now_s
        self._num_bytes += record.num_bytes
        if session_id is not None and len(scope.kept) > self._config.session_records_max:
            self._forget(session_id, next(iter(scope.kept)))
        while self._num_bytes > self._config.record_bytes_max:
            self._forget(*next(iter(self._ages)))

    def free(self, session_id: SessionId | None, turn_id: TurnId, attempt: int) -> None:
        """A turn was rolled back, or forgotten, in this attempt: the next one of its name is counted from there."""
        attempts = self._scopes.setdefault(session_id, _Scope()).attempts
        attempts.pop(turn_id, None)
        attempts[turn_id] = attempt
        _trim(attempts, STATELESS_ATTEMPTS_MAX if session_id is None else ATTEMPTS_MAX)

    def next_attempt(self, session_id: SessionId | None, turn_id: TurnId) -> int:
        scope = self._scopes.get(session_id)
        return 1 if scope is None else scope.attempts.get(turn_id, 0) + 1

    def find(self, session_id: SessionId | None, turn_id: TurnId) -> TurnRecord | None:
        """Raises StreamRefusal, TURN_FORGOTTEN, when there was one."""
        scope = self._scopes.get(session_id, _Scope())
        if turn_id in scope.forgotten:
            raise forgotten(turn_id)
        return scope.kept.get(turn_id)

    def drop_session(self, session_id: SessionId) -> None:
        """The session is closed: nothing of it stays."""
        scope = self._scopes.pop(session_id, _Scope())
        for turn_id, record in scope.kept.items():
            del self._ages[session_id, turn_id]
            self._num_bytes -= record.num_bytes

    def drop_turns(self, session_id: SessionId, turn_ids: Iterable[TurnId]) -> None:
        """These turns are no longer part of their session. A later one of such a name is another attempt."""
        scope = self._scopes.get(session_id, _Scope())
        for turn_id in turn_ids:
            record = scope.kept.pop(turn_id, None)
            if record is not None:
                del self._ages[session_id, turn_id]
                self._num_bytes -= record.num_bytes
            if record is not None or turn_id in scope.forgotten:
                scope.forgotten.pop(turn_id, None)
                self.free(session_id, turn_id, 1 if record is None else record.started.attempt)

    def expire(self, now_s: float) -> None:
        """Drops records of turns without a session that are old enough. O(dropped)."""
        scope = self._scopes.get(None)
        while scope is not None and scope.kept:
            oldest = next(iter(scope.kept))
            if now_s - self._ages[None, oldest] < self._config.stateless_record_s:
                return
            self._forget(None, oldest)

    def _forget(self, session_id: SessionId | None, turn_id: TurnId) -> None:
        scope = self._scopes[session_id]
        self._num_bytes -= scope.kept.pop(turn_id).num_bytes
        del self._ages[session_id, turn_id]
        if session_id is not None:
            scope.forgotten[turn_id] = None
            _trim(scope.forgotten, FORGOTTEN_MAX)


def forgotten(turn_id: TurnId) -> StreamRefusal:
    message = f"turn {turn_id!r} is part of its session, and its stream is not kept; what it left can be gone on from"
    return StreamRefusal(StreamReason.TURN_FORGOTTEN, message, field="turn_id", value=turn_id)


def _trim(names: dict[TurnId, None] | dict[TurnId, int], size_max: int) -> None:
    while len(names) > size_max:
        del names[next(iter(names))]
