"""The client against a real server with the real model: sessions, endings, errors, books."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from grpc import aio

from services.client import Client, ClientSession, FinishReason, Message, PoolStats, TenureError, Turn, connect
from tests.kit.server_process import ready_server

VOCAB_SIZE = 49152
POOL_PAGES = 128


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with ready_server() as (_server, target):
        yield target


@pytest.fixture
async def client(target: str) -> AsyncIterator[Client]:
    """A client, after whose test the server must hold nothing and its books must balance."""
    async with connect(target) as client:
        yield client
        stats = await settled(client)
        full = stats.find("full")
        assert stats.balanced
        assert (stats.sessions_open, stats.turns_running, stats.turns_waiting) == (0, 0, 0)
        assert full.available + full.evictable == full.total == POOL_PAGES


async def settled(client: Client) -> PoolStats:
    """The books, once the step that an aborted turn was in has been answered."""
    async with asyncio.timeout(5):
        while (stats := await client.pools()).turns_running:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.01)
    return stats


async def accepted(turn: Turn) -> None:
    """Returns once the server has taken the turn, which somebody else reads."""
    async with asyncio.timeout(5):
        while turn.max_tokens is None:  # noqa: ASYNC110 - the turn has no event for what only its reader sees
            await asyncio.sleep(0.01)


async def collect(turn: Turn) -> list[int]:
    return [token_id async for piece in turn for token_id in piece.token_ids]


async def commit(session: ClientSession, words: str, max_tokens: int = 6) -> Turn:
    """A turn that was run to its end."""
    turn = session.turn(words, max_tokens=max_tokens)
    await collect(turn)
    assert turn.is_committed
    return turn


async def test_generate_when_text_is_given_then_streamed_and_accounted(client: Client) -> None:
    turn = client.generate("The capital of France is", max_tokens=8, ignore_eos=True)
    pieces = [piece async for piece in turn]
    assert "Paris" in "".join(piece.text for piece in pieces)
    assert sum(len(piece.token_ids) for piece in pieces) == 8
    assert len(pieces) > 1, "text comes as it is generated"
    assert (turn.finish_reason, turn.session_len) == (FinishReason.LENGTH, None)
    assert turn.usage is not None
    assert turn.usage.context_tokens == turn.new_tokens
    assert turn.usage.completion_tokens == 8


async def test_generate_when_cold_and_warm_then_the_same_tokens(client: Client) -> None:
    """DET-01 (vllm-project/vllm#40896): with proof that the second run hit the cache."""
    prompt = "Once upon a time there was a small dog who lived with an old man in a house by the sea, and " * 2
    cold = client.generate(prompt, max_tokens=12)
    cold_ids = await collect(cold)
    warm = client.generate(prompt, max_tokens=12)
    assert await collect(warm) == cold_ids
    assert warm.usage is not None
    assert warm.usage.tokens_from_tree >= 16


async def test_session_when_three_turns_then_the_same_tokens_as_one_stateless_chat(client: Client) -> None:
    async with client.session() as session:
        history: list[Message] = []
        for words in ("What is the capital of France?", "And of Italy?", "And of Spain?"):
            history.append(Message("user", words))
            turn = session.turn(words, max_tokens=60)
            text = await turn.text()
            alone = client.generate(messages=history, max_tokens=60)
            assert await alone.text() == text
            # A cut answer would be closed in the stateless chat and go on in the session.
            assert turn.finish_reason is alone.finish_reason is FinishReason.STOP
            history.append(Message("assistant", text))


async def test_turn_when_second_then_the_slot_gives_all_but_the_last_token(client: Client) -> None:
    async with client.session() as session:
        first = await commit(session, "Hello!")
        second = await commit(session, "And again?")
        assert first.session_len is not None
        assert second.usage is not None
        assert second.new_tokens is not None
        reused = second.usage.tokens_from_slot + second.usage.tokens_from_tree
        assert (reused, second.usage.tokens_computed) == (first.session_len - 1, second.new_tokens + 1)
        assert second.usage.tokens_from_slot > 0


@pytest.mark.parametrize("way", ["break", "cancel", "leave"])
async def test_turn_when_left_early_then_rolled_back_and_only_new_tokens_are_computed(client: Client, way: str) -> None:
    async with client.session() as session:
        first = await commit(session, "Tell me about Paris, please.")
        turn = session.turn("Count to one thousand.", max_tokens=300, ignore_eos=True)
        await leave_early(turn, way)
        after = await commit(session, "Thank you.")
        assert (turn.finish_reason, turn.session_len) == (FinishReason.ABORT, first.session_len)
        assert first.session_len is not None
        assert after.usage is not None
        assert after.new_tokens is not None
        reused = after.usage.tokens_from_slot + after.usage.tokens_from_tree
        assert (reused, after.usage.tokens_computed) == (first.session_len - 1, after.new_tokens + 1)


async def leave_early(turn: Turn, way: str) -> None:
    """Leaves a turn after its third piece."""
    if way == "cancel":
        reading = asyncio.create_task(collect(turn))
        await accepted(turn)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        return
    seen = 0
    async for _piece in turn:
        seen += 1
        if seen == 3:
            break
    if way == "leave":
        await turn.leave()


async def test_turn_when_its_time_is_up_then_deadline_and_rolled_back(client: Client) -> None:
    async with client.session() as session:
        first = await commit(session, "Hello!")
        turn = session.turn("Count to one thousand.", max_tokens=300, ignore_eos=True, timeout_s=0.6)
        with pytest.raises(TenureError) as caught:
            await collect(turn)
        assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        after = await commit(session, "Thank you.")
        assert after.usage is not None
        assert first.session_len is not None
        assert after.usage.tokens_from_slot + after.usage.tokens_from_tree == first.session_len - 1


async def test_session_when_closed_during_a_turn_then_the_turn_says_so(client: Client) -> None:
    session = client.session()
    await session.open()
    turn = session.turn("Count to one thousand.", max_tokens=300, ignore_eos=True)
    reading = asyncio.create_task(collect(turn))
    await accepted(turn)
    other = client.session(session.session_id)
    await other.close()
    with pytest.raises(TenureError) as caught:
        await reading
    assert (caught.value.reason, caught.value.code) == ("SESSION_CLOSED", grpc.StatusCode.ABORTED)
    assert turn.finish_reason is FinishReason.ABORT
    await other.close()  # idempotent


async def test_turn_when_the_session_is_busy_then_refused_and_the_running_one_goes_on(client: Client) -> None:
    async with client.session() as session:
        running = session.turn("Count to ten.", max_tokens=30, ignore_eos=True)
        reading = asyncio.create_task(collect(running))
        await accepted(running)
        stranger = client.session(session.session_id)
        with pytest.raises(TenureError) as caught:
            await collect(stranger.turn("Me too!"))
        assert (caught.value.reason, caught.value.code) == ("SESSION_BUSY", grpc.StatusCode.ABORTED)
        assert caught.value.metadata["value"] == running.turn_id
        assert len(await reading) == 30


async def test_ordinary_session_when_branched_then_each_branch_continues_its_parent(client: Client) -> None:
    async with client.session(streaming=False) as session:
        root = session.turn("My name is Ada. Remember it, please.", max_tokens=8)
        await collect(root)
        branches = [session.turn(words, parent=root.turn_id, max_tokens=8) for words in ("Who am I?", "And you?")]
        for branch in branches:
            await collect(branch)
            assert branch.usage is not None
            assert root.session_len is not None
            assert branch.new_tokens is not None
            assert branch.usage.context_tokens == root.session_len + branch.new_tokens
            assert branch.usage.tokens_from_tree >= 16
        with pytest.raises(TenureError) as caught:
            await collect(session.turn("Hm?", parent="nobody"))
        assert (caught.value.reason, caught.value.code) == ("PARENT_UNKNOWN", grpc.StatusCode.NOT_FOUND)


async def test_open_when_the_name_is_taken_then_already_exists(client: Client) -> None:
    async with client.session("mine"):
        with pytest.raises(TenureError) as caught:
            await client.session("mine").open()
        assert (caught.value.reason, caught.value.code) == ("SESSION_EXISTS", grpc.StatusCode.ALREADY_EXISTS)


async def test_message_when_over_the_cap_then_refused_at_once(client: Client) -> None:
    """GRP-11 (grpc/grpc.io#1254)."""
    with pytest.raises(TenureError) as caught:
        await collect(client.generate(token_ids=[VOCAB_SIZE - 1] * 2_000_000))
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_clients_when_200_leave_a_stream_then_nothing_is_left(client: Client) -> None:
    """GRP-05 (grpc/grpc#22874): no turn is left behind; the fixture looks at the books."""
    for _ in range(10):
        turns = [client.generate("Count to one thousand:", max_tokens=300, ignore_eos=True) for _ in range(20)]
        await asyncio.gather(*(leave_early(turn, "cancel") for turn in turns))


@pytest.mark.parametrize("size", [64 * 1024, 1024 * 1024])
async def test_metadata_when_far_over_the_cap_then_refused_by_the_transport(
    client: Client, target: str, size: int
) -> None:
    """GRP-13 (HabanaAI/vllm-fork#2181)."""
    async with aio.insecure_channel(target) as channel:
        stats: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/tenure.v1.Admin/PoolStats")
        assert await stats(b"", metadata=(("x-filler", "x" * 8000),))
        with pytest.raises(aio.AioRpcError):
            await stats(b"", metadata=(("x-filler", "x" * size),))
    assert await client.is_ready()
