"""Workers that play scenarios from a shuffled deck until they are told to stop, and probes beside them."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from grpc import aio

from protos.v1 import generate_pb2_grpc
from services.client import TenureError, connect
from services.limits import client_options
from tests.soak import scenarios, session_scenarios
from tests.soak.ledger import Ledger
from tests.soak.world import World

SCENARIO_TIMEOUT_S = 120.0
"""One that takes longer hangs."""
PROBE_INTERVAL_S = 1.0
PROBE_TIMEOUT_S = 1.0
PROBED = ("", "liveness", "readiness")

Scenario = Callable[[World], Awaitable[None]]

_DECK: tuple[tuple[Scenario, int], ...] = (
    (scenarios.plain, 2),
    (scenarios.cached, 3),
    (scenarios.crowd, 2),
    (scenarios.aborted, 3),
    (scenarios.lost_and_found, 2),
    (scenarios.lost_for_good, 2),
    (scenarios.late, 2),
    (scenarios.retried, 2),
    (scenarios.refused, 2),
    (session_scenarios.conversation, 3),
    (session_scenarios.left, 2),
    (session_scenarios.idle, 3),
    (session_scenarios.closed_mid_turn, 2),
    (session_scenarios.busy, 1),
    (session_scenarios.branches, 3),
    (session_scenarios.forked, 2),
    (session_scenarios.truncated, 2),
    (session_scenarios.operator, 1),
)
"""How often each scenario comes in one round."""


class Deck:
    """Every scenario comes in every round, in a seeded order."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"deck {seed}")
        self._cards: list[Scenario] = []
        self.rounds = 0
        """That were begun."""

    def draw(self) -> Scenario:
        if not self._cards:
            self._cards = [scenario for scenario, count in _DECK for _ in range(count)]
            self._rng.shuffle(self._cards)
            self.rounds += 1
        return self._cards.pop()


@dataclass(slots=True)
class Probes:
    """What the probe port answered."""

    asked: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """That did not answer SERVING in time, by service and why."""
    slowest_s: float = 0.0


async def run_workers(
    target: str, deck: Deck, seed: int, num_clients: int, ledger: Ledger, stop: asyncio.Event
) -> None:
    """Returns when every worker has played its scenario to the end."""
    async with connect(target) as client, aio.insecure_channel(target, options=client_options()) as channel:
        stub = generate_pb2_grpc.GenerateStub(channel)
        async with asyncio.TaskGroup() as group:
            for number in range(num_clients):
                world = World(client, stub, ledger, random.Random(f"{seed} {number}"), str(number))
                group.create_task(_work(world, deck, stop), name=f"worker {number}")


async def _work(world: World, deck: Deck, stop: asyncio.Event) -> None:
    while not stop.is_set():
        scenario = deck.draw()
        try:
            async with asyncio.timeout(SCENARIO_TIMEOUT_S):
                await scenario(world)
        except TenureError as error:
            world.ledger.note_error(error)
            world.ledger.surprises[f"{scenario.__name__}: {error}"] += 1
            # A server that is gone answers at once, and so often that nothing else would run here.
            await asyncio.sleep(0.1)
        except TimeoutError:
            world.ledger.surprises[f"{scenario.__name__} hangs"] += 1
        else:
            world.ledger.scenarios[scenario.__name__] += 1
        await world.pause(0.2)


async def run_probes(target: str, probes: Probes, stop: asyncio.Event) -> None:
    """Asks each service of the probe port once a second, as an orchestrator does."""
    loop = asyncio.get_running_loop()
    async with connect(target, answer_timeout_s=PROBE_TIMEOUT_S) as client:
        while not stop.is_set():
            for service in PROBED:
                began_s = loop.time()
                probes.asked += 1
                try:
                    is_serving = await client.is_serving(service)
                except TenureError as error:
                    probes.failures[f"{service or 'server'}: {error.code.name}"] += 1
                else:
                    probes.slowest_s = max(probes.slowest_s, loop.time() - began_s)
                    if not is_serving:
                        probes.failures[f"{service or 'server'}: not serving"] += 1
            await asyncio.sleep(PROBE_INTERVAL_S)
