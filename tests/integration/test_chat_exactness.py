"""Chats of the real model through the whole engine: however they are run, the ids are the same, and the reference's.

Every run proves what it exercised. Two chats always run; all of them with `make exact`.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from engine.core.config import CoreConfig
from engine.core.ids import SessionId
from engine.core.ownership import PoolKind
from engine.executor.batch import PoolGeometry
from engine.executor.model_runner import ModelRunner
from engine.executor.torch_executor import TorchExecutor
from tests.integration.conftest import LoadedModel
from tests.kit.engine_rig import EngineRig, Exercised, TurnOutput, serving

SAFE_MARGIN = 0.01
THREADS = 2
ROOMY_TOKENS = 4096
TIGHT_TOKENS = 416
"""The longest chat fits (389 tokens), two of them at once do not."""

ChatIds = dict[str, list[list[int]]]
"""Chat name → the ids that each of its turns generated."""

CHATS = [
    pytest.param(("tea", "math"), marks=pytest.mark.exact, id="two"),
    pytest.param(("tea", "trip", "math", "facts"), marks=pytest.mark.exact_full, id="all"),
]
ONE_AFTER_ANOTHER = [
    pytest.param(("tea",), marks=pytest.mark.exact, id="one"),
    pytest.param(("tea", "trip", "math", "facts"), marks=pytest.mark.exact_full, id="all"),
]
"""Where chats do not run at once, a second one takes as long as the first and shows little more."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How the engine under test is built."""

    page_size: int = 16
    pool_tokens: int = ROOMY_TOKENS
    chunk_tokens: int = 512


@dataclass(slots=True)
class World:
    """The loaded model, the references, and what the plain streaming run of each chat gave."""

    model: LoadedModel
    chats: dict[str, dict[str, Any]]
    max_tokens: int
    plain: ChatIds = field(default_factory=dict)

    def run(
        self, setting: Setting, work: Callable[[EngineRig], Coroutine[Any, Any, ChatIds]]
    ) -> tuple[ChatIds, Exercised]:
        """Serves with that setting, does the work, checks that nothing is left behind."""

        async def main() -> tuple[ChatIds, Exercised]:
            pages = setting.pool_tokens // setting.page_size + 1
            runner = ModelRunner(self.model.config, self.model.decoder, PoolGeometry(setting.page_size, pages, 17))
            executor = TorchExecutor(runner, THREADS)
            config = CoreConfig(
                page_size=setting.page_size,
                pool_pages=pages,
                num_rows=17,
                context_len=self.model.config.context_len,
                vocab_size=self.model.config.vocab_size,
                eos_ids=self.model.config.eos_ids,
                chunk_tokens=setting.chunk_tokens,
            )
            async with serving(executor, config) as rig:
                ids = await work(rig)
                await _assert_nothing_left(rig)
            return ids, rig.exercised

        return asyncio.run(main())

    def plain_ids(self, names: tuple[str, ...]) -> ChatIds:
        """Each chat in a streaming session of its own, one after the other, in a roomy pool. Run once."""
        missing = [name for name in names if name not in self.plain]
        if missing:

            async def work(rig: EngineRig) -> ChatIds:
                return {name: await self.streaming(rig, name, name) for name in missing}

            ids, exercised = self.run(Setting(), work)
            assert exercised.tokens_from_slot > 0
            self.plain |= ids
        return {name: self.plain[name] for name in names}

    async def streaming(self, rig: EngineRig, session: str, name: str) -> list[list[int]]:
        await rig.engine.open_session(SessionId(session), streaming=True)
        outputs = [
            await rig.turn(f"t{index}", turn["append_ids"], session, max_tokens=self.max_tokens)
            for index, turn in enumerate(self.chats[name]["turns"])
        ]
        _assert_only_new_computed(outputs, self.chats[name]["turns"], rig)
        await rig.engine.close_session(SessionId(session))
        return [output.token_ids for output in outputs]

    async def ordinary(self, rig: EngineRig, session: str, name: str) -> list[list[int]]:
        await rig.engine.open_session(SessionId(session), streaming=False)
        ids: list[list[int]] = []
        for index, turn in enumerate(self.chats[name]["turns"]):
            parent = f"t{index - 1}" if index else None
            output = await rig.turn(f"t{index}", turn["append_ids"], session, parent, self.max_tokens)
            ids.append(output.token_ids)
        await rig.engine.close_session(SessionId(session))
        return ids

    async def stateless(self, rig: EngineRig, name: str) -> list[list[int]]:
        history: list[int] = []
        ids: list[list[int]] = []
        for index, turn in enumerate(self.chats[name]["turns"]):
            history += turn["append_ids"]
            output = await rig.turn(f"{name}{index}", history, max_tokens=self.max_tokens)
            ids.append(output.token_ids)
            history += output.token_ids
        return ids

    async def at_once(self, rig: EngineRig, sessions: list[tuple[str, str]]) -> list[tuple[str, list[list[int]]]]:
        """(session, chat) pairs, all at the same time."""
        runs = (self.streaming(rig, session, name) for session, name in sessions)
        return list(zip((name for _, name in sessions), await asyncio.gather(*runs), strict=True))


def _assert_only_new_computed(outputs: list[TurnOutput], turns: list[dict[str, Any]], rig: EngineRig) -> None:
    """Where nothing was taken away, a later turn computes its own ids and the last token of the turn before."""
    if rig.exercised.retractions or rig.exercised.demotions:
        return
    for before, output, turn in zip(outputs, outputs[1:], turns[1:], strict=False):
        assert output.usage is not None
        assert before.history_len is not None
        assert output.usage.tokens_from_slot == before.history_len - 1
        assert output.usage.tokens_computed == len(turn["append_ids"]) + 1


async def _assert_nothing_left(rig: EngineRig) -> None:
    snapshot = await rig.snapshot()
    assert snapshot.turns == ()
    assert snapshot.sessions == ()
    for books in snapshot.pools:
        assert books.available + books.evictable == books.total, books.pool
    rows = next(books for books in snapshot.pools if books.pool is PoolKind.ROWS)
    assert rows.available == rows.total


@pytest.fixture(scope="module")
def world(smollm2: LoadedModel, references: dict[str, Any]) -> World:
    chats = {chat["name"]: chat for chat in references["chats"]}
    return World(smollm2, chats, references["meta"]["max_new_tokens"])


def _report(names: tuple[str, ...], exercised: Exercised) -> None:
    print(f"\n{', '.join(names)}: {exercised}")  # noqa: T201


@pytest.mark.parametrize("names", CHATS)
def test_free_generation_when_in_a_streaming_session_then_the_ids_are_the_references(
    world: World, names: tuple[str, ...]
) -> None:
    compared, skipped = 0, 0
    for name, turns in world.plain_ids(names).items():
        ours = list(itertools.chain.from_iterable(turns))
        reference = [token for turn in world.chats[name]["turns"] for token in turn["output_ids"]]
        margins = [margin for turn in world.chats[name]["turns"] for margin in turn["margin"]]
        parting = next(
            (at for at, pair in enumerate(itertools.zip_longest(ours, reference)) if pair[0] != pair[1]), len(reference)
        )
        low = next((at for at, margin in enumerate(margins) if margin < SAFE_MARGIN), len(margins))
        assert parting >= low, f"{name}: generated id {parting} differs, and no step before it was close"
        compared += parting
        skipped += len(reference) - parting
    print(f"\nfree: compared {compared}, skipped {skipped}")  # noqa: T201
    assert compared > 300


@pytest.mark.exact
def test_single_prompts_when_generated_freely_then_the_ids_are_the_references(
    world: World, references: dict[str, Any]
) -> None:
    async def work(rig: EngineRig) -> ChatIds:
        prompts = references["single"]
        turns = [rig.turn(f"p{i}", single["prompt_ids"], max_tokens=64) for i, single in enumerate(prompts)]
        outputs = await asyncio.gather(*turns)
        return {f"p{i}": [output.token_ids] for i, output in enumerate(outputs)}

    ids, exercised = world.run(Setting(), work)
    assert exercised.batch_rows_max == len(references["single"])
    for i, single in enumerate(references["single"]):
        assert min(single["margin"]) >= SAFE_MARGIN
        assert ids[f"p{i}"] == [single["output_ids"]]


@pytest.mark.parametrize("names", ONE_AFTER_ANOTHER)
def test_chats_when_in_ordinary_sessions_then_the_ids_are_the_same(world: World, names: tuple[str, ...]) -> None:
    async def work(rig: EngineRig) -> ChatIds:
        return {name: await world.ordinary(rig, name, name) for name in names}

    ids, exercised = world.run(Setting(), work)
    _report(names, exercised)
    assert exercised.tokens_from_tree > 0
    assert exercised.tokens_from_slot == 0
    assert ids == world.plain_ids(names)


@pytest.mark.parametrize("names", CHATS)
def test_chats_when_stateless_then_the_ids_are_the_same(world: World, names: tuple[str, ...]) -> None:
    async def work(rig: EngineRig) -> ChatIds:
        return {name: await world.stateless(rig, name) for name in names}

    ids, exercised = world.run(Setting(), work)
    _report(names, exercised)
    assert exercised.tokens_from_tree > 0
    assert ids == world.plain_ids(names)


@pytest.mark.parametrize("names", ONE_AFTER_ANOTHER)
def test_chats_when_prefilled_in_chunks_of_16_then_the_ids_are_the_same(world: World, names: tuple[str, ...]) -> None:
    async def work(rig: EngineRig) -> ChatIds:
        return {name: await world.stateless(rig, name) for name in names}

    ids, exercised = world.run(replace(Setting(), chunk_tokens=16), work)
    _report(names, exercised)
    assert exercised.step_tokens_max == 16
    assert all(len(world.chats[name]["turns"][0]["append_ids"]) > 32 for name in names), "a prompt of three chunks"
    assert ids == world.plain_ids(names)


@pytest.mark.parametrize("page_size", [1, pytest.param(64, marks=pytest.mark.exact_full)])
@pytest.mark.parametrize("names", ONE_AFTER_ANOTHER)
def test_chats_when_pages_have_another_size_then_the_ids_are_the_same(
    world: World, names: tuple[str, ...], page_size: int
) -> None:
    async def work(rig: EngineRig) -> ChatIds:
        return dict(await world.at_once(rig, [(name, name) for name in names]))

    ids, exercised = world.run(replace(Setting(), page_size=page_size), work)
    _report(names, exercised)
    assert exercised.tokens_from_slot > 0
    assert ids == world.plain_ids(names)


@pytest.mark.parametrize("names", CHATS)
def test_chats_when_the_pool_is_so_small_that_turns_are_retracted_then_the_ids_are_the_same(
    world: World, names: tuple[str, ...]
) -> None:
    async def work(rig: EngineRig) -> ChatIds:
        return dict(await world.at_once(rig, [(name, name) for name in names]))

    ids, exercised = world.run(replace(Setting(), pool_tokens=TIGHT_TOKENS), work)
    _report(names, exercised)
    assert exercised.retractions > 0
    assert ids == world.plain_ids(names)


@pytest.mark.parametrize("names", CHATS)
def test_chats_when_eight_run_at_a_time_then_the_ids_are_the_same(world: World, names: tuple[str, ...]) -> None:
    sessions = [(f"s{i}", names[i % len(names)]) for i in range(8)]
    outcomes: list[tuple[str, list[list[int]]]] = []

    async def work(rig: EngineRig) -> ChatIds:
        outcomes.extend(await world.at_once(rig, sessions))
        return {}

    _, exercised = world.run(Setting(), work)
    _report(names, exercised)
    assert exercised.batch_rows_max >= 8
    assert exercised.tokens_from_slot > 0
    plain = world.plain_ids(names)
    assert all(ids == plain[name] for name, ids in outcomes)
    assert len(outcomes) == 8
