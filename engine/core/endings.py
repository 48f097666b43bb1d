"""The one way a turn ends: finish, commit, abort, and what becomes of its KV once no plan touches it any more."""

from engine.core.commands import AbortReason, FinishReason, OnAbort
from engine.core.config import CoreConfig
from engine.core.events import CommitRequested, EventLog, SessionClosed, TurnEnded, TurnRetracted, Usage
from engine.core.ownership import CACHED_KINDS
from engine.core.pools import Pools
from engine.core.prefix_cache import PrefixCache
from engine.core.priorities import last_attempt_rank
from engine.core.queues import Queues
from engine.core.releases import own_units
from engine.core.request import SETTLING, Phase, Request
from engine.core.sessions import Session, SessionController

NEVER_KEPT = (
    AbortReason.SESSION_CLOSED,
    AbortReason.SESSION_EXPIRED,
    AbortReason.COMMIT_FAILED,
    AbortReason.REPLACED,
)
"""Abort reasons that roll a turn back even when it asked to keep what it was given."""


class Endings:
    """Every exit of a turn runs through `_end`; every way back of its KV through `settle`."""

    def __init__(
        self,
        config: CoreConfig,
        pools: Pools,
        queues: Queues,
        cache: PrefixCache,
        sessions: SessionController,
        log: EventLog,
    ) -> None:
        self._page_size = config.page_size
        self._retractions_max = config.retractions_max
        self._pools = pools
        self._queues = queues
        self._cache = cache
        self._sessions = sessions
        self._log = log

    # Finishing

    def finish(self, request: Request, reason: FinishReason | AbortReason) -> None:
        """The turn is complete, or keeps what it has: it leaves the batch and waits for the shell's acknowledgement."""
        request.finish_reason = reason
        self._go(request, Phase.COMMITTING)
        self._log.emit(CommitRequested(request.rid, reason, request.output_len))

    def finish_at(self, request: Request, output_len: int, reason: FinishReason) -> None:
        """Cuts a turn to its first `output_len` generated ids and finishes it, also one that is committing.

        Its KV is cut when it is handed over: no holder keeps KV past the ids that it has.
        """
        if request.outcome is not None or not 1 <= output_len <= request.output_len:
            return
        request.cut(output_len)
        request.finish_detail = ""
        if request.phase is Phase.COMMITTING:
            request.finish_reason = reason
            self._log.emit(CommitRequested(request.rid, reason, output_len))
        else:
            self.finish(request, reason)

    def commit(self, request: Request, now: float) -> None:
        """The shell has acknowledged: the turn becomes part of its session."""
        if request.phase is not Phase.COMMITTING:
            return
        assert request.finish_reason is not None, f"rid {request.rid} commits without a reason"
        if request.session is not None:
            self._sessions.commit_turn(request.session, request.turn_id, bytes(request.ids))
        self._go(request, Phase.COMMITTED)
        self._end(request, request.finish_reason, now, request.finish_detail)

    # Breaking off

    def abort(self, request: Request, reason: AbortReason, now: float, detail: str = "") -> None:
        """Rolls a turn back to the last commit, or commits what it was given when it asked for that.

        A turn that is committing is finished and can't be aborted any more.
        """
        if request.outcome is not None or request.phase is Phase.COMMITTING:
            return
        if request.on_abort is OnAbort.KEEP and request.output_len > 0 and reason not in NEVER_KEPT:
            request.finish_detail = detail
            self.finish(request, reason)
        else:
            self._go(request, Phase.ROLLING_BACK)
            self._end(request, reason, now, detail)

    def fail_commit(self, request: Request, now: float) -> None:
        """The store failed: nothing of the turn stays."""
        if request.phase is Phase.COMMITTING:
            self._go(request, Phase.ROLLING_BACK)
            self._end(request, AbortReason.COMMIT_FAILED, now)

    def retract(self, request: Request) -> None:
        """Takes the turn's KV away to make room. It keeps its ids and its place in the queue; no ending."""
        request.epoch += 1
        request.pending_samples = 0
        request.is_prompt_cached = False
        request.retractions += 1
        if request.retractions >= self._retractions_max:
            request.is_last_attempt = True
            request.rank = last_attempt_rank(request.rank)
        self._go(request, Phase.RETRACTING)
        self._log.emit(TurnRetracted(request.rid, request.output_len))
        self.settle(request)

    def fit_pool(self, pool_tokens: int, now: float) -> None:
        """The pool has become smaller: turns that it can't hold to their end are cut, or end now.

        Those on their last attempt came in with room for all their tokens. From the first of them for which there is no
        such room any more they may be retracted again, so that those before them can end.
        """
        for request in tuple(self._queues.live.values()):
            if request.outcome is not None or request.phase is Phase.COMMITTING:
                continue
            room = pool_tokens - request.prompt_len
            if room > request.output_len:
                request.max_tokens = min(request.max_tokens, room)
            else:
                detail = (
                    f"{request.known_len} tokens and one to generate exceed the KV pool, which shrank to {pool_tokens}"
                )
                self.abort(request, AbortReason.FORWARD_FAILED, now, detail)
        for request in self._queues.running:
            if request.is_last_attempt:
                pool_tokens -= request.prompt_len + request.max_tokens + self._page_size
                request.is_last_attempt = pool_tokens >= 0

    # The shared ways out

    def _go(self, request: Request, phase: Phase) -> None:
        self._queues.leave(request)
        request.go(phase)
        self._cache.follow(request)

    def _end(self, request: Request, outcome: FinishReason | AbortReason, now: float, detail: str = "") -> None:
        request.outcome = outcome
        self.settle(request)
        session = request.session
        self._sessions.end_turn(session, request.turn_id, request.rid, now)
        usage = request.usage or Usage(request.prompt_len, 0, 0, 0)
        self._log.emit(
            TurnEnded(
                rid=request.rid,
                turn_id=request.turn_id,
                session_id=session.session_id if session is not None else None,
                outcome=outcome,
                usage=usage.with_output(request.output_len, request.retractions),
                history_len=self._history_len(request),
                is_committed=request.is_committed,
                detail=detail,
            )
        )
        if session is not None and session.closing is not None:
            self.close_if_idle(session)

    def _history_len(self, request: Request) -> int | None:
        session = request.session
        if session is None or session.streaming:
            return None if session is None else session.history_len
        return request.known_len if request.is_committed else request.base_len

    def settle(self, request: Request) -> None:
        """Hands the KV of a request on, if it gave it up and no plan in flight has it."""
        if request.in_flight > 0:
            self._drain(request)
            return
        match request.phase:
            case Phase.RETRACTING:
                self._cache.roll_back(request)
                request.go(Phase.WAITING)
                self._queues.wait(request)
            case Phase.ROLLING_BACK:
                self._cache.roll_back(request)
                self._done(request)
            case Phase.COMMITTED:
                self._cache.commit(request)
                self._done(request)
            case _:
                pass

    def _drain(self, request: Request) -> None:
        """Tells once that the units of a request that gave its KV up stay with it for its plans' sake."""
        if request.phase in SETTLING:
            for pool, units in own_units(request.kv):
                if pool in CACHED_KINDS:
                    self._pools.drain(request.owner, units, request.last_step, pool)

    def _done(self, request: Request) -> None:
        request.go(Phase.DONE)
        del self._queues.live[request.rid]
        self._pools.ledger.unfollow(request.owner)

    # Sessions

    def close(self, session: Session, reason: AbortReason, now: float, *, drain: bool = False) -> None:
        """Ends the turns of a session, or lets them finish to `drain` it, then the session.

        One that is committing commits first. A session that drains may be closed again without, to end its turns.
        """
        session.closing = session.closing or reason
        if not drain:
            for live in tuple(session.live.values()):
                self.abort(self._queues.live[live.rid], session.closing, now)
        self.close_if_idle(session)

    def close_if_idle(self, session: Session) -> None:
        """Takes a closing session off the books once its last turn has ended."""
        if session.live or session.closing is None or self._sessions.get(session.session_id) is not session:
            return
        self._sessions.remove(session)
        self._cache.close_session(session)
        trace_id, caller_span = session.closing_trace
        closed = SessionClosed(
            session.session_id, session.closing, session.history_len, session.uid, trace_id, caller_span
        )
        self._log.emit(closed)
