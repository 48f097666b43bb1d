"""What clients do while the server is hurt: streams that run, a session that waits, and what became of them."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from services.client import Client, ClientSession, TenureError, Turn

STREAMS = 3
"""Without a session; one more runs in a session."""
MAX_TOKENS = 400
START_S = 60.0
GOES_ON_TOKENS = 4
"""A stream that has got so many more tokens goes on."""
GOES_ON_S = 60.0
_OPENING = "My name is Ada. I have a dog, a cat and a small garden behind the house."


@dataclass(frozen=True, slots=True)
class Ending:
    """How a stream ended."""

    at_s: float
    """By `time.monotonic`."""
    code: str
    """gRPC status; OK when it ended as it should."""
    reason: str
    incident_id: str | None
    tokens: int


@dataclass(slots=True)
class Stream:
    """One turn that is being read."""

    turn: Turn
    tokens: int = 0
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[Ending]" = field(init=False)

    def __post_init__(self) -> None:
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> Ending:
        code, reason, incident_id = "OK", "", None
        try:
            async for piece in self.turn:
                self.tokens += len(piece.token_ids)
                self.has_begun.set()
        except TenureError as error:
            code, reason, incident_id = error.code.name, error.reason, error.metadata.get("incident_id")
        finally:
            self.has_begun.set()
        return Ending(time.monotonic(), code, reason, incident_id, self.tokens)

    async def leave(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


@dataclass(frozen=True, slots=True)
class Load:
    """Streams that run, one of them in the session `busy`, and a session `idle` between two turns."""

    streams: tuple[Stream, ...]
    idle: ClientSession
    busy: ClientSession

    @property
    def has_ended(self) -> bool:
        return any(stream.task.done() for stream in self.streams)

    async def endings(self, timeout_s: float) -> tuple[Ending, ...]:
        """How all streams ended. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            return tuple(await asyncio.gather(*(stream.task for stream in self.streams)))

    async def go_on(self) -> int:
        """Waits until every stream has got more tokens, then leaves them. Returns how many went on: all of them."""
        before = [stream.tokens for stream in self.streams]
        async with asyncio.timeout(GOES_ON_S):
            for stream, tokens in zip(self.streams, before, strict=True):
                while stream.tokens < tokens + GOES_ON_TOKENS and not stream.task.done():  # noqa: ASYNC110 - a count, not an event
                    await asyncio.sleep(0.05)
        for stream in self.streams:
            if stream.task.done():
                assert stream.task.result().code == "OK", stream.task.result()
            await stream.leave()
        return len(self.streams)

    async def prove_sessions(self) -> str:
        """The next turn of each session: both go on, and the idle one has its KV."""
        idle = self.idle.turn(text=" What is my name?", max_tokens=4, ignore_eos=True)
        await idle.text()
        assert idle.usage is not None, "a turn that ended tells what it cost"
        kept, context = idle.usage.tokens_from_slot, idle.usage.context_tokens
        assert kept > context / 2, idle.usage
        busy = self.busy.turn(text=" And where is the cat?", max_tokens=4, ignore_eos=True)
        await busy.text()
        assert busy.is_committed, "the session whose turn was hit goes on"
        await self.idle.close()
        await self.busy.close()
        return f"{kept} of {context} tokens from its slot"


async def begin_load(client: Client, streams: int = STREAMS) -> Load:
    """Returns once each stream has its first token."""
    idle, busy = client.session(), client.session()
    for session in (idle, busy):
        await session.open()
        await session.turn(text=_OPENING, max_tokens=4, ignore_eos=True).text()
    turns = [
        client.generate(f"{number}: count to one hundred", max_tokens=MAX_TOKENS, ignore_eos=True)
        for number in range(streams)
    ]
    turns.append(busy.turn(text=" Tell me about the garden.", max_tokens=MAX_TOKENS, ignore_eos=True))
    load = Load(tuple(map(Stream, turns)), idle, busy)
    async with asyncio.timeout(START_S):
        for stream in load.streams:
            await stream.has_begun.wait()
    assert not load.has_ended, "streams ended before the fault came"
    return load


def one_incident(endings: Sequence[Ending], reason: str) -> str:
    """All ended INTERNAL for that reason, under one incident, whose id is returned."""
    assert {(ending.code, ending.reason) for ending in endings} == {("INTERNAL", reason)}, endings
    found = {ending.incident_id for ending in endings}
    assert len(found) == 1, endings
    incident_id = found.pop()
    assert incident_id, "the error names the incident"
    return incident_id
