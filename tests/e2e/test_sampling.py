"""Sampling and stop strings on the wire, with the real model."""

from collections.abc import AsyncIterator, Iterator

import pytest

from engine.executor.gguf import open_gguf
from engine.executor.model_files import find_embedded_model
from services.client import Client, FinishReason, Turn, connect
from services.tokenization.tokenizer import tokenizer_from_gguf
from tests.kit.server_process import ready_server

PROMPT = "Once upon a time there was a small dog."


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with ready_server() as (_server, target):
        yield target


@pytest.fixture
async def client(target: str) -> AsyncIterator[Client]:
    async with connect(target) as client:
        yield client


async def collect(turn: Turn) -> list[int]:
    return [token_id async for piece in turn for token_id in piece.token_ids]


async def test_seed_when_left_out_then_the_server_chooses_and_tells_one_that_repeats_the_turn(client: Client) -> None:
    turns = [client.generate(PROMPT, max_tokens=16, temperature=1.0) for _ in range(3)]
    answers = [await collect(turn) for turn in turns]
    assert len({turn.seed for turn in turns}) == 3
    assert len({tuple(answer) for answer in answers}) == 3, "three draws of 16 tokens"
    again = client.generate(PROMPT, max_tokens=16, temperature=1.0, seed=turns[0].seed)
    assert await collect(again) == answers[0]
    assert again.seed == turns[0].seed


async def test_temperature_when_0_then_greedy_whatever_the_rest(client: Client) -> None:
    greedy = await collect(client.generate(PROMPT, max_tokens=8))
    assert await collect(client.generate(PROMPT, max_tokens=8, temperature=0, top_k=3, top_p=0.5, seed=9)) == greedy
    assert await collect(client.generate(PROMPT, max_tokens=8, temperature=2.0, top_k=1)) == greedy
    assert await collect(client.generate(PROMPT, max_tokens=8, temperature=1.0, top_p=1e-6)) == greedy


async def test_seed_when_given_then_a_session_draws_what_the_stateless_turn_does(client: Client) -> None:
    alone = await collect(client.generate(PROMPT, max_tokens=12, temperature=0.8, seed=2**63 - 1))
    async with client.session() as session:
        turn = session.turn(text=PROMPT, max_tokens=12, temperature=0.8, seed=2**63 - 1)
        assert await collect(turn) == alone
        assert turn.seed == 2**63 - 1


async def test_stop_when_its_text_comes_then_cut_before_it_and_the_ids_are_those_of_the_whole(client: Client) -> None:
    whole = client.generate(PROMPT, max_tokens=12, ignore_eos=True)
    pieces = [piece async for piece in whole]
    text = "".join(piece.text for piece in pieces)
    stop = text[10:22]
    assert text.find(stop) == 10
    turn = client.generate(PROMPT, max_tokens=12, ignore_eos=True, stop=["never comes", stop])
    stopped = [piece async for piece in turn]
    assert "".join(piece.text for piece in stopped) == text[:10]
    assert (turn.finish_reason, turn.stop_string) == (FinishReason.STOP, stop)
    ids = [token_id for piece in stopped for token_id in piece.token_ids]
    whole_ids = [token_id for piece in pieces for token_id in piece.token_ids]
    assert ids == whole_ids[: len(ids)]
    assert 4 < len(ids) < 12
    assert turn.usage is not None
    assert turn.usage.completion_tokens == len(ids)


async def test_stop_when_in_a_session_then_the_next_turn_follows_the_ids_that_were_told(client: Client) -> None:
    async with client.session() as session:
        first = session.turn(text=PROMPT, max_tokens=12, ignore_eos=True, stop=[" one"])
        ids = await collect(first)
        assert (first.finish_reason, first.stop_string) == (FinishReason.STOP, " one")
        assert first.usage is not None
        assert first.session_len == first.usage.context_tokens + len(ids)
        second = session.turn(text=" end.", max_tokens=4, ignore_eos=True)
        told = await collect(second)
        assert second.usage is not None
        assert second.usage.tokens_from_slot + second.usage.tokens_from_tree == first.session_len - 1
    tokenizer = tokenizer_from_gguf(open_gguf(find_embedded_model()))
    history = [*tokenizer.encode_text(PROMPT), *ids, *tokenizer.encode_text(" end.")]
    assert await collect(client.generate(token_ids=history, max_tokens=4, ignore_eos=True)) == told
