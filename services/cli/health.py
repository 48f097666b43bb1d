"""`tenure health`: what probes are told."""

from services.cli.run import run_work
from services.cli.tables import format_table
from services.client import connect

_MEANINGS = {
    "startup": "it has begun to serve",
    "liveness": "it is alive; otherwise it should be started anew",
    "readiness": "it takes work",
}


def run_health(target: str) -> int:
    return run_work(target, _health(target))


async def _health(target: str) -> int:
    async with connect(target) as client:
        told = {service: await client.is_serving(service) for service in _MEANINGS}
    print(format_health(told))
    return 0 if told["readiness"] else 1


def format_health(told: dict[str, bool]) -> str:
    """A line for each service."""
    return format_table([(service, "yes" if is_so else "NO", _MEANINGS[service]) for service, is_so in told.items()])
