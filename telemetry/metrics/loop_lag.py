"""The task that measures how late the event loop runs what is due."""

import asyncio
from collections.abc import Awaitable, Callable

from engine.runtime.clock import Clock, MonotonicClock

INTERVAL_S = 0.1


async def measure_lag(
    tell: Callable[[float], None],
    clock: Clock | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Runs until it is cancelled; `tell` gets each lateness in seconds, on the loop."""
    source = clock or MonotonicClock()
    while True:
        due_s = source.now() + INTERVAL_S
        await sleep(INTERVAL_S)
        tell(max(0.0, source.now() - due_s))
