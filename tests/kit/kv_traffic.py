"""Seeded turns that share beginnings, run into each other's pages and end in every way: more than small pools hold."""

import random

from engine.core.ids import SessionId, TurnId
from tests.kit.runtime_rig import RuntimeRig, read_all

NUM_SESSIONS = 4


def draw_prompt(draw: random.Random, stems: list[list[int]]) -> list[int]:
    """A beginning that others have as well, and some ids of its own."""
    tail = [draw.randrange(256) for _ in range(draw.randrange(1, 12))]
    return draw.choice(stems)[: draw.randrange(4, 24)] + tail


def draw_stems(draw: random.Random) -> list[list[int]]:
    return [[draw.randrange(256) for _ in range(24)] for _ in range(4)]


async def mixed_traffic(rig: RuntimeRig, seed: int, num_turns: int = 40) -> None:
    """One turn after the other, in sessions and without, some aborted; the sessions are closed at the end."""
    draw = random.Random(seed)
    stems = draw_stems(draw)
    names = [f"s{seed}-{at}" for at in range(NUM_SESSIONS)]
    for name in names:
        await rig.open(name)
    for at in range(num_turns):
        session = draw.choice([None, None, draw.choice(names)])
        turn = f"t{seed}-{at}"
        stream = await rig.submit(turn, draw_prompt(draw, stems), session=session, max_tokens=draw.randrange(1, 12))
        if draw.random() < 0.2:
            await rig.engine.abort(None if session is None else SessionId(session), TurnId(turn))
        await read_all(stream)
    for name in names:
        await rig.engine.close_session(SessionId(name))
    await rig.wait_no_turns()
