"""`tenure pools`: the books of a running server."""

from services.cli.books import format_pools
from services.cli.run import run_work
from services.client import connect


def run_pools(target: str) -> int:
    return run_work(target, _pools(target))


async def _pools(target: str) -> int:
    async with connect(target) as client:
        stats = await client.pools()
    print(format_pools(stats))
    return 0 if stats.balanced else 1
