"""The turns that are alive: for each what it tells, its deadline, its grace without a reader, who waits for its end."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from engine.core.commands import AbortReason, FinishReason
from engine.core.ids import Rid, SessionId, TurnId
from engine.runtime.handle import Failure, Finished, Started, TurnRequest
from engine.runtime.streams import LiveStream, TurnFeed


@dataclass(slots=True)
class LiveTurn:
    rid: Rid
    request: TurnRequest
    attempt: int
    feed: TurnFeed
    ended: asyncio.Future[None]
    is_ending: bool = False
    """Whether its abort is on the way to the core."""
    deadline: asyncio.TimerHandle | None = None
    grace: asyncio.TimerHandle | None = None
    drafted: int = 0
    """Ids that were guessed and verified."""
    accepted: int = 0

    @property
    def is_resumable(self) -> bool:
        return bool(self.request.content)


class LiveTurns:
    """Entered before the turn is submitted, left at its terminal event, its refusal, or the engine's failure."""

    def __init__(self, post_abort: Callable[[Rid, AbortReason], None], detach_grace_s: float) -> None:
        self._post_abort = post_abort
        self._detach_grace_s = detach_grace_s
        self._turns: dict[Rid, LiveTurn] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, rid: Rid) -> bool:
        return rid in self._turns

    def __iter__(self) -> Iterator[LiveTurn]:
        return iter(tuple(self._turns.values()))

    def add(self, rid: Rid, request: TurnRequest, attempt: int, feed: TurnFeed) -> None:
        ended = asyncio.get_running_loop().create_future()
        self._turns[rid] = LiveTurn(rid, request, attempt, feed, ended)

    def find(self, session_id: SessionId | None, turn_id: TurnId) -> LiveTurn | None:
        """The turn of that name. Names that the server chose never meet; of a client's there is at most one."""
        for turn in self._turns.values():
            if turn.request.turn_id == turn_id and turn.request.session_id == session_id:
                return turn
        return None

    def find_of_session(self, session_id: SessionId) -> tuple[LiveTurn, ...]:
        return tuple(turn for turn in self if turn.request.session_id == session_id)

    # What the core tells

    def start(self, rid: Rid, context_len: int, new_len: int, max_tokens: int) -> None:
        turn = self._turns.get(rid)
        if turn is not None:
            seed = turn.request.sampling.seed
            turn.feed.start(Started(context_len, new_len, max_tokens, seed, turn.attempt))

    def push(self, rid: Rid, token_ids: tuple[int, ...], drafted: int = 0) -> int | None:
        """Adds generated ids. Returns the length to cut the output to, once a stop string is complete.

        `drafted`: how many ids were guessed; all of `token_ids` but one were among them.
        """
        turn = self._turns.get(rid)
        if turn is None:
            return None
        if drafted:
            turn.drafted += drafted
            turn.accepted += len(token_ids) - 1
        is_stopped = turn.feed.push(token_ids)
        for reader in turn.feed.slow_readers():
            if turn.is_resumable:
                reader.cut()
            else:
                self.abort(turn, AbortReason.SLOW_READER)
        return len(turn.feed.output) if is_stopped else None

    def finish(self, rid: Rid, finished: Finished) -> LiveTurn | None:
        """Tells the readers, and forgets the turn. Returns it."""
        turn = self._forget(rid)
        if turn is not None:
            is_stopped = finished.outcome is FinishReason.STOP
            stop_string = turn.feed.output.stop_string if is_stopped else None
            turn.feed.finish(replace(finished, stop_string=stop_string, drafted=turn.drafted, accepted=turn.accepted))
        return turn

    def refuse(self, rid: Rid, failure: Failure) -> None:
        """The turn was not accepted: whoever attached to it meanwhile hears why."""
        turn = self._forget(rid)
        if turn is not None:
            turn.feed.fail(failure)

    def fail_all(self, failure: Failure) -> None:
        for turn in self:
            self.refuse(turn.rid, failure)

    # What ends or keeps a turn

    def abort(self, turn: LiveTurn, reason: AbortReason) -> None:
        """Has the turn broken off. Of several reasons the first counts."""
        turn.is_ending = True
        self._post_abort(turn.rid, reason)

    def arm_deadline(self, rid: Rid, deadline_s: float) -> None:
        """Aborts the turn after so many seconds, unless it has ended by then."""
        turn = self._turns.get(rid)
        if turn is not None:
            loop = asyncio.get_running_loop()
            turn.deadline = loop.call_later(max(deadline_s, 0.0), self.abort, turn, AbortReason.DEADLINE)

    def detach(self, rid: Rid) -> None:
        """The last reader has gone: the turn runs on for its grace, or is aborted at once when it has none."""
        turn = self._turns.get(rid)
        if turn is None:
            return
        if turn.is_resumable and self._detach_grace_s > 0:
            loop = asyncio.get_running_loop()
            turn.grace = loop.call_later(self._detach_grace_s, self.abort, turn, AbortReason.DISCONNECT)
        else:
            self.abort(turn, AbortReason.DISCONNECT)

    def attach(self, turn: LiveTurn, start: int = 0) -> LiveStream:
        """One more reader, from id `start` on. It is there in time, so the grace is over."""
        if turn.grace is not None:
            turn.grace.cancel()
            turn.grace = None
        return turn.feed.open(start)

    async def wait_ended(self, turns: tuple[LiveTurn, ...]) -> None:
        for turn in turns:
            # Shielded: the future is shared, and one waiter's cancellation is not the turn's end.
            await asyncio.shield(turn.ended)

    def _forget(self, rid: Rid) -> LiveTurn | None:
        turn = self._turns.pop(rid, None)
        if turn is not None:
            for timer in (turn.deadline, turn.grace):
                if timer is not None:
                    timer.cancel()
            if not turn.ended.done():
                turn.ended.set_result(None)
        return turn
