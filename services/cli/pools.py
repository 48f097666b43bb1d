"""`tenure pools`: the books of a running server."""

import asyncio

from services.cli.books import format_pools
from services.cli.report import report_error
from services.client import connect


def run_pools(target: str) -> int:
    return asyncio.run(report_error(target, _pools(target)))


async def _pools(target: str) -> int:
    async with connect(target) as client:
        stats = await client.pools()
    print(format_pools(stats))
    return 0 if stats.balanced else 1
