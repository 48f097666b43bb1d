"""Long inputs are made into ids beside the loop, few at once whatever the machine has."""

import asyncio
import threading

import pytest

from services.prompt_threads import INLINE_CHARS_MAX, PromptThreads

LONG = INLINE_CHARS_MAX + 1


class Work:
    """Waits in its thread until it is let go."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.began = threading.Semaphore(0)
        self.lock = threading.Lock()
        self.num_at_once = 0
        self.num_at_once_max = 0
        self.num_done = 0

    def __call__(self) -> int:
        with self.lock:
            self.num_at_once += 1
            self.num_at_once_max = max(self.num_at_once, self.num_at_once_max)
        self.began.release()
        self.gate.wait(10)
        with self.lock:
            self.num_at_once -= 1
            self.num_done += 1
        return threading.get_ident()


async def test_run_when_many_inputs_are_long_then_so_many_at_once_and_all_get_there() -> None:
    threads, work = PromptThreads(at_once_max=2), Work()
    running = [asyncio.create_task(threads.run(work, LONG)) for _ in range(8)]
    await asyncio.to_thread(lambda: [work.began.acquire(timeout=10) for _ in range(2)])
    work.gate.set()
    idents = await asyncio.gather(*running)
    assert (work.num_at_once_max, work.num_done) == (2, 8)
    assert threading.get_ident() not in idents
    threads.close()


async def test_run_when_the_input_is_short_then_at_once_and_here() -> None:
    threads = PromptThreads()
    assert await threads.run(threading.get_ident, INLINE_CHARS_MAX) == threading.get_ident()
    threads.close()


async def test_run_when_its_caller_is_cancelled_in_the_queue_then_it_is_never_done() -> None:
    threads, work = PromptThreads(at_once_max=1), Work()
    first, second = (asyncio.create_task(threads.run(work, LONG)) for _ in range(2))
    await asyncio.to_thread(work.began.acquire)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    work.gate.set()
    await first
    assert await threads.run(lambda: work.num_done, LONG) == 1
    threads.close()
