"""Forks and cuts of sessions: the history first, then the KV that goes with it."""

from engine.core.commands import Fork, Lengths, Truncate
from engine.core.events import EventLog, SessionForked, SessionTruncated
from engine.core.prefix_cache import PrefixCache
from engine.core.sessions import Session, SessionController, check_length, len_of
from engine.core.turns import find_turn


class Lineage:
    """Both are refused before anything changes."""

    def __init__(self, sessions: SessionController, cache: PrefixCache, log: EventLog) -> None:
        self._sessions = sessions
        self._cache = cache
        self._log = log

    def fork(self, command: Fork, now: float) -> Lengths:
        """Refused as `Fork` says."""
        source = self._sessions.find(command.session_id)
        end = _end_of(source, command)
        if command.at_len is not None:
            check_length(command.at_len, end, "at_length")
            end = command.at_len
        fork = self._sessions.fork(command, end, now)
        self._cache.open_session(fork)
        lengths = Lengths(len_of(fork), self._cache.fork_session(source, fork))
        self._log.emit(
            SessionForked(
                session_id=fork.session_id,
                uid=fork.uid,
                source_id=source.session_id,
                source_uid=source.uid,
                history_len=lengths.history_len,
                kv_len=lengths.kv_len,
            )
        )
        return lengths

    def truncate(self, command: Truncate) -> Lengths:
        """Refused as `Truncate` says."""
        session = self._sessions.truncate(command)
        lengths = Lengths(len_of(session), self._cache.truncate_session(session))
        self._log.emit(SessionTruncated(session.session_id, session.uid, lengths.history_len, lengths.kv_len))
        return lengths


def _end_of(source: Session, command: Fork) -> int:
    """Tokens up to the end of the turn to fork at, or all there are."""
    if command.at_turn is None:
        return len_of(source)
    found = find_turn(source, command.at_turn)
    return found if isinstance(found, int) else found.path_len
