"""Sessions as clients open, branch, fork, rewind, leave and close them; and an operator who looks on."""

import asyncio

from services.client import ClientSession
from services.client.requests import TurnInput
from tests.soak.stream import TurnStream
from tests.soak.world import World


async def conversation(world: World) -> None:
    """Some turns one after the other, then closed with or without waiting."""
    session = await world.open()
    for _ in range(world.rng.randint(2, 5)):
        await world.finish("turn of a conversation", world.turn(session))
        await world.pause(0.2)
    await session.close(drain=world.rng.random() < 0.3)


async def left(world: World) -> None:
    """Nobody closes it: it expires."""
    session = await world.open(idle_timeout_s=world.rng.uniform(0.5, 3.0))
    await world.finish("turn of a session that is left", world.turn(session))


async def idle(world: World) -> None:
    """Keeps its KV while others want room, and goes on afterwards."""
    session = await world.open()
    await world.finish("turn before a rest", world.turn(session, prompt=world.prompt(40, 80)))
    await asyncio.sleep(world.rng.uniform(2, 6))
    await world.finish("turn after a rest", world.turn(session))
    await session.close()


async def closed_mid_turn(world: World) -> None:
    """With `drain` the turn finishes, otherwise it ends as SESSION_CLOSED."""
    session = await world.open()
    stream = world.turn(session, max_tokens=24)
    if await stream.read_started():
        await stream.read_ids(world.rng.randint(0, 4))
    closing = asyncio.create_task(session.close(drain=world.rng.random() < 0.4))
    await world.finish("turn of a session that is closed", stream, "SESSION_CLOSED")
    await closing


async def busy(world: World) -> None:
    """A second turn at the same time is refused; the first does not notice."""
    session = await world.open()
    first = world.turn(session, max_tokens=24)
    if await first.read_started():
        second = world.turn(session)
        # It may also be that the first has failed by now.
        await world.finish("second turn", second, "SESSION_BUSY")
    await world.finish("first turn", first)
    await session.close()


async def branches(world: World) -> None:
    """A tree of turns; then everything behind the root is replaced while it runs."""
    session = await world.open(streaming=False)
    root = await _root(world, session)
    if root is not None:
        children = [world.turn(session, parent=root, max_tokens=16) for _ in range(world.rng.randint(2, 3))]
        await asyncio.gather(*(child.read_started() for child in children))
        if world.rng.random() < 0.5:
            options = world.options(max_tokens=8)
            options["replace"] = True
            given = TurnInput(text=world.prompt(3, 10))
            children.append(world.send(world.build(given, session, parent=root, **options)))
        await world.finish_all("branch", children, "TURN_REPLACED")
    await session.close()


async def _root(world: World, session: ClientSession) -> str | None:
    """A first turn that is part of its session; None when it has failed too often."""
    for _ in range(3):
        stream = world.turn(session, max_tokens=6)
        await world.finish("root of branches", stream)
        if stream.is_committed and stream.key is not None:
            return stream.key.turn_id
    return None


async def forked(world: World) -> None:
    """Both go on by themselves."""
    session = await world.open()
    turns = await _turns(world, session, 2)
    kept = [stream.key.turn_id for stream in turns if stream.is_committed and stream.key is not None]
    at_turn = world.rng.choice(kept) if kept and world.rng.random() < 0.5 else None
    fork = await world.fork(session, at_turn)
    await world.finish_all("turn beside a fork", [world.turn(session), world.turn(fork)])
    await asyncio.gather(session.close(), fork.close())


async def truncated(world: World) -> None:
    session = await world.open()
    await _turns(world, session, 2)
    info = await world.client.find_session(session.session_id)
    lengths = await session.truncate(world.rng.randint(0, info.session_len))
    if lengths.kv_tokens > lengths.session_len:
        world.ledger.violations.append(f"{session.session_id}: {lengths} after it was rewound")
    await world.finish("turn of a rewound session", world.turn(session))
    await session.close()


async def _turns(world: World, session: ClientSession, count: int) -> list[TurnStream]:
    streams = []
    for _ in range(count):
        streams.append(world.turn(session))
        await world.finish("turn of a session", streams[-1])
    return streams


async def operator(world: World) -> None:
    """Whoever looks on while all this happens. What is seen has to hold."""
    client, ledger = world.client, world.ledger
    stats = await client.pools()
    if not stats.balanced:
        ledger.violations.append(f"pools out of balance: {stats}")
    report = await client.check()
    ledger.violations += [f"check: {finding.law}: {finding.message}" for finding in report.findings]
    await client.snapshot()
    await client.explain(world.rng.randint(1, stats.find("full").total))
    await client.history(60, with_facts=world.rng.random() < 0.3)
    await client.incidents()
    async for _info in client.sessions(page_size=3):
        pass
