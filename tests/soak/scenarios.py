"""Turns with and without sessions, as clients run, leave, lose and repeat them."""

from collections.abc import Callable

from protos.v1 import generate_pb2
from services.client.requests import TurnInput
from tests.soak.world import SHARED_PROMPTS, World

CROWD = 8
"""Turns at once: as many as may run."""
CROWD_TOKENS = 77
"""In each of their prompts: three less than five pages, of which the pool has eight times as many."""
IDS = range(1000, 40000)


async def plain(world: World) -> None:
    await world.finish("plain turn", world.turn())


async def cached(world: World) -> None:
    """A prompt that others have had before."""
    prompt = world.rng.choice(SHARED_PROMPTS) + world.prompt(1, 4)
    await world.finish("cached prompt", world.turn(prompt=prompt))


async def crowd(world: World) -> None:
    """Prompts that end shortly before a page does, and fill the pool: as the answers grow, some have to give way."""
    requests = [
        world.build(TurnInput(token_ids=world.rng.choices(IDS, k=CROWD_TOKENS)), None, max_tokens=24, ignore_eos=True)
        for _ in range(CROWD)
    ]
    await world.finish_all("crowd", [world.send(request) for request in requests])


async def aborted(world: World) -> None:
    """By name, after some ids or none; in a session, which goes on, and which may keep them."""
    session = await world.open() if world.rng.random() < 0.7 else None
    options = world.options(max_tokens=24)
    if session is not None:
        options["keep_on_abort"] = world.rng.random() < 0.5
    stream = world.send(world.build(TurnInput(text=world.prompt()), session, **options))
    if await stream.read_started():
        await stream.read_ids(world.rng.randint(0, 6))
        await world.abort(stream)
    await world.finish("aborted turn", stream, "TURN_ABORTED")
    if session is not None:
        await world.finish("turn behind an aborted one", world.turn(session))
        await session.close()


async def lost_and_found(world: World) -> None:
    """The stream breaks, and is resumed from the ids that are held."""
    lost = world.turn(max_tokens=24)
    if not await lost.read_started():
        world.judge("turn to be lost", lost)
        return
    await lost.read_ids(world.rng.randint(0, 8))
    lost.lose()
    await world.pause(0.3)
    found = world.resume(lost)
    await found.read_all()
    world.ledger.resumed += found.key is not None
    # A turn that failed meanwhile was rolled back, and is forgotten with it.
    world.judge("resumed turn", found, "TURN_UNKNOWN")


async def lost_for_good(world: World) -> None:
    """With a name the turn is kept for its grace; without one it ends at once."""
    request = world.build(TurnInput(text=world.prompt()), None, **world.options(max_tokens=24))
    if world.rng.random() < 0.5:
        request.ClearField("turn_id")
    stream = world.send(request)
    if await stream.read_started():
        await stream.read_ids(world.rng.randint(0, 8))
    if stream.is_over:
        world.judge("turn to be lost", stream)
    else:
        stream.lose()


async def late(world: World) -> None:
    """Its time is over before it is."""
    request = world.build(TurnInput(text=world.prompt()), None, max_tokens=200, ignore_eos=True)
    stream = world.send(request, timeout_s=world.rng.uniform(0.5, 1.2))
    await world.finish("late turn", stream, "DEADLINE", "DEADLINE_EXCEEDED")


async def retried(world: World) -> None:
    """Sent again under its name until it is complete, and once more: that is a replay."""
    request = world.build(TurnInput(text=world.prompt()), None, **world.options(max_tokens=8))
    for _ in range(4):
        stream = world.send(request)
        await world.finish("retried turn", stream)
        if stream.error is None:
            break
    else:
        return
    replay = world.send(request)
    await world.finish("replayed turn", replay)
    if replay.ids != stream.ids:
        world.ledger.violations.append(f"{stream.key}: a replay had other ids")


async def refused(world: World) -> None:
    """A call that can not be. It changes nothing."""
    change, reason = world.rng.choice(_REFUSALS)
    request = world.build(TurnInput(text=world.prompt()), None, max_tokens=4)
    change(request)
    stream = world.send(request)
    await stream.read_all()
    world.judge(f"call to be refused with {reason}", stream, reason)
    if stream.key is not None or stream.error is None:
        world.ledger.violations.append(f"{stream.key}: accepted, and was to be refused with {reason}")


def _no_tokens(request: generate_pb2.GenerateRequest) -> None:
    request.sampling.max_tokens = 0


def _cold(request: generate_pb2.GenerateRequest) -> None:
    request.sampling.temperature = -1.0


def _unknown_session(request: generate_pb2.GenerateRequest) -> None:
    request.session_id = "nobody-has-opened-it"


def _no_input(request: generate_pb2.GenerateRequest) -> None:
    request.ClearField("input")


def _too_long(request: generate_pb2.GenerateRequest) -> None:
    request.tokens.token_ids.extend([17] * 600)


def _no_such_token(request: generate_pb2.GenerateRequest) -> None:
    request.tokens.token_ids.extend([1, 2_000_000])


def _many_guesses(request: generate_pb2.GenerateRequest) -> None:
    request.draft_tokens = 1000


_REFUSALS: tuple[tuple[Callable[[generate_pb2.GenerateRequest], None], str], ...] = (
    (_no_tokens, "FIELD_INVALID"),
    (_cold, "FIELD_INVALID"),
    (_unknown_session, "SESSION_UNKNOWN"),
    (_no_input, "INPUT_MISSING"),
    (_too_long, "PROMPT_EXCEEDS_CONTEXT"),
    (_no_such_token, "TOKEN_OUT_OF_RANGE"),
    (_many_guesses, "DRAFT_TOKENS_INVALID"),
)
