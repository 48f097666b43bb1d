"""The turns that are alive: for each its stream, its deadline, and who waits for its end."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine.core.ids import Rid, SessionId, TurnId
from engine.runtime.handle import EngineFailed, Finished
from engine.runtime.streams import LiveStream


@dataclass(slots=True)
class LiveTurn:
    rid: Rid
    turn_id: TurnId
    session_id: SessionId | None
    stream: LiveStream
    ended: asyncio.Future[None]
    deadline: asyncio.TimerHandle | None = None


class LiveTurns:
    """Entered before the turn is submitted, left at its terminal event, its refusal, or the engine's failure."""

    def __init__(self) -> None:
        self._turns: dict[Rid, LiveTurn] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[LiveTurn]:
        return iter(tuple(self._turns.values()))

    def add(self, rid: Rid, turn_id: TurnId, session_id: SessionId | None, stream: LiveStream) -> None:
        ended = asyncio.get_running_loop().create_future()
        self._turns[rid] = LiveTurn(rid, turn_id, session_id, stream, ended)

    def find_stream(self, rid: Rid) -> LiveStream | None:
        turn = self._turns.get(rid)
        return None if turn is None else turn.stream

    def arm_deadline(self, rid: Rid, deadline_s: float, on_deadline: Callable[[], None]) -> None:
        """Calls `on_deadline` after so many seconds, unless the turn has ended by then."""
        turn = self._turns.get(rid)
        if turn is not None:
            turn.deadline = asyncio.get_running_loop().call_later(max(deadline_s, 0.0), on_deadline)

    def find_named(self, session_id: SessionId | None, turn_id: TurnId) -> tuple[LiveTurn, ...]:
        """Live turns of that name: one, and perhaps others of the same name that are about to be refused."""
        return tuple(turn for turn in self if turn.session_id == session_id and turn.turn_id == turn_id)

    def find_of_session(self, session_id: SessionId) -> tuple[LiveTurn, ...]:
        return tuple(turn for turn in self if turn.session_id == session_id)

    def finish(self, rid: Rid, finished: Finished) -> None:
        """Tells the reader, and forgets the turn."""
        turn = self._forget(rid)
        if turn is not None:
            turn.stream.finish(finished)

    def discard(self, rid: Rid) -> None:
        """Forgets a turn that was refused."""
        self._forget(rid)

    def fail_all(self, failure: EngineFailed) -> None:
        """Ends every stream with `failure`."""
        for turn in self:
            turn.stream.fail(failure)
            self._forget(turn.rid)

    async def wait_ended(self, turns: tuple[LiveTurn, ...]) -> None:
        for turn in turns:
            # Shielded: the future is shared, and one waiter's cancellation is not the turn's end.
            await asyncio.shield(turn.ended)

    def _forget(self, rid: Rid) -> LiveTurn | None:
        turn = self._turns.pop(rid, None)
        if turn is not None:
            if turn.deadline is not None:
                turn.deadline.cancel()
            if not turn.ended.done():
                turn.ended.set_result(None)
        return turn
