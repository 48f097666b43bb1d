"""Everything that clients do to an engine at once, at random from a seed."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

from engine.core.commands import Fork
from engine.core.errors import Refusal
from engine.core.ids import SessionId, TurnId, pack_ids
from engine.runtime.handle import EngineHandle, StreamRefusal, TurnRequest

NAMES = tuple(SessionId(f"s{number}") for number in range(6))
CLIENTS = 6
_WEIGHTS = {"turn": 50, "open": 14, "fork": 8, "truncate": 8, "close": 5, "flush": 3}


class EngineTraffic:
    """Clients that open, run, abort, leave, fork, cut, close and flush. Prompts begin alike, so that they share KV."""

    def __init__(self, engine: EngineHandle, seed: int, longest: int = 24) -> None:
        """`longest`: tokens of a prompt, and of an answer."""
        self._engine = engine
        self._random = Random(seed)
        self._longest = longest
        self._turns = 0
        self.done: Counter[str] = Counter()
        """What was done, and not refused."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator["EngineTraffic"]:
        """Goes on in the background; at the end the clients have finished what they were about, and all is closed."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as clients:
            for number in range(CLIENTS):
                clients.create_task(self._run_client(stop), name=f"client-{number}")
            try:
                yield self
            finally:
                stop.set()
        for name in NAMES:
            await self._engine.close_session(name)

    async def _run_client(self, stop: asyncio.Event) -> None:
        kinds: dict[str, Callable[[], Awaitable[object]]] = {
            "turn": self._run_turn,
            "open": self._open,
            "fork": self._fork,
            "truncate": self._truncate,
            "close": self._close,
            "flush": self._engine.flush,
        }
        while not stop.is_set():
            (kind,) = self._random.choices(tuple(_WEIGHTS), tuple(_WEIGHTS.values()))
            try:
                await kinds[kind]()
                self.done[kind] += 1
            except (Refusal, StreamRefusal):
                await asyncio.sleep(0.001)  # as it should be: much of what is drawn can not be

    async def _run_turn(self) -> None:
        draw = self._random
        self._turns += 1
        length = draw.randint(1, self._longest)
        stem = draw.randrange(3) * 50
        name = TurnId(f"t{self._turns}")
        session = draw.choice(NAMES) if draw.random() < 0.7 else None
        ids = [stem + place for place in range(length)] + [draw.randrange(250) for _ in range(draw.randrange(3))]
        turn = TurnRequest(name, pack_ids(ids), session, max_tokens=draw.randint(1, self._longest), ignore_eos=True)
        stream = await self._engine.submit(turn)
        ending = draw.random()
        deltas = draw.randrange(1, 5)
        async for _ in stream:
            deltas -= 1
            if deltas == 0 and ending < 0.15:
                await self._engine.abort(session, name)
                self.done["abort"] += 1
            if deltas == 0 and ending > 0.9:
                self.done["leave"] += 1
                break
        await stream.aclose()

    async def _open(self) -> None:
        await self._engine.open_session(self._random.choice(NAMES), streaming=self._random.random() < 0.75)

    async def _fork(self) -> None:
        source, new = self._random.sample(NAMES, 2)
        await self._engine.fork_session(Fork(source, new))

    async def _truncate(self) -> None:
        await self._engine.truncate_session(self._random.choice(NAMES), self._random.randrange(self._longest))

    async def _close(self) -> None:
        await self._engine.close_session(self._random.choice(NAMES), drain=self._random.random() < 0.5)
