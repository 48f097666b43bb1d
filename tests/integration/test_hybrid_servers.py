"""Servers over tiny real models with windows or states: session turns, pools, and what each flag of theirs does."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from services.client import Client, connect
from services.config import ServeConfig
from services.loading import LOAD_ERRORS, load_in_thread, load_model
from tests.kit.recipes import reference_ids, save_recipe
from tests.kit.server_rig import Lines, serving
from tests.kit.tiny_tokenizer_json import byte_level_tokenizer, write_json

VOCAB_SIZE = 300
"""As many as the tokenizer has."""
PROMPT = list(range(3, 53))
NUM_NEW = 8
CONFIG = ServeConfig(
    port=0,
    page_size=4,
    rows=4,
    running_max=2,
    context_len=128,
    chunk_tokens=16,
    step_tokens=32,
    full_check_steps=1,
)

pytestmark = [pytest.mark.exact, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("gemma3"), "gemma3")


@pytest.fixture(scope="module")
def bamba(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("bamba"), "bamba")


def save(directory: Path, recipe: str) -> Path:
    """With a tokenizer, and beside it what transformers generates."""
    saved = save_recipe(recipe, directory, {"vocab_size": VOCAB_SIZE})
    history: list[int] = []
    for new in turns():
        history += new
        history += reference_ids(saved, history, NUM_NEW)
    return write_json(directory, {"tokenizer.json": byte_level_tokenizer(), "expected.json": history})


def turns() -> list[list[int]]:
    """The new ids of three turns; the first alone is longer than any window."""
    return [PROMPT, [9, 8, 7], [5] * 10]


@asynccontextmanager
async def server(directory: Path, **changed: object) -> AsyncIterator[tuple[Client, Lines]]:
    config = replace(CONFIG, model=directory, **changed)  # type: ignore[arg-type]  # settings by name
    async with serving(config, load_in_thread) as running, connect(running.target) as client:
        yield client, running.lines


async def run_turns(client: Client) -> list[int]:
    """All turns of one session: its history, ids asked and ids told."""
    history: list[int] = []
    async with client.session("s") as session:
        for new in turns():
            turn = session.turn(token_ids=new, max_tokens=NUM_NEW, ignore_eos=True)
            history += new
            history += [token_id async for piece in turn for token_id in piece.token_ids]
        (info,) = [each async for each in client.sessions()]
        assert info.kv_state == "held"
        pools = (await client.model()).pools
        assert (info.swa_pages > 0, info.states > 0) == ("swa" in pools, "mamba" in pools)
        stats = await client.pools()
        assert stats.balanced
        assert (await client.check()).is_clean
        for pool in stats.pools:
            assert pool.session_held > 0, pool
            owners = {(await client.explain(unit, pool.kind)).owner.kind for unit in range(1, pool.total + 1)}
            assert "session" in owners
    stats = await client.pools()
    assert stats.balanced
    assert all(pool.session_held == pool.uncached == 0 for pool in stats.pools)
    return history


@pytest.mark.parametrize(("name", "kinds"), [("gemma3", ["full", "swa", "rows"]), ("bamba", ["full", "mamba", "rows"])])
async def test_session_when_served_then_as_transformers_says_and_each_pool_is_in_use_and_given_back(
    name: str, kinds: list[str], request: pytest.FixtureRequest
) -> None:
    directory: Path = request.getfixturevalue(name)
    async with server(directory) as (client, lines):
        history = await run_turns(client)
        assert history == expected_history(directory)
        assert list((await client.model()).pools) == kinds
        samples = (await client.history()).samples
        assert [pool.kind for pool in samples[-1].pools] == kinds
    said = [line for line in lines.told if " pool" in line]
    assert [line.partition(" pool")[0] for line in said] == ["KV", "SWA" if name == "gemma3" else "state", "all"]


def expected_history(directory: Path) -> list[int]:
    loaded: list[int] = json.loads((directory / "expected.json").read_text("utf-8"))
    return loaded


async def test_swa_tokens_when_given_then_the_pool_has_that_size_and_else_follows_the_full_one(gemma3: Path) -> None:
    async with server(gemma3, swa_tokens=400) as (client, _lines):
        assert (await client.model()).pools["swa"] == 100
        assert (await client.config())["swa_tokens"] == "400"
    async with server(gemma3) as (client, _lines):
        pools = (await client.model()).pools
        assert (pools["full"], pools["swa"] > 0, pools["swa"] != 100) == (64, True, True)
        assert (await client.config())["swa_tokens"] == "auto"


async def test_state_slots_when_given_then_the_pool_has_that_size_and_else_five_a_turn(bamba: Path) -> None:
    async with server(bamba, state_slots=7) as (client, _lines):
        assert (await client.model()).pools["mamba"] == 7
    async with server(bamba) as (client, _lines):
        assert (await client.model()).pools["mamba"] == 10
    async with server(bamba, pool_tokens=1024) as (client, _lines):
        assert (await client.model()).pools["mamba"] == 40, "eight contexts of 128 tokens"


async def test_state_interval_when_short_then_a_prompts_state_is_found_again_and_when_long_not(bamba: Path) -> None:
    for interval, from_tree in ((16, 48), (256, 0)):
        async with server(bamba, state_interval=interval) as (client, _lines):
            for times_before in range(2):
                turn = client.generate(token_ids=PROMPT, max_tokens=NUM_NEW, ignore_eos=True)
                told = [token_id async for piece in turn for token_id in piece.token_ids]
                assert told == expected_history(bamba)[len(PROMPT) :][:NUM_NEW]
                assert turn.usage is not None
                assert turn.usage.tokens_from_tree == times_before * from_tree


@pytest.mark.parametrize(
    ("name", "setting", "value", "told"),
    [
        ("gemma3", "swa_tokens", 16, "--swa-tokens: must be at least "),
        ("gemma3", "state_slots", 10, "--state-slots: this model has no recurrent layers"),
        ("bamba", "state_slots", 4, "--state-slots: must be at least 5, not 4"),
        ("bamba", "swa_tokens", 400, "--swa-tokens: this model has no sliding-window layers"),
    ],
)
def test_load_when_a_pool_can_not_have_this_size_then_refused_by_the_flags_name(
    name: str, setting: str, value: int, told: str, request: pytest.FixtureRequest
) -> None:
    sized = replace(CONFIG, **{setting: value})  # type: ignore[arg-type]  # a setting by its name
    config = replace(sized, model=request.getfixturevalue(name))
    with pytest.raises(LOAD_ERRORS) as caught:
        load_model(config, lambda _done, _what: None)
    assert str(caught.value).startswith(told)


def test_load_when_refused_with_a_number_then_that_number_is_taken(gemma3: Path) -> None:
    with pytest.raises(LOAD_ERRORS) as caught:
        load_model(replace(CONFIG, model=gemma3, swa_tokens=16), lambda _done, _what: None)
    least = int(str(caught.value).partition("at least ")[2].partition(",")[0])
    load_model(replace(CONFIG, model=gemma3, swa_tokens=least), lambda _done, _what: None).executor.close()
    with pytest.raises(LOAD_ERRORS):
        load_model(replace(CONFIG, model=gemma3, swa_tokens=least - CONFIG.page_size), lambda _done, _what: None)
