"""Input that can not be: each a typed error with value and limit, after which the server answers as before."""

import math
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import grpc
import pytest
from grpc import aio

from protos.v1 import generate_pb2, generate_pb2_grpc, types_pb2
from services.client import Client, FinishReason, Message, TenureError, Turn, connect
from services.limits import LIMITS
from tests.kit.server_process import ready_server

VOCAB_SIZE = 49152
CONTEXT_LEN = 512
POOL_TOKENS = 256
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with ready_server() as (_server, target):
        yield target


async def collect(turn: Turn) -> list[int]:
    return [token_id async for piece in turn for token_id in piece.token_ids]


@pytest.fixture
async def client(target: str) -> AsyncIterator[Client]:
    """Around each test the same greedy turn gives the same tokens, and the books are right."""
    async with connect(target) as client:
        before = await collect(client.generate(PROMPT, max_tokens=6))
        yield client
        assert await collect(client.generate(PROMPT, max_tokens=6)) == before
        assert (await client.check()).is_clean
        stats = await client.pools()
        assert (stats.sessions_open, stats.find("full").uncached) == (0, 0)


@dataclass(frozen=True, slots=True)
class Bad:
    ask: Callable[[Client], Turn]
    reason: str
    field: str
    value: str | None = None
    limit: str | None = None
    code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT


def ids(*token_ids: int) -> Callable[[Client], Turn]:
    return lambda client: client.generate(token_ids=token_ids)


PAST = grpc.StatusCode.OUT_OF_RANGE
SEED_MAX = str(2**63 - 1)
BAD: dict[str, Bad] = {
    "no ids": Bad(ids(), "INPUT_MISSING", "tokens.token_ids"),
    "no text": Bad(lambda client: client.generate(""), "INPUT_MISSING", "text.text"),
    "no messages": Bad(lambda client: client.generate(messages=[]), "INPUT_MISSING", "chat.messages"),
    "id past vocabulary": Bad(
        ids(1, VOCAB_SIZE), "TOKEN_OUT_OF_RANGE", "tokens.token_ids", str(VOCAB_SIZE), str(VOCAB_SIZE - 1)
    ),
    "negative id": Bad(ids(0, -5, 3), "TOKEN_OUT_OF_RANGE", "tokens.token_ids", "-5", str(VOCAB_SIZE - 1)),
    "least id": Bad(ids(-(2**31)), "TOKEN_OUT_OF_RANGE", "tokens.token_ids", str(-(2**31))),
    "largest id": Bad(ids(2**31 - 1), "TOKEN_OUT_OF_RANGE", "tokens.token_ids", str(2**31 - 1)),
    "context": Bad(ids(*[1] * CONTEXT_LEN), "PROMPT_EXCEEDS_CONTEXT", "input", "512", "512", PAST),
    "context and 1": Bad(ids(*[1] * (CONTEXT_LEN + 1)), "PROMPT_EXCEEDS_CONTEXT", "input", "513", "512", PAST),
    "no tokens wanted": Bad(
        lambda client: client.generate("x", max_tokens=0), "FIELD_INVALID", "sampling.max_tokens", "0", "1"
    ),
    "temperature nan": Bad(
        lambda client: client.generate("x", temperature=math.nan), "FIELD_INVALID", "sampling.temperature", "nan", "0"
    ),
    "temperature inf": Bad(
        lambda client: client.generate("x", temperature=math.inf), "FIELD_INVALID", "sampling.temperature", "inf", "0"
    ),
    "temperature -inf": Bad(
        lambda client: client.generate("x", temperature=-math.inf), "FIELD_INVALID", "sampling.temperature", "-inf"
    ),
    "temperature -1": Bad(
        lambda client: client.generate("x", temperature=-1), "FIELD_INVALID", "sampling.temperature", "-1.0", "0"
    ),
    "top_p nan": Bad(lambda client: client.generate("x", top_p=math.nan), "FIELD_INVALID", "sampling.top_p", "nan"),
    "top_p 0": Bad(lambda client: client.generate("x", top_p=0), "FIELD_INVALID", "sampling.top_p", "0.0", "1"),
    "top_k least": Bad(
        lambda client: client.generate("x", top_k=-(2**31)), "FIELD_INVALID", "sampling.top_k", str(-(2**31)), "0"
    ),
    "seed": Bad(
        lambda client: client.generate("x", seed=2**63 + 5), "FIELD_INVALID", "sampling.seed", str(2**63 + 5), SEED_MAX
    ),
    "empty stop": Bad(lambda client: client.generate("x", stop=[""]), "FIELD_INVALID", "sampling.stop", "0", "1"),
    "long stop": Bad(
        lambda client: client.generate("x", stop=["y" * 257]), "FIELD_INVALID", "sampling.stop", "257", "256"
    ),
    "many stops": Bad(lambda client: client.generate("x", stop=["y"] * 17), "FIELD_INVALID", "sampling.stop", "17"),
    "unknown role": Bad(
        lambda client: client.generate(messages=[Message("wizard", "x")]), "CHAT_INVALID", "chat.messages"
    ),
    "turn name": Bad(lambda client: client.generate("x", turn_id="a\nb"), "FIELD_INVALID", "turn_id"),
    "long turn name": Bad(
        lambda client: client.generate("x", turn_id="t" * (LIMITS.name_chars_max + 1)), "FIELD_INVALID", "turn_id"
    ),
    "session": Bad(
        lambda client: client.session("nobody").turn("Hello?"),
        "SESSION_UNKNOWN",
        "session_id",
        "nobody",
        code=grpc.StatusCode.NOT_FOUND,
    ),
    "parent": Bad(
        lambda client: client.session("nobody").turn(text="x", parent="p"),
        "SESSION_UNKNOWN",
        "session_id",
        code=grpc.StatusCode.NOT_FOUND,
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_generate_when_a_field_can_not_be_then_typed_error(client: Client, name: str) -> None:
    """SMP-01, SMP-03, SMP-07, SMP-11."""
    bad = BAD[name]
    with pytest.raises(TenureError) as caught:
        await collect(bad.ask(client))
    error = caught.value
    assert (error.reason, error.code, error.field) == (bad.reason, bad.code, bad.field)
    told = error.metadata
    assert (bad.value, bad.limit) == (bad.value and told["value"], bad.limit and told["limit"])


@pytest.mark.parametrize("max_tokens", [2**63 - 1, 2**62])
async def test_generate_when_more_tokens_are_asked_for_than_there_can_be_then_cut_and_told(
    client: Client, max_tokens: int
) -> None:
    turn = client.generate(token_ids=[1] * (CONTEXT_LEN - 3), max_tokens=max_tokens, ignore_eos=True)
    assert len(await collect(turn)) == 3
    assert (turn.max_tokens, turn.finish_reason) == (3, FinishReason.LENGTH)


async def test_generate_when_prompt_leaves_one_token_then_one_token(client: Client) -> None:
    turn = client.generate(token_ids=[1] * (CONTEXT_LEN - 1), ignore_eos=True)
    assert len(await collect(turn)) == 1
    assert (turn.max_tokens, turn.finish_reason) == (1, FinishReason.LENGTH)


async def test_session_when_full_then_the_next_turn_is_refused_with_what_would_fit(client: Client) -> None:
    async with client.session() as session:
        turn = session.turn(token_ids=[1] * 500, ignore_eos=True)
        assert len(await collect(turn)) == 12
        assert turn.session_len == CONTEXT_LEN
        with pytest.raises(TenureError, match="0 new tokens would fit") as caught:
            await collect(session.turn(token_ids=[1]))
        assert caught.value.reason == "PROMPT_EXCEEDS_CONTEXT"


async def test_generate_when_the_id_runs_with_other_content_then_refused_at_once_and_the_first_completes(
    client: Client, target: str
) -> None:
    """ABO-13 (vllm-project/vllm#10583)."""

    def request(max_tokens: int) -> generate_pb2.GenerateRequest:
        return generate_pb2.GenerateRequest(
            turn_id="id",
            text=types_pb2.TextInput(text=PROMPT),
            sampling=types_pb2.SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        )

    async with aio.insecure_channel(target) as channel:
        stub = generate_pb2_grpc.GenerateStub(channel)
        messages = aiter(stub.Generate(request(40)))
        await anext(messages)
        with pytest.raises(TenureError) as caught:
            await collect(client.generate(PROMPT, turn_id="id", max_tokens=41, ignore_eos=True))
        assert (caught.value.reason, caught.value.code) == ("TURN_EXISTS", grpc.StatusCode.ALREADY_EXISTS)
        assert (caught.value.field, caught.value.metadata["value"]) == ("turn_id", "id")
        same = await collect(client.generate(PROMPT, turn_id="id", max_tokens=40, ignore_eos=True))
        seen = [token_id async for message in messages for token_id in message.delta.token_ids]
        assert len(same) == 40
        assert same[-len(seen) :] == seen


async def test_prompt_when_longer_than_the_pool_then_out_of_range() -> None:
    arguments = ("--pool-tokens", str(POOL_TOKENS))
    with ready_server(*arguments) as (_server, target):
        async with connect(target) as client:
            for length in (POOL_TOKENS, POOL_TOKENS + 100):
                with pytest.raises(TenureError) as caught:
                    await collect(client.generate(token_ids=[1] * length))
                assert (caught.value.reason, caught.value.code) == ("PROMPT_EXCEEDS_POOL", PAST)
                assert caught.value.metadata == {"value": str(length), "limit": str(POOL_TOKENS)}
            turn = client.generate(token_ids=[1] * (POOL_TOKENS - 1), ignore_eos=True)
            assert len(await collect(turn)) == 1
            assert turn.finish_reason is FinishReason.LENGTH
