"""Where long inputs are rendered and encoded: off the event loop, few at once."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

INLINE_CHARS_MAX = 4096
"""Inputs up to here take about a millisecond; longer ones leave the loop to others meanwhile."""
AT_ONCE_MAX = 2
"""Long inputs at once, whatever the machine: each may take hundreds of megabytes while it is encoded."""

_Result = TypeVar("_Result")


class PromptThreads:
    """Long inputs wait for each other here, oldest first. A caller that is cancelled gives its place up."""

    def __init__(self, at_once_max: int = AT_ONCE_MAX) -> None:
        self._threads = ThreadPoolExecutor(at_once_max, "tenure-prompts")

    async def run(self, work: Callable[[], _Result], num_chars: int) -> _Result:
        """What `work` returns or raises; done at once when its input is short."""
        if num_chars <= INLINE_CHARS_MAX:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Lets go of what has not begun, and does not wait for the rest. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)
