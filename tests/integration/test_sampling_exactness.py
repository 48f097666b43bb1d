"""A turn's drawn tokens depend on its seed and its history alone, through the whole engine.

Every run proves what it exercised.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from engine.core.config import CoreConfig
from engine.core.ids import SessionId
from engine.core.sampling import GREEDY, SEED_MAX, Sampling
from tests.kit.engine_rig import EngineRig, Exercised, serving
from tests.kit.tiny_llama import tiny_llama_config, tiny_llama_executor

PAGE_SIZE = 4
ROOMY_PAGES = 257
TIGHT_PAGES = 30
"""Room for two of eight turns of 48 tokens."""
CHUNK_TOKENS = 16
NUM_NEW = 24
SAMPLINGS = (
    Sampling(1.5, seed=1),
    Sampling(1.5, seed=SEED_MAX),
    Sampling(2.5, top_k=30, seed=2),
    Sampling(2.0, top_p=0.8, seed=3),
    Sampling(3.0, top_k=40, top_p=0.9, seed=4),
    GREEDY,
    Sampling(1.0, seed=1),
    Sampling(1.5, seed=1),
)
PROMPTS = [[(7 * row + 3 * place) % 290 + 5 for place in range(24)] for row in range(len(SAMPLINGS))]
EIGHT = range(len(SAMPLINGS))

Ids = list[list[int]]

pytestmark = pytest.mark.exact


def serve(
    work: Callable[[EngineRig], Coroutine[Any, Any, Ids]], pool_pages: int = ROOMY_PAGES
) -> tuple[Ids, Exercised]:
    """What `work` gives on a fresh engine over the tiny model, and what that run exercised."""

    async def main() -> tuple[Ids, Exercised]:
        executor = tiny_llama_executor(page_size=PAGE_SIZE, pool_pages=pool_pages, num_rows=12)
        model = tiny_llama_config()
        config = CoreConfig(
            page_size=PAGE_SIZE,
            pool_pages=pool_pages,
            num_rows=12,
            context_len=model.context_len,
            vocab_size=model.vocab_size,
            eos_ids=model.eos_ids,
            chunk_tokens=CHUNK_TOKENS,
        )
        async with serving(executor, config) as rig:
            return await work(rig), rig.exercised

    return asyncio.run(main())


async def drawn(rig: EngineRig, place: int, new_ids: list[int], session: str | None = None) -> list[int]:
    """The ids of one turn, `NUM_NEW` of them."""
    output = await rig.turn(
        f"turn-{place}-{len(new_ids)}-{session}",
        new_ids,
        session,
        max_tokens=NUM_NEW,
        sampling=SAMPLINGS[place],
        ignore_eos=True,
    )
    return output.token_ids


async def one_by_one(rig: EngineRig) -> Ids:
    return [await drawn(rig, place, PROMPTS[place]) for place in EIGHT]


async def together(rig: EngineRig) -> Ids:
    return await asyncio.gather(*(drawn(rig, place, PROMPTS[place]) for place in EIGHT))


@pytest.fixture(scope="module")
def alone() -> Ids:
    """The ids of each turn, each on an engine of its own kind of quiet: nothing else runs."""
    ids, exercised = serve(one_by_one)
    assert exercised.batch_rows_max == 1
    assert all(len(turn) == NUM_NEW for turn in ids)
    return ids


def test_ids_when_seeds_prompts_or_samplings_differ_then_differ(alone: Ids) -> None:
    assert len({tuple(turn) for turn in alone}) == len(alone)


def test_ids_when_eight_run_together_then_are_those_of_each_alone(alone: Ids) -> None:
    ids, exercised = serve(together)
    assert exercised.batch_rows_max >= 8
    assert exercised.retractions == 0
    assert ids == alone


def test_ids_when_turns_are_retracted_then_are_those_of_each_alone(alone: Ids) -> None:
    ids, exercised = serve(together, TIGHT_PAGES)
    assert exercised.retractions > 0
    assert ids == alone


def test_ids_when_the_history_is_a_sessions_then_are_those_of_the_same_history_sent_cold() -> None:
    async def in_sessions(rig: EngineRig) -> Ids:
        ids: Ids = []
        for place in EIGHT:
            session = f"s{place}"
            await rig.engine.open_session(SessionId(session), streaming=True)
            ids.append(await drawn(rig, place, PROMPTS[place], session))
            ids.append(await drawn(rig, place, PROMPTS[place][:9], session))
            await rig.engine.close_session(SessionId(session))
        return ids

    warm, exercised = serve(in_sessions)
    assert exercised.tokens_from_slot > 0

    async def cold(rig: EngineRig) -> Ids:
        ids: Ids = []
        for place in EIGHT:
            first = await drawn(rig, place, PROMPTS[place])
            ids += [first, await drawn(rig, place, [*PROMPTS[place], *first, *PROMPTS[place][:9]])]
        return ids

    assert warm == serve(cold)[0]
