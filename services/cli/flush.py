"""`tenure flush`: has a running server free all that its prefix cache holds and nobody uses."""

from services.cli.run import run_work
from services.client import Flushed, connect
from services.client.pools import count_units


def run_flush(target: str) -> int:
    return run_work(target, _flush(target))


async def _flush(target: str) -> int:
    async with connect(target) as client:
        flushed = await client.flush_cache()
    print(format_flushed(flushed))
    return 0


def format_flushed(flushed: Flushed) -> str:
    """As in `freed 12 pages, 4 SWA pages`; pools that had nothing are left out."""
    counts = {"full": flushed.pages, "swa": flushed.swa_pages, "mamba": flushed.states}
    freed = ", ".join(count_units(kind, count) for kind, count in counts.items() if count)
    return f"freed {freed}" if freed else "nothing to free: the prefix cache holds nothing that is not in use"
