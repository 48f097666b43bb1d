"""The one way a turn ends: finish, commit, abort, and what becomes of its KV once no plan touches it any more."""

from engine.core.commands import AbortReason, FinishReason
from engine.core.events import CommitRequested, EventLog, SessionClosed, TurnEnded, TurnRetracted, Usage
from engine.core.ids import TOKEN_BYTES
from engine.core.prefix_cache import PrefixCache
from engine.core.queues import Queues
from engine.core.request import Phase, Request
from engine.core.sessions import Session, SessionController


class Endings:
    """Every exit of a turn runs through `_end`; every way back of its KV through `settle`."""

    def __init__(self, queues: Queues, cache: PrefixCache, sessions: SessionController, log: EventLog) -> None:
        self._queues = queues
        self._cache = cache
        self._sessions = sessions
        self._log = log

    # Finishing

    def finish(self, request: Request, reason: FinishReason) -> None:
        """The turn is complete: it leaves the batch and waits for the shell's acknowledgement."""
        request.finish_reason = reason
        self._go(request, Phase.COMMITTING)
        self._log.emit(CommitRequested(request.rid, reason, request.output_len))

    def finish_at(self, request: Request, output_len: int, reason: FinishReason) -> None:
        """Cuts a turn to its first `output_len` generated ids and finishes it, also one that is committing.

        Its KV is cut when it is handed over: no holder keeps KV past the ids that it has.
        """
        if request.outcome is not None or not 1 <= output_len <= request.output_len:
            return
        del request.ids[(request.prompt_len + output_len) * TOKEN_BYTES :]
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
            self._sessions.commit_turn(
                request.session, request.turn_id, request.parent, request.base_len, bytes(request.ids)
            )
        self._go(request, Phase.COMMITTED)
        self._end(request, request.finish_reason, now)

    # Breaking off

    def abort(self, request: Request, reason: AbortReason, now: float, detail: str = "") -> None:
        """Rolls a turn back to the last commit. A turn that is committing is finished and can't be aborted any more."""
        if request.outcome is None and request.phase is not Phase.COMMITTING:
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
        self._go(request, Phase.RETRACTING)
        self._log.emit(TurnRetracted(request.rid, request.output_len))
        self.settle(request)

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
                detail=detail,
            )
        )
        if session is not None and session.closing is not None:
            self.close_if_idle(session)

    def _history_len(self, request: Request) -> int | None:
        session = request.session
        if session is None or session.streaming:
            return None if session is None else session.history_len
        return request.known_len if isinstance(request.outcome, FinishReason) else request.base_len

    def settle(self, request: Request) -> None:
        """Hands the KV of a request on, if it gave it up and no plan in flight has it."""
        if request.in_flight > 0:
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

    def _done(self, request: Request) -> None:
        request.go(Phase.DONE)
        del self._queues.live[request.rid]

    # Sessions

    def close(self, session: Session, reason: AbortReason, now: float) -> None:
        """Ends the turns of a session, then the session. One that is committing commits first."""
        if session.closing is not None:
            return
        session.closing = reason
        for rid in tuple(session.live.values()):
            self.abort(self._queues.live[rid], reason, now)
        self.close_if_idle(session)

    def close_if_idle(self, session: Session) -> None:
        """Takes a closing session off the books once its last turn has ended."""
        if session.live or session.closing is None or self._sessions.get(session.session_id) is not session:
            return
        self._sessions.remove(session)
        self._cache.close_session(session)
        self._log.emit(SessionClosed(session.session_id, session.closing, session.history_len, session.uid))
