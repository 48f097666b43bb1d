"""SES: who owns a session's KV, and for how long."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import pytest
from grpc import aio

from engine.core.commands import AbortReason, FinishReason, OnAbort
from engine.core.events import SlotState, StepPlanned, TurnAdmitted, TurnEnded
from engine.core.ids import SessionId
from engine.core.ownership import Move
from engine.runtime.handle import TurnOptions
from protos.v1 import generate_pb2, generate_pb2_grpc, session_pb2, types_pb2
from services.client import TenureError
from tests.integration.field_reports.rig import DEFAULT, DEPTHS, PAGE, FieldRig, field_rig, pages_of, prompt
from tests.integration.field_reports.wire import fields_sent, method_names, names_with
from tests.kit.runtime_rig import Answer, oracle, wait_until
from tests.kit.server_rig import CONFIG, ServerRig, running_server

LENGTH, CLIENT = FinishReason.LENGTH, AbortReason.CLIENT


async def talk(rig: FieldRig, session: str, new_ids: list[int], max_tokens: int, turn_id: str = "t") -> Answer:
    """One turn, whose answer must be that of the whole history alone."""
    history = await rig.history(session)
    answer = await rig.run(turn_id, new_ids, session, max_tokens=max_tokens)
    assert answer.ids == oracle(history + new_ids, max_tokens)
    assert answer.end.history_len == len(history) + len(new_ids) + max_tokens
    return answer


def cached(answer: Answer) -> int:
    usage = answer.end.usage
    assert usage.context_len == usage.tokens_from_slot + usage.tokens_from_tree + usage.tokens_computed
    return usage.tokens_from_slot + usage.tokens_from_tree


async def test_second_turn_when_it_computes_from_the_slot_on_then_no_page_is_orphaned() -> None:
    """SES-02 (sgl-project/sglang#20557): 40 tokens, then 8 more; logprobs of the prompt can not be asked for."""
    assert not {name for name in fields_sent() if "logprob" in name or "echo" in name}
    async with field_rig() as rig:
        await rig.open("s")
        await talk(rig, "s", prompt(1, 36), 4)
        second = await talk(rig, "s", prompt(2, 8), 4, "t2")
        assert cached(second) == 40 - 1
        await talk(rig, "s", prompt(3, 8), 4, "t3")
        await rig.require_sound([LENGTH] * 3)


def test_api_when_looked_through_then_no_session_can_be_restored_from_a_file() -> None:
    """SES-21 (ggml-org/llama.cpp#27052): `Admin.Snapshot` shows neither ids nor KV, and nothing takes it back."""
    assert not names_with(method_names(), "restore", "import", "adopt", "save", "load")
    assert not names_with(fields_sent(session_pb2.OpenRequest.DESCRIPTOR), "snapshot", "file", "path", "ids")


@DEPTHS
async def test_idle_sessions_when_they_fill_the_pool_then_a_plain_request_is_served(depth: int) -> None:
    """SES-03 (sgl-project/sglang#27024): 8 idle sessions of 600 tokens in a pool of 4096, then a plain 200."""
    async with field_rig(replace(DEFAULT, pool_pages=pages_of(4096), chunk_tokens=128, in_flight_max=depth)) as rig:
        for number in range(8):
            await rig.open(f"s{number}")
            await talk(rig, f"s{number}", prompt(number, 592), 8)
        assert SlotState.DEMOTED in (await rig.slots()).values(), "the pool was too small for all"
        plain = await rig.alone("plain", prompt(99, 200))
        assert plain.ids == oracle(prompt(99, 200), 8)
        for number in range(8):
            await talk(rig, f"s{number}", prompt(50 + number, 5), 4, "next")
        await rig.require_sound([LENGTH] * 17)


OPEN_TURN_AND_DIE = """
import asyncio, os, signal, sys
from services.client import connect

async def main():
    async with connect(sys.argv[1]) as client:
        for number in range(4):
            session = client.session(f"dead{number}")
            await session.open()
            async for _ in session.turn(token_ids=[number, 1, 2], max_tokens=4):
                pass
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def sessions_of(rig: ServerRig) -> list[str]:
    return [info.session_id async for info in rig.client.sessions()]


async def test_client_when_killed_between_turns_then_its_places_can_be_given_to_others() -> None:
    """SES-17 (triton-inference-server/server#6374): all places taken for an hour; whoever operates closes by name."""
    async with running_server(replace(CONFIG, sessions_max=4)) as rig:
        command = (sys.executable, "-c", OPEN_TURN_AND_DIE, rig.target)
        killed = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=60, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert await sessions_of(rig) == [f"dead{number}" for number in range(4)]
        with pytest.raises(TenureError) as caught:
            await rig.client.session("new").open()
        assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "SESSION_LIMIT")
        for name in await sessions_of(rig):
            await rig.client.session(name).close()
        for number in range(4):
            session = rig.client.session(f"new{number}")
            await session.open()
            assert await rig.collect(session.turn(token_ids=[9, number], max_tokens=5)) == oracle([9, number], 5)
        assert (await rig.client.check()).is_clean
        stats = await rig.client.pools()
        assert (stats.turns_running, stats.turns_waiting, stats.find("full").uncached) == (0, 0, 0)


async def test_stream_when_its_session_idles_out_then_it_ends_and_the_next_turn_is_told_at_once() -> None:
    """SES-16 (triton-inference-server/server#4628): a stream lasts one turn; a held one keeps nobody waiting."""
    async with running_server(CONFIG) as rig, aio.insecure_channel(rig.target) as channel:
        session = rig.client.session("s", idle_timeout_s=0.1)
        await session.open()
        request = generate_pb2.GenerateRequest(
            session_id="s",
            tokens=types_pb2.TokenInput(token_ids=[1, 2]),
            sampling=types_pb2.SamplingParams(max_tokens=4),
        )
        stub = generate_pb2_grpc.GenerateStub(channel)
        held = aiter(stub.Generate(request))
        assert (await anext(held)).HasField("started")

        async def has_expired() -> bool:
            return not await sessions_of(rig)

        await wait_until(has_expired)
        began_s = time.monotonic()
        rest = [message async for message in held]
        assert rest[-1].finished.finish_reason == types_pb2.FINISH_REASON_LENGTH
        with pytest.raises(aio.AioRpcError) as caught:
            [message async for message in stub.Generate(request)]
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert time.monotonic() - began_s < 1.0
        assert await rig.collect(rig.client.generate(token_ids=[3], max_tokens=5)) == oracle([3], 5)


async def run_hot(rig: FieldRig, number: int, at_once: asyncio.Semaphore) -> None:
    async with at_once:
        await rig.open(f"hot{number}")
        for turn in range(5):
            await talk(rig, f"hot{number}", prompt(100 + number + turn, 20), 6, f"t{turn}")


async def test_cold_sessions_when_hot_ones_need_the_room_then_they_lose_kv_and_no_history() -> None:
    """SES-06 (sgl-project/sglang#28891): 50 hot sessions of 5 turns beside 25 cold ones, 8 at a time."""
    config = replace(DEFAULT, pool_pages=1 + 50 * 9, num_rows=65, sessions_max=75, running_max=8, in_flight_max=2)
    async with field_rig(config) as rig:
        cold: dict[str, int] = {}
        for number in range(25):
            await rig.open(f"cold{number}")
            cold[f"cold{number}"] = (await talk(rig, f"cold{number}", prompt(number, 40), 6)).end.history_len or 0
        at_once = asyncio.Semaphore(8)
        await asyncio.gather(*(run_hot(rig, number, at_once) for number in range(50)))
        slots = await rig.slots()
        assert {slots[name] for name in cold} == {SlotState.DEMOTED}, "the least recently used went first"
        assert list(slots.values()).count(SlotState.HELD) > 25, "most of the hot ones kept theirs"
        for name, history_len in cold.items():
            again = await talk(rig, name, prompt(7, 3), 4, "again")
            assert cached(again) < history_len - 1, "told truthfully: the tail, at least, was lost"
        await rig.require_sound([LENGTH] * (25 + 250 + 25))


@DEPTHS
async def test_close_when_the_turn_decodes_then_its_pages_go_only_after_the_step_that_reads_them(depth: int) -> None:
    """SES-07 (sgl-project/sglang#21875): closed after 10 of 200 tokens, while another request waits for its pages."""
    async with field_rig(replace(DEFAULT, pool_pages=pages_of(320), in_flight_max=depth)) as rig:
        await rig.open("s")
        first = await talk(rig, "s", prompt(3, 24), 4)
        stream = await rig.submit("t1", prompt(1, 100), session="s", max_tokens=200)
        told = await rig.read_some(stream, 10)
        rig.pause()
        other = await rig.submit("other", prompt(2, 280), max_tokens=20)
        await rig.engine.close_session(SessionId("s"))
        answer = await rig.collect(stream)
        assert (answer.end.outcome, answer.end.is_committed) == (AbortReason.SESSION_CLOSED, False)
        told += answer.ids
        assert told == oracle(prompt(3, 24) + first.ids + prompt(1, 100), len(told))
        assert not rig.moves(Move.RELEASE, Move.RETURN), "a forward in flight still reads them"
        rig.go_on()
        assert (await rig.collect(other)).ids == oracle(prompt(2, 280), 20)
        assert [change.target for change in rig.slots_of("s")[-2:]] == ["held", "released"]
        await rig.require_sound([LENGTH, AbortReason.SESSION_CLOSED, LENGTH])


@DEPTHS
async def test_turns_when_they_end_off_a_page_edge_then_the_slot_owns_the_tail_and_the_tree_whole_pages(
    depth: int,
) -> None:
    """SES-10 (sgl-project/sglang#20070): 37 tokens, then 5 more, then 11 more; page 16."""
    async with field_rig(replace(DEFAULT, in_flight_max=depth)) as rig:
        await rig.open("s")
        for turn, (num_new, max_tokens) in enumerate(((33, 4), (1, 4), (7, 4))):
            await talk(rig, "s", prompt(turn, num_new), max_tokens, f"t{turn}")
            books, state = await rig.full_pool(), await rig.state_of("s")
            assert state.kv_committed_len == state.history_len - 1
            assert books.protected == 33 // PAGE, "the first prompt's whole pages, and nothing else, are the tree's"
            assert state.pages == books.session_held == -(-state.kv_committed_len // PAGE) - books.protected
        assert (await rig.state_of("s")).history_len == 37 + 5 + 11
        await rig.require_sound([LENGTH] * 3)


@pytest.mark.parametrize(("scarce", "pool_tokens"), [("budget", 4096), ("pages", 624)])
@DEPTHS
async def test_turn_when_scheduling_refuses_it_then_slot_and_locks_stay_until_it_is_admitted(
    depth: int, scarce: str, pool_tokens: int
) -> None:
    """SES-11 (sgl-project/sglang#20476): C=32; a plain prefill of 500 has the budget or pages that turn 2 needs."""
    config = replace(
        DEFAULT,
        pool_pages=pages_of(pool_tokens),
        step_tokens=32,
        running_max=2,
        new_token_ratio=1.0,
        in_flight_max=depth,
    )
    async with field_rig(config) as rig:
        await rig.open("s")
        await talk(rig, "s", prompt(1, 50), 4)
        before, told, history = await rig.full_pool(), len(rig.sink.events), await rig.history("s")
        slot = await rig.state_of("s")
        rig.pause()
        plain = await rig.submit("plain", prompt(2, 500), max_tokens=16)
        await rig.wait_phase("plain", "running")
        turn = await rig.submit("t2", prompt(3, 40), session="s", max_tokens=4)
        await rig.let_steps(4)
        waiting = await rig.state_of("s")
        assert (waiting.slot, waiting.pages) == (SlotState.HELD, slot.pages)
        computed = 4 * config.chunk_tokens // PAGE
        assert (await rig.full_books()).protected == before.protected + computed, "its own and the plain prompt's"
        rig.go_on()
        assert (await rig.collect(turn)).ids == oracle(history + prompt(3, 40), 4)
        assert (await rig.collect(plain)).ids == oracle(prompt(2, 500), 16)
        facts = [numbered.event for numbered in rig.sink.events[told:]]
        refused = facts[: facts.index(next(it for it in facts if isinstance(it, TurnAdmitted) and it.tokens_from_slot))]
        assert sum(isinstance(fact, StepPlanned) for fact in refused) > 4, "it was passed over in these steps"
        assert any(isinstance(fact, TurnEnded) for fact in refused) is (scarce == "pages"), "why it was passed over"
        assert [change.target for change in rig.slots_of("s")[-3:]] == ["lent", "committing", "held"]
        assert (await rig.full_pool()).protected == before.protected
        await rig.require_sound([LENGTH] * 3)


@pytest.mark.parametrize("on_abort", OnAbort)
@DEPTHS
async def test_abort_when_5_tokens_were_told_then_told_as_abort_and_the_next_turn_follows_the_rule(
    depth: int, on_abort: OnAbort
) -> None:
    """SES-13 (radixark/miles#3337): an aborted turn is no success; its tokens stay only where the client said so."""
    async with field_rig(replace(DEFAULT, in_flight_max=depth)) as rig:
        await rig.open("s")
        await talk(rig, "s", prompt(1, 30), 6)
        before = await rig.history("s")
        stream = await rig.submit(
            "t2", prompt(2, 9), session="s", max_tokens=200, options=TurnOptions(on_abort=on_abort)
        )
        told = await rig.read_some(stream, 5)
        await rig.abort("t2", "s")
        rest = await rig.collect(stream)
        told += rest.ids
        kept = before + prompt(2, 9) + told if on_abort is OnAbort.KEEP else before
        assert rest.end.outcome is CLIENT
        assert rest.end.is_committed is (on_abort is OnAbort.KEEP)
        assert rest.end.history_len == len(kept)
        assert await rig.history("s") == kept
        await talk(rig, "s", prompt(3, 3), 4, "t3")
        await rig.require_sound([LENGTH, CLIENT, LENGTH])


async def read_into(
    messages: list[generate_pb2.GenerateResponse], stream: AsyncIterator[generate_pb2.GenerateResponse]
) -> None:
    async for message in stream:
        messages.append(message)  # noqa: PERF401 - those before an error count


async def test_abort_when_called_for_then_the_stream_ends_with_a_reason_and_no_success() -> None:
    """SES-13 (radixark/miles#3337), on the wire: a last message that says abort, then the status ABORTED."""
    async with running_server(CONFIG) as rig, aio.insecure_channel(rig.target) as channel:
        session = rig.client.session("s")
        await session.open()
        first = await rig.collect(session.turn(token_ids=[1, 2, 3], max_tokens=6))
        rig.executor.faults.delay_s = lambda _plan: 0.005
        stub = generate_pb2_grpc.GenerateStub(channel)
        request = generate_pb2.GenerateRequest(
            session_id="s", turn_id="t2", tokens=types_pb2.TokenInput(token_ids=[4, 5])
        )
        messages = aiter(stub.Generate(request))
        told: list[int] = []
        while len(told) < 5:
            told += (await anext(messages)).delta.token_ids
        await stub.Abort(generate_pb2.AbortRequest(session_id="s", turn_id="t2"))
        rest: list[generate_pb2.GenerateResponse] = []
        with pytest.raises(aio.AioRpcError) as caught:
            await read_into(rest, messages)
        last = rest[-1].finished
        assert caught.value.code() is grpc.StatusCode.ABORTED
        assert (last.finish_reason, last.session_len, last.committed) == (types_pb2.FINISH_REASON_ABORT, 9, False)
        rig.executor.faults.delay_s = lambda _plan: 0.0
        ids = await rig.collect(session.turn(token_ids=[6, 7, 8], max_tokens=4))
        assert ids == oracle([1, 2, 3, *first, 6, 7, 8], 4)
        assert (await rig.client.find_session("s")).session_len == 9 + 3 + 4


@DEPTHS
async def test_turn_when_cancelled_after_5_tokens_then_another_continuation_recomputes_none_of_the_history(
    depth: int,
) -> None:
    """SES-22 (ggml-org/llama.cpp#29163): 600 tokens of history; the last one is always the first computed next turn."""
    config = replace(DEFAULT, pool_pages=pages_of(2048), chunk_tokens=128, in_flight_max=depth)
    async with field_rig(config) as rig:
        await rig.open("s")
        await talk(rig, "s", prompt(1, 592), 8)
        stream = await rig.submit("t2", prompt(2, 20), session="s", max_tokens=200)
        await rig.read_some(stream, 5)
        await stream.aclose()
        await rig.wait_no_turns()
        answer = await talk(rig, "s", prompt(3, 20), 8, "t3")
        assert cached(answer) == 600 - 1
        assert answer.end.usage.tokens_computed == 20 + 1
        outcomes = [fact.outcome for fact in rig.facts() if isinstance(fact, TurnEnded)]
        assert outcomes == [LENGTH, AbortReason.DISCONNECT, LENGTH]
        await rig.require_sound(outcomes)
