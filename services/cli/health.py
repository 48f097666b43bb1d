"""`tenure health`: what probes are told."""

from services.cli.run import run_work
from services.cli.tables import format_table
from services.client import connect

_MEANINGS = {
    "startup": ("it has begun to serve", "it has not begun to serve yet"),
    "liveness": ("it is alive", "it is lost: start it anew if it does not end by itself"),
    "readiness": ("it takes work", "it takes no work now: tenure incidents or its log says why"),
}
"""Of yes, and of NO."""


def run_health(target: str) -> int:
    return run_work(target, _health(target))


async def _health(target: str) -> int:
    async with connect(target) as client:
        told = {service: await client.is_serving(service) for service in _MEANINGS}
    print(format_health(told))
    return 0 if told["readiness"] else 1


def format_health(told: dict[str, bool]) -> str:
    """A line for each service."""
    return format_table([_cells(service, is_so) for service, is_so in told.items()])


def _cells(service: str, is_so: bool) -> tuple[str, str, str]:
    means_yes, means_no = _MEANINGS[service]
    return (service, "yes", means_yes) if is_so else (service, "NO", means_no)
