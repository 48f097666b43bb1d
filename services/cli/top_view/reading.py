"""One look at a server: what it is asked, and what it may not want to tell yet."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import grpc

from services.cli.report import is_silence, is_unknown_call
from services.client import History, Incident, ModelInfo, PoolStats, ServerState, TenureError

Sort = Literal["pages", "tokens", "name"]
SORTS: tuple[Sort, ...] = ("pages", "tokens", "name")
"""What turns and sessions are ordered by, in the order of the key that goes through them."""

HISTORY_S = 60.0
"""How far back rates and their lines go."""
_ASKED_S = HISTORY_S + 5
"""A little more: the first sample may be cut off, the last one not be over."""

_SILENT_CODES = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)

_Told = TypeVar("_Told")


class Server(Protocol):
    """What is asked of a client of a server."""

    async def is_ready(self) -> bool: ...

    async def model(self) -> ModelInfo: ...

    async def pools(self) -> PoolStats: ...

    async def snapshot(self) -> ServerState: ...

    async def history(self, last_s: float | None = None, *, with_facts: bool = True) -> History: ...

    async def incidents(self) -> tuple[Incident, ...]: ...


@dataclass(frozen=True, slots=True)
class Reading:
    """What a server said of itself within a moment. None: it did not want to, and `refusal` tells why."""

    is_ready: bool
    model: ModelInfo | None = None
    stats: PoolStats | None = None
    state: ServerState | None = None
    history: History | None = None
    incidents: tuple[Incident, ...] = ()
    refusal: str | None = None


async def take_reading(server: Server) -> Reading:
    """Asks for everything at once. What is refused, or not known to an older server, is left out.

    Raises TenureError when nobody answers, and when the server knows nothing of what is asked.
    """
    refusals: list[TenureError] = []

    async def ask(call: Callable[[], Awaitable[_Told]]) -> _Told | None:
        try:
            return await call()
        except TenureError as error:
            refusals.append(error)
            return None

    is_ready, model, stats, state, history, incidents = await asyncio.gather(
        ask(server.is_ready),
        ask(server.model),
        ask(server.pools),
        ask(server.snapshot),
        ask(lambda: server.history(_ASKED_S, with_facts=False)),
        ask(server.incidents),
    )
    for refusal in refusals:
        if is_silence(refusal) or refusal.code in _SILENT_CODES:
            raise refusal
    unknown = [refusal for refusal in refusals if is_unknown_call(refusal)]
    if unknown and not any((model, stats, state, history, incidents is not None)):
        raise unknown[0]
    reason = next((refusal.reason for refusal in refusals if refusal not in unknown), None)
    return Reading(bool(is_ready), model, stats, state, history, incidents or (), reason)
