"""`tenure pools`: the books of a running server."""

import asyncio

from services.cli.books import format_pools
from services.cli.run import run_work
from services.client import Client, PoolStats, connect

_SETTLE_S = 0.02
_SETTLE_TRIES = 25


def run_pools(target: str) -> int:
    return run_work(target, _pools(target))


async def _pools(target: str) -> int:
    async with connect(target) as client:
        stats = await client.pools()
    print(format_pools(stats))
    return 0 if stats.balanced else 1


async def settled_pools(client: Client) -> PoolStats:
    """The books once nothing drains any more: when a turn has ended, a step that was planned before is still in flight.

    On a server that others keep busy that may never be: then as they are after a moment.
    """
    stats = await client.pools()
    for _ in range(_SETTLE_TRIES):
        if not any(pool.draining for pool in stats.pools):
            break
        await asyncio.sleep(_SETTLE_S)
        stats = await client.pools()
    return stats
