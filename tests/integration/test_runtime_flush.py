"""A large cache is flushed bit by bit: turns are served meanwhile, and one that is filled again comes to an end too."""

import asyncio

from engine.runtime.flushing import EVICTIONS_AT_ONCE
from tests.kit.runtime_rig import RuntimeRig, read_all, running

PAGES = 4 * EVICTIONS_AT_ONCE


async def fill(rig: RuntimeRig, count: int) -> None:
    """Prompts of one page that begin differently: a leaf each."""
    for first in range(0, count, 32):
        numbers = range(first, min(first + 32, count))
        streams = [await rig.submit(f"f{n}", [n % 256, n // 256, 1, 1, 2], max_tokens=1) for n in numbers]
        for stream in streams:
            await read_all(stream)


async def test_flush_when_the_cache_has_many_leaves_then_a_turn_ends_before_it_does() -> None:
    async with running(pool_pages=PAGES + 64) as rig:
        await fill(rig, 3 * EVICTIONS_AT_ONCE)
        ended: list[str] = []

        async def flush() -> int:
            flushed = await rig.engine.flush()
            ended.append("flush")
            assert flushed.is_complete
            return flushed.pages

        async def say() -> None:
            await read_all(await rig.submit("t", [7, 7, 7], max_tokens=1))
            ended.append("turn")

        pages, _ = await asyncio.gather(flush(), say())
        assert pages >= 3 * EVICTIONS_AT_ONCE
        assert ended == ["turn", "flush"]
        assert (await rig.full_pool()).evictable == 0


async def test_flush_when_nothing_is_cached_then_nothing_goes_free() -> None:
    async with running() as rig:
        assert (await rig.engine.flush()).pages == 0
